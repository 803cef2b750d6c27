"""StableHLO modules in memory: constants, shardings, custom calls, versions."""

from jax2tf_bridge.from_jax.stablehlo._constants import (
    MIN_LIFTED_BYTES,
    PLACEHOLDER_TARGET,
    ConstantPool,
    TakenArrays,
)
from jax2tf_bridge.from_jax.stablehlo._module import ModuleOperation, StableHloModule
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    attributes_of,
    find_main,
    function_type,
    make_int_attribute,
    replace_by_operation,
    symbol_name,
    walk_operations,
)
from jax2tf_bridge.from_jax.stablehlo._sharding import (
    MANUAL_COMPUTATION,
    restore_manual_computations,
)
from jax2tf_bridge.from_jax.stablehlo._stored_modules import (
    WIDE_ELEMENT_TYPES,
    check_one_device,
    check_stored_types,
    convert_to_jax_form,
    embed_lifted_constants,
    make_portable_artifact,
    mark_for_refinement,
    read_stablehlo_module,
    retarget_module,
    retype_narrow_values,
    write_texts,
)

__all__ = [
    "MANUAL_COMPUTATION",
    "MIN_LIFTED_BYTES",
    "PLACEHOLDER_TARGET",
    "WIDE_ELEMENT_TYPES",
    "ConstantPool",
    "ModuleOperation",
    "StableHloModule",
    "TakenArrays",
    "attribute",
    "attributes_of",
    "check_one_device",
    "check_stored_types",
    "convert_to_jax_form",
    "embed_lifted_constants",
    "find_main",
    "function_type",
    "make_int_attribute",
    "make_portable_artifact",
    "mark_for_refinement",
    "read_stablehlo_module",
    "replace_by_operation",
    "restore_manual_computations",
    "retarget_module",
    "retype_narrow_values",
    "symbol_name",
    "walk_operations",
    "write_texts",
]
