"""Portable functions and their parts. Imports neither jax nor tensorflow.

`__all__` has the public names. The other names are for the other packages of the bridge.

>>> from jax2tf_bridge.portable import Aval
>>> str(Aval((2, 3), "float32"))
'float32[2,3]'
"""

from jax2tf_bridge.portable._as_portable import HoldsPortable as HoldsPortable
from jax2tf_bridge.portable._as_portable import as_portable_function as as_portable_function
from jax2tf_bridge.portable._as_portable import unwrap_portable as unwrap_portable
from jax2tf_bridge.portable._aval import Aval, LiftedConstant, Port
from jax2tf_bridge.portable._aval import MemorySpace as MemorySpace
from jax2tf_bridge.portable._aval import array_size as array_size
from jax2tf_bridge.portable._call import CallStructure as CallStructure
from jax2tf_bridge.portable._called_function import call_avals as call_avals
from jax2tf_bridge.portable._called_function import call_problem as call_problem
from jax2tf_bridge.portable._called_function import make_called_function as make_called_function
from jax2tf_bridge.portable._called_function import read_tensor_type as read_tensor_type
from jax2tf_bridge.portable._consistency import check_function_types as check_function_types
from jax2tf_bridge.portable._consistency import check_types as check_types
from jax2tf_bridge.portable._consistency import function_problem as function_problem
from jax2tf_bridge.portable._consistency import is_digest as is_digest
from jax2tf_bridge.portable._consistency import vjp_problem as vjp_problem
from jax2tf_bridge.portable._custom_calls import has_kernel as has_kernel
from jax2tf_bridge.portable._custom_calls import no_handler_text as no_handler_text
from jax2tf_bridge.portable._custom_calls import releases_that_run as releases_that_run
from jax2tf_bridge.portable._custom_calls import unhandled_anywhere as unhandled_anywhere
from jax2tf_bridge.portable._custom_calls import unhandled_calls as unhandled_calls
from jax2tf_bridge.portable._dtypes import ALL_DTYPES as ALL_DTYPES
from jax2tf_bridge.portable._dtypes import DTYPES_BY_ELEMENT_TYPE as DTYPES_BY_ELEMENT_TYPE
from jax2tf_bridge.portable._dtypes import ELEMENT_TYPES as ELEMENT_TYPES
from jax2tf_bridge.portable._dtypes import KEYS as KEYS
from jax2tf_bridge.portable._dtypes import NARROW_FLOATS as NARROW_FLOATS
from jax2tf_bridge.portable._dtypes import NEED_X64 as NEED_X64
from jax2tf_bridge.portable._dtypes import WIDENED as WIDENED
from jax2tf_bridge.portable._dtypes import DType as DType
from jax2tf_bridge.portable._dtypes import Kind as Kind
from jax2tf_bridge.portable._dtypes import dtype_holds as dtype_holds
from jax2tf_bridge.portable._dtypes import find_dtype as find_dtype
from jax2tf_bridge.portable._dtypes import is_differentiable as is_differentiable
from jax2tf_bridge.portable._dtypes import is_integer as is_integer
from jax2tf_bridge.portable._dtypes import kind_of as kind_of
from jax2tf_bridge.portable._expressible import check_expressible as check_expressible
from jax2tf_bridge.portable._keys_in_weights import key_paths as key_paths
from jax2tf_bridge.portable._keys_in_weights import keys_text as keys_text
from jax2tf_bridge.portable._module import CUSTOM_CALL as CUSTOM_CALL
from jax2tf_bridge.portable._module import GraphFunction as GraphFunction
from jax2tf_bridge.portable._module import Module
from jax2tf_bridge.portable._plausible_inputs import DRAWS as DRAWS
from jax2tf_bridge.portable._plausible_inputs import FULL_DRAWS as FULL_DRAWS
from jax2tf_bridge.portable._plausible_inputs import Draw as Draw
from jax2tf_bridge.portable._plausible_inputs import PlausibleInputs as PlausibleInputs
from jax2tf_bridge.portable._plausible_inputs import batch_variable as batch_variable
from jax2tf_bridge.portable._plausible_inputs import variables_in as variables_in
from jax2tf_bridge.portable._polymorphic_shapes import AUTO, PolyShape
from jax2tf_bridge.portable._polymorphic_shapes import Auto as Auto
from jax2tf_bridge.portable._portable_function import (
    Gradient,
    GradientOnDemand,
    NoGradient,
    PortableFunction,
    StoredGradient,
)
from jax2tf_bridge.portable._portable_function import are_types_checked as are_types_checked
from jax2tf_bridge.portable._portable_function import mark_types_checked as mark_types_checked
from jax2tf_bridge.portable._safety_checks import NOT_STRICT as NOT_STRICT
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
from jax2tf_bridge.portable._safety_checks import canonical_checks as canonical_checks
from jax2tf_bridge.portable._safety_checks import is_vouched as is_vouched
from jax2tf_bridge.portable._safety_checks import shared_checks as shared_checks
from jax2tf_bridge.portable._sharding import CALLS_OF_PARTS as CALLS_OF_PARTS
from jax2tf_bridge.portable._sharding import AbstractDevice, AbstractMesh, Sharding
from jax2tf_bridge.portable._sharding import AxisType as AxisType
from jax2tf_bridge.portable._symbolic_texts import MAX_TEXT as MAX_TEXT
from jax2tf_bridge.portable._symbolic_texts import Comparisons as Comparisons
from jax2tf_bridge.portable._symbolic_texts import has_own_parentheses as has_own_parentheses
from jax2tf_bridge.portable._target import NO_XLA as NO_XLA
from jax2tf_bridge.portable._target import PLATFORMS as PLATFORMS
from jax2tf_bridge.portable._target import Target
from jax2tf_bridge.portable._target import as_target as as_target
from jax2tf_bridge.portable._target import canonical_platforms as canonical_platforms
from jax2tf_bridge.portable._tensorflow_operations import find_inexpressible as find_inexpressible
from jax2tf_bridge.portable._tensorflow_operations import (
    iterate_inexpressible as iterate_inexpressible,
)
from jax2tf_bridge.portable._tensorflow_releases import TENSORFLOW_RELEASES as TENSORFLOW_RELEASES
from jax2tf_bridge.portable._tensorflow_releases import Version as Version
from jax2tf_bridge.portable._tensorflow_releases import tensorflow_releases as tensorflow_releases
from jax2tf_bridge.portable._tensorflow_releases import version_text as version_text
from jax2tf_bridge.portable._tf_compat import installed_versions as installed_versions
from jax2tf_bridge.portable._tolerances import tolerance_of as tolerance_of
from jax2tf_bridge.portable._tree_spec import LEAF as LEAF
from jax2tf_bridge.portable._tree_spec import NodeCodec as NodeCodec
from jax2tf_bridge.portable._tree_spec import NodeKind as NodeKind
from jax2tf_bridge.portable._tree_spec import StoredType as StoredType
from jax2tf_bridge.portable._tree_spec import TreeSpec
from jax2tf_bridge.portable._tree_spec import flat_call as flat_call
from jax2tf_bridge.portable._tree_spec import flat_names as flat_names
from jax2tf_bridge.portable._tree_spec import flat_tuple as flat_tuple
from jax2tf_bridge.portable._without_xla import without_xla as without_xla

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
    "Target",
    "TreeSpec",
]
