"""Signatures: functions with named inputs and outputs, and their weights, before they are saved.

Needs JAX for JAX functions only, and never TensorFlow.
"""

from jax2tf_bridge.signatures._inputs import NamedPort as NamedPort
from jax2tf_bridge.signatures._inputs import ServedArray
from jax2tf_bridge.signatures._inputs import Sides as Sides
from jax2tf_bridge.signatures._inputs import SignatureInputs as SignatureInputs
from jax2tf_bridge.signatures._inputs import as_op_aval as as_op_aval
from jax2tf_bridge.signatures._inputs import avals_of as avals_of
from jax2tf_bridge.signatures._inputs import examples_of as examples_of
from jax2tf_bridge.signatures._inputs import make_example as make_example
from jax2tf_bridge.signatures._inputs import name_ports as name_ports
from jax2tf_bridge.signatures._inputs import served_text as served_text
from jax2tf_bridge.signatures._inputs import valid_names as valid_names
from jax2tf_bridge.signatures._params import Matching as Matching
from jax2tf_bridge.signatures._params import PathWeights
from jax2tf_bridge.signatures._params import differences as differences
from jax2tf_bridge.signatures._params import find_prefixes as find_prefixes
from jax2tf_bridge.signatures._params import leaf_keys as leaf_keys
from jax2tf_bridge.signatures._params import leaves_for as leaves_for
from jax2tf_bridge.signatures._params import match as match
from jax2tf_bridge.signatures._params import normalize_separators as normalize_separators
from jax2tf_bridge.signatures._params import open_params as open_params
from jax2tf_bridge.signatures._prepare import Signatures as Signatures
from jax2tf_bridge.signatures._prepare import export_signatures as export_signatures
from jax2tf_bridge.signatures._prepare import keys_as_words as keys_as_words
from jax2tf_bridge.signatures._prepare import list_serving_options as list_serving_options
from jax2tf_bridge.signatures._prepare import open_model as open_model
from jax2tf_bridge.signatures._prepare import prepare as prepare
from jax2tf_bridge.signatures._signature import Padding, Processing, Signature
from jax2tf_bridge.signatures._signature import list_masks as list_masks
from jax2tf_bridge.signatures._weights import PARAMS as PARAMS
from jax2tf_bridge.signatures._weights import WeightLeaf as WeightLeaf
from jax2tf_bridge.signatures._weights import check_types as check_types
from jax2tf_bridge.signatures._weights import convert_array as convert_array
from jax2tf_bridge.signatures._weights import leaf_names as leaf_names
from jax2tf_bridge.signatures._weights import names_of as names_of
from jax2tf_bridge.signatures._weights import weight_leaves as weight_leaves

__all__ = ["Padding", "PathWeights", "Processing", "ServedArray", "Signature"]
