"""Runs ONNX models in ONNX Runtime."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.consumers.exchange import Array

pytest.importorskip("onnx", reason="onnx is not installed in this environment")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")

import onnxruntime


@functools.cache
def _options() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    options.intra_op_num_threads = 1
    return options


def session(model: bytes | Any) -> Any:
    """Loads a model, from its bytes or its path."""
    return onnxruntime.InferenceSession(
        model if isinstance(model, bytes) else str(model),
        _options(),
        providers=["CPUExecutionProvider"],
    )


def run(model: bytes | Path | Any, feed: Mapping[str, Any]) -> dict[str, Array]:
    """Runs a model once; returns its outputs by name."""
    loaded = session(model)
    names = [output.name for output in loaded.get_outputs()]
    arrays = {name: np.asarray(value) for name, value in feed.items()}
    return dict(zip(names, loaded.run(names, arrays), strict=True))


def parts(array: Array) -> Array:
    """Returns complex numbers as their parts along a new last axis, other arrays as they are."""
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


__all__: Sequence[str] = ["parts", "run", "session"]
