"""StableHLO modules in memory: constants, shardings, custom calls, versions."""

from jax2tf_bridge.from_jax.stablehlo._constants import MIN_LIFTED_BYTES as MIN_LIFTED_BYTES
from jax2tf_bridge.from_jax.stablehlo._constants import PLACEHOLDER_TARGET as PLACEHOLDER_TARGET
from jax2tf_bridge.from_jax.stablehlo._constants import ConstantPool as ConstantPool
from jax2tf_bridge.from_jax.stablehlo._constants import TakenArrays as TakenArrays
from jax2tf_bridge.from_jax.stablehlo._module import ModuleOperation as ModuleOperation
from jax2tf_bridge.from_jax.stablehlo._module import StableHloModule as StableHloModule
from jax2tf_bridge.from_jax.stablehlo._operations import attribute as attribute
from jax2tf_bridge.from_jax.stablehlo._operations import attributes_of as attributes_of
from jax2tf_bridge.from_jax.stablehlo._operations import find_main as find_main
from jax2tf_bridge.from_jax.stablehlo._operations import function_type as function_type
from jax2tf_bridge.from_jax.stablehlo._operations import make_int_attribute as make_int_attribute
from jax2tf_bridge.from_jax.stablehlo._operations import (
    replace_by_operation as replace_by_operation,
)
from jax2tf_bridge.from_jax.stablehlo._operations import symbol_name as symbol_name
from jax2tf_bridge.from_jax.stablehlo._operations import walk_operations as walk_operations
from jax2tf_bridge.from_jax.stablehlo._sharding import MANUAL_COMPUTATION as MANUAL_COMPUTATION
from jax2tf_bridge.from_jax.stablehlo._sharding import (
    restore_manual_computations as restore_manual_computations,
)
from jax2tf_bridge.from_jax.stablehlo._stored_modules import (
    WIDE_ELEMENT_TYPES as WIDE_ELEMENT_TYPES,
)
from jax2tf_bridge.from_jax.stablehlo._stored_modules import check_one_device as check_one_device
from jax2tf_bridge.from_jax.stablehlo._stored_modules import (
    check_stored_types as check_stored_types,
)
from jax2tf_bridge.from_jax.stablehlo._stored_modules import (
    convert_to_jax_form as convert_to_jax_form,
)
from jax2tf_bridge.from_jax.stablehlo._stored_modules import (
    embed_lifted_constants as embed_lifted_constants,
)
from jax2tf_bridge.from_jax.stablehlo._stored_modules import (
    make_portable_artifact as make_portable_artifact,
)
from jax2tf_bridge.from_jax.stablehlo._stored_modules import (
    mark_for_refinement as mark_for_refinement,
)
from jax2tf_bridge.from_jax.stablehlo._stored_modules import (
    read_stablehlo_module as read_stablehlo_module,
)
from jax2tf_bridge.from_jax.stablehlo._stored_modules import retarget_module as retarget_module
from jax2tf_bridge.from_jax.stablehlo._stored_modules import (
    retype_narrow_values as retype_narrow_values,
)
from jax2tf_bridge.from_jax.stablehlo._stored_modules import round_results as round_results
from jax2tf_bridge.from_jax.stablehlo._stored_modules import write_texts as write_texts
