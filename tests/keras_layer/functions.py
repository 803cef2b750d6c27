"""JAX functions that the tests make layers of, with their weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

X = np.random.default_rng(1).standard_normal((6, 4), np.float32)
Y = np.random.default_rng(2).standard_normal((6, 2), np.float32)
TABLE = np.random.default_rng(3).standard_normal((64, 64), np.float32)
"""Large enough to be lifted out of a module."""


def dense_params() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "dense": {
            "kernel": random.standard_normal((4, 3), np.float32),
            "bias": np.zeros(3, np.float32),
        },
        "out": [random.standard_normal((3, 2), np.float32)],
    }


def dense(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["dense"]["kernel"] + params["dense"]["bias"])
    return hidden @ params["out"][0]


def norm_params() -> dict[str, Any]:
    """Returns weights, and statistics as Flax keeps them."""
    random = np.random.default_rng(0)
    return {
        "batch_stats": {"mean": np.full(4, 0.5, np.float32)},
        "params": {"kernel": random.standard_normal((4, 2), np.float32)},
    }


def norm(variables: Any, x: Any, rng: Any, training: bool) -> Any:
    """Subtracts a running mean, or in training that of the batch, and drops some."""
    kernel = variables["params"]["kernel"] + jnp.asarray(TABLE)[:4, :2]
    mean = variables["batch_stats"]["mean"]
    if not training:
        return {"y": (x - mean) @ kernel}
    now = x.mean(0)
    kept = jax.random.bernoulli(rng, 0.5, x.shape)
    outputs = {"y": jnp.where(kept, x - now, 0.0) @ kernel}
    return outputs, {"batch_stats": {"mean": 0.9 * mean + 0.1 * now}}


def pooled(params: Any, ids: Any, mask: Any) -> Any:
    """Averages embeddings where a mask is true."""
    weights = mask[..., None].astype(np.float32)
    return (params["embedding"][ids] * weights).sum(1) / weights.sum(1)


def pooled_params() -> dict[str, Any]:
    return {"embedding": np.random.default_rng(0).standard_normal((11, 5), np.float32)}
