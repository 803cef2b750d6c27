"""Stores float32 weights in fewer bits; TensorFlow.js makes float32 of them when it loads them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

Quantize: TypeAlias = Literal["float16", "uint16", "uint8"]


def quantize_array(
    array: np.ndarray, quantize: Quantize
) -> tuple[np.ndarray, dict[str, Any]] | None:
    """Returns a float32 array in fewer bits, and how to restore it: `min + scale * integer`.

    0 stays exact. Returns None for arrays that are not finite in fewer bits.
    """
    restoring = {"dtype": quantize, "original_dtype": "float32"}
    if quantize == "float16":
        with np.errstate(over="ignore"):
            halves = array.astype(np.float16)
        return (halves, restoring) if np.isfinite(halves).all() else None
    if not np.isfinite(array).all():
        return None
    steps = int(np.iinfo(quantize).max)
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    scale = (high - low) / steps or 1.0
    if low < 0 < high:
        low = -scale * round(-low / scale)
    integers = np.clip(np.round((array - low) / scale), 0, steps).astype(quantize)
    return integers, {**restoring, "min": low, "scale": scale}
