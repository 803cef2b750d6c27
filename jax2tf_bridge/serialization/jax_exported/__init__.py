"""Reads and writes the file format of jax.export, without JAX."""

from jax2tf_bridge.serialization.jax_exported._limits import WritableFunction
from jax2tf_bridge.serialization.jax_exported._modules import (
    read_asserted_constraints,
    read_stablehlo_version,
)
from jax2tf_bridge.serialization.jax_exported._read import make_argument_names, read_exported
from jax2tf_bridge.serialization.jax_exported._schema import DTYPES, ExportedField, TreeField
from jax2tf_bridge.serialization.jax_exported._shardings import (
    REPLICATED,
    is_replicated,
    replace_device_grid,
    to_named_sharding,
    to_op_sharding,
)
from jax2tf_bridge.serialization.jax_exported._write import (
    check_writable_chain,
    write_exported,
    write_structure,
)

__all__ = [
    "DTYPES",
    "REPLICATED",
    "ExportedField",
    "TreeField",
    "WritableFunction",
    "check_writable_chain",
    "is_replicated",
    "make_argument_names",
    "read_asserted_constraints",
    "read_exported",
    "read_stablehlo_version",
    "replace_device_grid",
    "to_named_sharding",
    "to_op_sharding",
    "write_exported",
    "write_structure",
]
