"""Table of real models that are exported, saved, and served where only TensorFlow is."""

from __future__ import annotations

from tests.models import keras_models, linen_images, linen_sequences, nnx_models, plain_jax
from tests.models.model import Model

_MODULES = (linen_images, linen_sequences, nnx_models, plain_jax, keras_models)

MODELS: tuple[Model, ...] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, Model)
)
"""Every model, in the order in which the modules have them."""

QUICK: tuple[Model, ...] = tuple(m for m in MODELS if m.quick)
"""Those that the fast tests take."""


def by_name(name: str) -> Model:
    """Finds the model of that name.

    Raises:
      KeyError: there is none; the names are listed.
    """
    found = {m.name: m for m in MODELS}
    if name not in found:
        raise KeyError(f"no model {name!r} among {', '.join(found)}")
    return found[name]
