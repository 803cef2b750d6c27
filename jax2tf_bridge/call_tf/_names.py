"""What messages call a TensorFlow function and its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import tensorflow as tf


def function_name(f: Any) -> str:
    """What a user would call it."""
    if isinstance(f, tf.types.experimental.ConcreteFunction):
        name = f.name
        return name.decode() if isinstance(name, bytes) else str(name)
    name = getattr(f, "__name__", None) or getattr(f, "name", None)
    return name if isinstance(name, str) and name else type(f).__name__


def argument_labels(f: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> list[str]:
    """For each leaf of the arguments how a user would write it, as "params['w']"."""
    names = _parameters(f)
    labels = []
    for path, _ in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        first, rest = path[1], jax.tree_util.keystr(path[2:])
        if isinstance(first, jax.tree_util.DictKey):
            labels.append(f"{first.key}{rest}")
        else:
            i = getattr(first, "idx", 0)
            labels.append(f"{names[i] if i < len(names) else f'argument {i}'}{rest}")
    return labels


def _parameters(f: Callable[..., Any]) -> list[str]:
    """The names of the positional parameters, as far as they are known."""
    function = getattr(f, "python_function", f)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]
