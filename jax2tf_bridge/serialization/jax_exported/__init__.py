"""Reads and writes the file format of jax.export, without JAX."""

from jax2tf_bridge.serialization.jax_exported._modules import (
    read_asserted_constraints as read_asserted_constraints,
)
from jax2tf_bridge.serialization.jax_exported._read import (
    make_argument_names as make_argument_names,
)
from jax2tf_bridge.serialization.jax_exported._read import read_exported as read_exported
from jax2tf_bridge.serialization.jax_exported._schema import DTYPES as DTYPES
from jax2tf_bridge.serialization.jax_exported._schema import ExportedField as ExportedField
from jax2tf_bridge.serialization.jax_exported._schema import TreeField as TreeField
from jax2tf_bridge.serialization.jax_exported._shardings import REPLICATED as REPLICATED
from jax2tf_bridge.serialization.jax_exported._shardings import is_replicated as is_replicated
from jax2tf_bridge.serialization.jax_exported._shardings import (
    replace_device_grid as replace_device_grid,
)
from jax2tf_bridge.serialization.jax_exported._shardings import (
    to_named_sharding as to_named_sharding,
)
from jax2tf_bridge.serialization.jax_exported._shardings import to_op_sharding as to_op_sharding
from jax2tf_bridge.serialization.jax_exported._write import WritableFunction as WritableFunction
from jax2tf_bridge.serialization.jax_exported._write import (
    check_writable_chain as check_writable_chain,
)
from jax2tf_bridge.serialization.jax_exported._write import write_exported as write_exported
from jax2tf_bridge.serialization.jax_exported._write import write_structure as write_structure
