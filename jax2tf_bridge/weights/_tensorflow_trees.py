"""Converts variables and containers of models that TensorFlow loaded to plain trees.

TensorFlow is not imported here: its objects exist only if it is imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax2tf_bridge.weights._paths import is_flat, unflatten_state

_MAX_DEPTH = 64
"""Maximum nesting depth of the search; objects that contain themselves exceed it."""


def without_tensorflow(tree: Any) -> Any:
    """Replaces TensorFlow's variables and tensors by arrays, and its containers by Python's.

    Arrays share the memory of variables on the CPU. A flat mapping from paths to variables, such as
    `params` of a loaded model, becomes nested. A mapping of other values stays flat, because Flax
    does not interpret a "/" in a key.
    """
    tf = sys.modules.get("tensorflow")
    if not hasattr(tf, "Variable") or not hasattr(tf, "Tensor"):
        return tree
    plain = _plain(tree, tf, 0)
    if isinstance(plain, dict) and is_flat(plain) and _has_variables(tree, tf):
        return unflatten_state(plain)
    return plain


def _has_variables(tree: Mapping[Any, Any], tf: Any) -> bool:
    return any(isinstance(value, (tf.Variable, tf.Tensor)) for value in tree.values())


def _plain(value: Any, tf: Any, depth: int) -> Any:
    if isinstance(value, (tf.Variable, tf.Tensor)):
        return np.asarray(tf.convert_to_tensor(value))
    kind = type(value)
    # TensorFlow wraps dicts, lists and tuples in tf.Module and loaded objects.
    is_wrapper = kind.__module__.startswith("tensorflow.")
    if depth > _MAX_DEPTH:
        return value
    if kind is dict or (is_wrapper and isinstance(value, Mapping)):
        return {key: _plain(child, tf, depth + 1) for key, child in value.items()}
    if kind is list or (is_wrapper and isinstance(value, list)):
        return [_plain(child, tf, depth + 1) for child in value]
    if kind is tuple or (is_wrapper and isinstance(value, tuple)):
        return tuple(_plain(child, tf, depth + 1) for child in value)
    return value
