"""Portable functions and their parts. Imports neither jax nor tensorflow.

`__all__` has the public names. The other names are for the other packages of the bridge.

>>> from jax2tf_bridge.portable import Aval
>>> str(Aval((2, 3), "float32"))
'float32[2,3]'
"""

from jax2tf_bridge.portable._aval import MAX_REQUEST_BYTES as MAX_REQUEST_BYTES
from jax2tf_bridge.portable._aval import SHARD_MAP_CALLS as SHARD_MAP_CALLS
from jax2tf_bridge.portable._aval import (
    AbstractDevice,
    AbstractMesh,
    Aval,
    LiftedConstant,
    Port,
    Sharding,
)
from jax2tf_bridge.portable._aval import AxisType as AxisType
from jax2tf_bridge.portable._aval import MemorySpace as MemorySpace
from jax2tf_bridge.portable._aval import array_size as array_size
from jax2tf_bridge.portable._aval import can_become as can_become
from jax2tf_bridge.portable._aval import can_hold_number as can_hold_number
from jax2tf_bridge.portable._aval import count_bytes as count_bytes
from jax2tf_bridge.portable._aval import dtype_name as dtype_name
from jax2tf_bridge.portable._aval import is_accepted_as as is_accepted_as
from jax2tf_bridge.portable._aval import variables_in as variables_in
from jax2tf_bridge.portable._called_function import find_call_problem as find_call_problem
from jax2tf_bridge.portable._called_function import make_call_avals as make_call_avals
from jax2tf_bridge.portable._called_function import make_called_function as make_called_function
from jax2tf_bridge.portable._called_function import name_open_sizes as name_open_sizes
from jax2tf_bridge.portable._called_function import read_tensor_type as read_tensor_type
from jax2tf_bridge.portable._consistency import MAX_TEXT as MAX_TEXT
from jax2tf_bridge.portable._consistency import ComparisonParser as ComparisonParser
from jax2tf_bridge.portable._consistency import check_function_types as check_function_types
from jax2tf_bridge.portable._consistency import check_types as check_types
from jax2tf_bridge.portable._consistency import find_function_problem as find_function_problem
from jax2tf_bridge.portable._consistency import find_vjp_problem as find_vjp_problem
from jax2tf_bridge.portable._consistency import has_own_parentheses as has_own_parentheses
from jax2tf_bridge.portable._consistency import is_digest as is_digest
from jax2tf_bridge.portable._consistency import list_main_avals as list_main_avals
from jax2tf_bridge.portable._gradient import Gradient, GradientOnDemand, NoGradient, StoredGradient
from jax2tf_bridge.portable._module import CALL_TF_TARGET as CALL_TF_TARGET
from jax2tf_bridge.portable._module import NOT_STRICT as NOT_STRICT
from jax2tf_bridge.portable._module import DisabledSafetyCheck, Module
from jax2tf_bridge.portable._module import GraphFunction as GraphFunction
from jax2tf_bridge.portable._module import as_safety_checks as as_safety_checks
from jax2tf_bridge.portable._module import drop_own_checks as drop_own_checks
from jax2tf_bridge.portable._module import find_releases_for as find_releases_for
from jax2tf_bridge.portable._module import find_unhandled_calls as find_unhandled_calls
from jax2tf_bridge.portable._module import is_vouched as is_vouched
from jax2tf_bridge.portable._module import no_handler_text as no_handler_text
from jax2tf_bridge.portable._polymorphic_shapes import AUTO, PolyShape
from jax2tf_bridge.portable._polymorphic_shapes import Auto as Auto
from jax2tf_bridge.portable._polymorphic_shapes import PolyConstraints as PolyConstraints
from jax2tf_bridge.portable._portable_function import HoldsPortable as HoldsPortable
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._portable_function import apply_target as apply_target
from jax2tf_bridge.portable._portable_function import are_types_checked as are_types_checked
from jax2tf_bridge.portable._portable_function import as_portable_function as as_portable_function
from jax2tf_bridge.portable._portable_function import find_prng_keys as find_prng_keys
from jax2tf_bridge.portable._portable_function import get_stored_functions as get_stored_functions
from jax2tf_bridge.portable._portable_function import is_vjp_order as is_vjp_order
from jax2tf_bridge.portable._portable_function import mark_types_checked as mark_types_checked
from jax2tf_bridge.portable._portable_function import prng_keys_text as prng_keys_text
from jax2tf_bridge.portable._portable_function import read_constant as read_constant
from jax2tf_bridge.portable._portable_function import unwrap_portable as unwrap_portable
from jax2tf_bridge.portable._portable_function import without_xla as without_xla
from jax2tf_bridge.portable._tree_spec import LEAF as LEAF
from jax2tf_bridge.portable._tree_spec import CallStructure as CallStructure
from jax2tf_bridge.portable._tree_spec import NodeCodec as NodeCodec
from jax2tf_bridge.portable._tree_spec import NodeKind as NodeKind
from jax2tf_bridge.portable._tree_spec import StoredType as StoredType
from jax2tf_bridge.portable._tree_spec import TreeSpec
from jax2tf_bridge.portable._tree_spec import flat_call as flat_call
from jax2tf_bridge.portable._tree_spec import flat_names as flat_names
from jax2tf_bridge.portable._tree_spec import flat_tuple as flat_tuple

__all__ = [
    "AUTO",
    "AbstractDevice",
    "AbstractMesh",
    "Aval",
    "DisabledSafetyCheck",
    "Gradient",
    "GradientOnDemand",
    "LiftedConstant",
    "Module",
    "NoGradient",
    "PolyShape",
    "Port",
    "PortableFunction",
    "Sharding",
    "StoredGradient",
    "TreeSpec",
]
