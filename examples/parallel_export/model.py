"""A small text classifier for any batch size and text length."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

VOCABULARY, WIDTH, CLASSES = 1000, 32, 4


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"embedding": (VOCABULARY, WIDTH), "mix": (WIDTH, WIDTH), "head": (WIDTH, CLASSES)}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def classify(params: dict[str, Any], tokens: Any) -> Any:
    """Maps tokens of (batch, length) to probabilities of (batch, CLASSES)."""
    x = params["embedding"][tokens]
    scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", x @ params["mix"], x))
    return jax.nn.softmax((scores @ x).mean(1) @ params["head"])


def embed(params: dict[str, Any], tokens: Any) -> Any:
    """Maps tokens of (batch, length) to vectors of (batch, WIDTH)."""
    return params["embedding"][tokens].mean(1)
