"""Errors about names that jax.export has in some release and this package has not."""

from __future__ import annotations

import jax
from jax import export as jax_export


def missing_name(module: str, name: str) -> AttributeError:
    """Makes the error about a name that `module` does not have."""
    text = f"module {module!r} has no attribute {name!r}"
    if not name.startswith("_") and hasattr(jax_export, name):
        text += (
            f". jax.export of JAX {jax.__version__} has one, which this version of the bridge does "
            "not know: use JAX's own, with to_exported(record) where it takes an Exported."
        )
    return AttributeError(text, name=name)
