"""The names of jax.export, for functions that are exported by the bridge.

Programs that were written for `jax.export` can use `from jax2tf_bridge import jax_export as export`
instead. `export` then returns an Exported that holds a portable function. docs/jax-export.md lists
the differences. This package also has the names of the older `jax.experimental.export`.
"""

from typing import TYPE_CHECKING, Any

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("jax2tf_bridge.jax_export"):
    import jax as _jax

from jax.export import SymbolicScope, default_export_platform, symbolic_args_specs, symbolic_shape

from jax2tf_bridge.jax_export._export import (
    Exported,
    deserialize,
    export,
    is_symbolic_dim,
    maximum_supported_calling_convention_version,
    minimum_supported_calling_convention_version,
    symbolic_dim_bounds,
)
from jax2tf_bridge.jax_export._export import JaxDisabledSafetyCheck as DisabledSafetyCheck
from jax2tf_bridge.jax_export._older import (
    args_specs,
    call,
    call_exported,
    default_lowering_platform,
    maximum_supported_serialization_version,
    minimum_supported_serialization_version,
    poly_spec,
    poly_specs,
    serialize,
    shape_and_dtype_jax_array,
)
from jax2tf_bridge.serialization import (
    register_namedtuple_serialization,
    register_pytree_node_serialization,
)

__all__ = [
    "DisabledSafetyCheck",
    "Exported",
    "SymbolicScope",
    "args_specs",
    "call",
    "call_exported",
    "default_export_platform",
    "default_lowering_platform",
    "deserialize",
    "export",
    "is_symbolic_dim",
    "maximum_supported_calling_convention_version",
    "maximum_supported_serialization_version",
    "minimum_supported_calling_convention_version",
    "minimum_supported_serialization_version",
    "poly_spec",
    "poly_specs",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "serialize",
    "shape_and_dtype_jax_array",
    "symbolic_args_specs",
    "symbolic_dim_bounds",
    "symbolic_shape",
]


if not TYPE_CHECKING:  # otherwise mypy would accept misspelt names

    def __getattr__(name: str) -> Any:
        text = f"module {__name__!r} has no attribute {name!r}"
        if not name.startswith("_") and hasattr(_jax.export, name):
            text += (
                f". jax.export of JAX {_jax.__version__} has it, but this version of the bridge "
                "does not. Use JAX's, and pass it to_exported(portable) where it takes an Exported."
            )
        raise AttributeError(text, name=name)
