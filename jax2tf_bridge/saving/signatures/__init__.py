"""Signatures: named inputs and outputs around a portable function."""

from jax2tf_bridge.saving.signatures._endpoint import Endpoint as Endpoint
from jax2tf_bridge.saving.signatures._endpoint import PaddedCall as PaddedCall
from jax2tf_bridge.saving.signatures._endpoint import WeightedFunction as WeightedFunction
from jax2tf_bridge.saving.signatures._endpoint import choose_order as choose_order
from jax2tf_bridge.saving.signatures._endpoint import list_optional_subsets as list_optional_subsets
from jax2tf_bridge.saving.signatures._endpoint import to_plain_containers as to_plain_containers
from jax2tf_bridge.saving.signatures._processing import check_processing as check_processing
from jax2tf_bridge.saving.signatures._processing import describe_arrays as describe_arrays
from jax2tf_bridge.saving.signatures._processing import list_resources as list_resources
from jax2tf_bridge.saving.signatures._processing import run_preprocess as run_preprocess
from jax2tf_bridge.saving.signatures._processing import wrap_call as wrap_call
from jax2tf_bridge.saving.signatures._updates import UpdateLock as UpdateLock
from jax2tf_bridge.saving.signatures._updates import WeightLock as WeightLock
from jax2tf_bridge.saving.signatures._updates import assign_all as assign_all
