"""Signatures: named inputs and outputs around a portable function."""

from jax2tf_bridge.saving.signatures._endpoint import Endpoint as Endpoint
from jax2tf_bridge.saving.signatures._endpoint import PaddedCall as PaddedCall
from jax2tf_bridge.saving.signatures._endpoint import WeightedFunction as WeightedFunction
from jax2tf_bridge.saving.signatures._endpoint import choose_order as choose_order
from jax2tf_bridge.saving.signatures._endpoint import optional_subsets as optional_subsets
from jax2tf_bridge.saving.signatures._endpoint import to_plain_containers as to_plain_containers
from jax2tf_bridge.saving.signatures._inputs import NamedPort as NamedPort
from jax2tf_bridge.saving.signatures._inputs import ServedArray as ServedArray
from jax2tf_bridge.saving.signatures._inputs import Sides as Sides
from jax2tf_bridge.saving.signatures._inputs import SignatureInputs as SignatureInputs
from jax2tf_bridge.saving.signatures._inputs import avals_of as avals_of
from jax2tf_bridge.saving.signatures._inputs import examples_of as examples_of
from jax2tf_bridge.saving.signatures._inputs import served_text as served_text
from jax2tf_bridge.saving.signatures._processing import check_preprocess as check_preprocess
from jax2tf_bridge.saving.signatures._processing import describe_arrays as describe_arrays
from jax2tf_bridge.saving.signatures._processing import list_resources as list_resources
from jax2tf_bridge.saving.signatures._processing import run_preprocess as run_preprocess
from jax2tf_bridge.saving.signatures._processing import wrap_call as wrap_call
from jax2tf_bridge.saving.signatures._signature import Padding as Padding
from jax2tf_bridge.saving.signatures._signature import Processing as Processing
from jax2tf_bridge.saving.signatures._signature import Signature as Signature
from jax2tf_bridge.saving.signatures._signature import check_names as check_names
from jax2tf_bridge.saving.signatures._signature import check_size as check_size
from jax2tf_bridge.saving.signatures._signature import check_takes_params as check_takes_params
from jax2tf_bridge.saving.signatures._signature import check_vjp_order as check_vjp_order
