"""TensorFlow's wrappers around containers, as pytrees of JAX's."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax

_IMPORTING = threading.Lock()


@functools.cache
def register_wrappers(
    list_type: type | None, tuple_type: type | None, dict_type: type | None
) -> None:
    """Has jax.tree see through the wrappers in which a tf.Module keeps lists, tuples and dicts.

    The types are None in a TensorFlow that lacks them. As in jax2tf, a list or tuple is given back
    plain, and a dict as the wrapper.

    jax2tf registers them when it is imported, and fails where somebody else did. So that it can be
    imported later, it is imported here, where this JAX has one.
    """
    can_import_jax2tf()
    if list_type is not None:
        _register(list_type, lambda xs: (tuple(xs), None), lambda _, xs: list(xs))
    if tuple_type is not None:
        _register(tuple_type, lambda xs: (tuple(xs), None), lambda _, xs: tuple(xs))
    if dict_type is not None:
        _register(
            dict_type,
            lambda xs: (tuple(xs.values()), tuple(xs)),
            lambda keys, xs: dict_type(zip(keys, xs, strict=True)),
        )


def _register(
    kind: type, flatten: Callable[[Any], tuple[Any, Any]], unflatten: Callable[[Any, Any], Any]
) -> None:
    with contextlib.suppress(ValueError):  # it is registered
        jax.tree_util.register_pytree_node(kind, flatten, unflatten)


def can_import_jax2tf() -> bool:
    """Imports jax2tf without its warning; returns whether this JAX has one that works."""
    with _IMPORTING, warnings.catch_warnings():  # whose filters all threads share
        warnings.simplefilter("ignore", DeprecationWarning)
        before = set(sys.modules)
        try:
            importlib.import_module("jax.experimental.jax2tf")
        except Exception:  # of any type: it uses what a JAX or TensorFlow may no longer have
            # Python leaves the parts that were imported before one failed.
            for name in {*sys.modules} - before:
                if name.startswith("jax.experimental.jax2tf."):
                    del sys.modules[name]
            return False
    return True
