"""Runs LiteRT models in TensorFlow's interpreter."""

from __future__ import annotations

import os
import warnings
from typing import Any

import tensorflow as tf


def interpreter(path: str | os.PathLike[str]) -> Any:
    """Loads a model, without TensorFlow's advice to take ai-edge-litert, which slow tests do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*Warning: tf.lite.Interpreter is deprecated")
        return tf.lite.Interpreter(str(path))
