"""A layer with weights, an open batch and a keyword."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

X = np.ones((2, 3), np.float32)
PARAMS = {"w": np.ones((3, 4), np.float32), "b": np.zeros((4,), np.float32)}


def dense(params: Any, x: Any, *, scale: Any) -> Any:
    return {"y": (x @ params["w"] + params["b"]) * scale, "n": x.shape[0] * jnp.int32(1)}
