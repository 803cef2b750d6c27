"""Converts portable functions to TensorFlow functions. Never imports jax."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("Making a TensorFlow function"):
    import tensorflow as _tf  # noqa: F401

from jax2tf_bridge.to_tensorflow import _tf_compat
from jax2tf_bridge.to_tensorflow._constants import CapturedArrays as CapturedArrays
from jax2tf_bridge.to_tensorflow._constants import Constants as Constants
from jax2tf_bridge.to_tensorflow._constants import EagerConstants as EagerConstants
from jax2tf_bridge.to_tensorflow._constants import Key as Key
from jax2tf_bridge.to_tensorflow._constants import SharedConstants as SharedConstants
from jax2tf_bridge.to_tensorflow._constants import constant_array as constant_array
from jax2tf_bridge.to_tensorflow._constants import constant_key as constant_key
from jax2tf_bridge.to_tensorflow._dtypes import can_have_shape as can_have_shape
from jax2tf_bridge.to_tensorflow._dtypes import cast_if_needed as cast_if_needed
from jax2tf_bridge.to_tensorflow._dtypes import is_in_range as is_in_range
from jax2tf_bridge.to_tensorflow._dtypes import op_dtype as op_dtype
from jax2tf_bridge.to_tensorflow._dtypes import static_shape as static_shape
from jax2tf_bridge.to_tensorflow._function import to_tf
from jax2tf_bridge.to_tensorflow._gradient import StoredGradients as StoredGradients
from jax2tf_bridge.to_tensorflow._gradient import call_flat as call_flat
from jax2tf_bridge.to_tensorflow._gradient import convert_cotangent as convert_cotangent
from jax2tf_bridge.to_tensorflow._gradient import has_tensorflow_gradient as has_tensorflow_gradient
from jax2tf_bridge.to_tensorflow._graph_edits import Form as Form
from jax2tf_bridge.to_tensorflow._graph_edits import FormFunctions as FormFunctions
from jax2tf_bridge.to_tensorflow._graph_edits import Kernel as Kernel
from jax2tf_bridge.to_tensorflow._graph_edits import find_attribute as find_attribute
from jax2tf_bridge.to_tensorflow._graph_edits import find_constant as find_constant
from jax2tf_bridge.to_tensorflow._graph_edits import find_maker as find_maker
from jax2tf_bridge.to_tensorflow._graph_edits import find_node_dtype as find_node_dtype
from jax2tf_bridge.to_tensorflow._graph_edits import list_arguments as list_arguments
from jax2tf_bridge.to_tensorflow._graph_edits import list_bodies as list_bodies
from jax2tf_bridge.to_tensorflow._graph_edits import make_form as make_form
from jax2tf_bridge.to_tensorflow._graph_edits import remove_operations as remove_operations
from jax2tf_bridge.to_tensorflow._graph_edits import (
    replace_call_modules as replace_call_modules,
)
from jax2tf_bridge.to_tensorflow._graph_edits import run_node as run_node
from jax2tf_bridge.to_tensorflow._op import call_operations as call_operations
from jax2tf_bridge.to_tensorflow._op import check_function as check_function
from jax2tf_bridge.to_tensorflow._shape_guards import Guards as Guards
from jax2tf_bridge.to_tensorflow._shape_guards import format_known_shape as format_known_shape
from jax2tf_bridge.to_tensorflow._shapes import check_shapes as check_shapes
from jax2tf_bridge.to_tensorflow._sharding import (
    split_to_logical_devices as split_to_logical_devices,
)
from jax2tf_bridge.to_tensorflow._tf_compat import find_op_definition as find_op_definition
from jax2tf_bridge.to_tensorflow._tf_compat import freeze as freeze
from jax2tf_bridge.to_tensorflow._tf_compat import (
    get_dynamic_update_slice as get_dynamic_update_slice,
)
from jax2tf_bridge.to_tensorflow._tf_compat import saved_model_message as saved_model_message
from jax2tf_bridge.to_tensorflow._tf_functions import TracedOnce as TracedOnce
from jax2tf_bridge.to_tensorflow._tf_functions import opaque_to_autograph as opaque_to_autograph

# TensorFlow's private names, for packages on higher floors.
tf_compat = _tf_compat

__all__ = ["to_tf"]
