"""Signatures: functions with named inputs and outputs, and their weights, before they are saved.

Needs JAX for JAX functions only, and never TensorFlow.
"""

from jax2tf_bridge.signatures._inputs import NamedPort as NamedPort
from jax2tf_bridge.signatures._inputs import ServedArray
from jax2tf_bridge.signatures._inputs import Sides as Sides
from jax2tf_bridge.signatures._inputs import SignatureInputs as SignatureInputs
from jax2tf_bridge.signatures._inputs import as_op_aval as as_op_aval
from jax2tf_bridge.signatures._inputs import avals_of as avals_of
from jax2tf_bridge.signatures._inputs import format_arrays as format_arrays
from jax2tf_bridge.signatures._inputs import list_examples as list_examples
from jax2tf_bridge.signatures._inputs import make_example as make_example
from jax2tf_bridge.signatures._inputs import make_valid_names as make_valid_names
from jax2tf_bridge.signatures._inputs import name_ports as name_ports
from jax2tf_bridge.signatures._params import Matching as Matching
from jax2tf_bridge.signatures._params import PathWeights
from jax2tf_bridge.signatures._params import find_prefixes as find_prefixes
from jax2tf_bridge.signatures._params import format_mismatches as format_mismatches
from jax2tf_bridge.signatures._params import keys_as_words as keys_as_words
from jax2tf_bridge.signatures._params import match_leaves as match_leaves
from jax2tf_bridge.signatures._params import match_paths as match_paths
from jax2tf_bridge.signatures._params import normalize_separators as normalize_separators
from jax2tf_bridge.signatures._params import open_params as open_params
from jax2tf_bridge.signatures._prepare import Signatures as Signatures
from jax2tf_bridge.signatures._prepare import export_signatures as export_signatures
from jax2tf_bridge.signatures._prepare import list_serving_options as list_serving_options
from jax2tf_bridge.signatures._prepare import open_model as open_model
from jax2tf_bridge.signatures._prepare import prepare_signatures as prepare_signatures
from jax2tf_bridge.signatures._signature import Padding, Processing, Signature
from jax2tf_bridge.signatures._signature import list_masks as list_masks
from jax2tf_bridge.signatures._weights import PARAMS as PARAMS
from jax2tf_bridge.signatures._weights import WeightLeaf as WeightLeaf
from jax2tf_bridge.signatures._weights import check_value_types as check_value_types
from jax2tf_bridge.signatures._weights import convert_array as convert_array
from jax2tf_bridge.signatures._weights import match_weights as match_weights
from jax2tf_bridge.signatures._weights import name_leaves as name_leaves
from jax2tf_bridge.signatures._weights import name_paths as name_paths

__all__ = ["Padding", "PathWeights", "Processing", "ServedArray", "Signature"]
