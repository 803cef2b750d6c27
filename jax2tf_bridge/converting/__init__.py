"""Both halves in one process: convert(), save(), publish().

Names are imported when they are first used: `convert` needs JAX and TensorFlow, `save` and
`publish` need JAX for JAX functions only, and `serialize_exported` needs neither.
"""

from typing import TYPE_CHECKING

from jax2tf_bridge._lazy_names import make_lazy_getattr

if TYPE_CHECKING:
    from jax2tf_bridge.converting._arguments import dtype_of_val
    from jax2tf_bridge.converting._convert import convert
    from jax2tf_bridge.converting._operations_graph import (
        copy_as_operations,
        edit_graph,
        make_operations_graph,
    )
    from jax2tf_bridge.converting._publish import publish
    from jax2tf_bridge.converting._save import save
    from jax2tf_bridge.converting._serialize_exported import serialize_exported
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "convert": "_convert",
            "copy_as_operations": "_operations_graph",
            "dtype_of_val": "_arguments",
            "edit_graph": "_operations_graph",
            "make_operations_graph": "_operations_graph",
            "publish": "_publish",
            "save": "_save",
            "serialize_exported": "_serialize_exported",
        },
    )

__all__ = [
    "convert",
    "copy_as_operations",
    "dtype_of_val",
    "edit_graph",
    "make_operations_graph",
    "publish",
    "save",
    "serialize_exported",
]
