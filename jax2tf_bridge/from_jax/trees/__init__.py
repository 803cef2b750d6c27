"""Converts between JAX's pytrees and the structures of portable functions."""

from jax2tf_bridge.from_jax.trees._tree_specs import (
    can_import_jax2tf,
    jax_structures,
    rebuilt,
    register_wrappers,
    spec_of_structure,
    tree_spec,
)

__all__ = [
    "can_import_jax2tf",
    "jax_structures",
    "rebuilt",
    "register_wrappers",
    "spec_of_structure",
    "tree_spec",
]
