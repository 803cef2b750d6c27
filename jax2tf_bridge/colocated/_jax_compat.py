"""Private names of JAX that sending functions and devices to another process needs.

Each is looked up when it is needed, and a release without it works as `SEAM` says.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import jax
from jax.extend import backend as jax_backend

from jax2tf_bridge._utils._private_names import SeamName

_CACHE = SeamName(
    "jaxlib.weakref_lru_cache",
    "WeakrefLRUCache",
    "0.8 to 0.12",
    "functions that jax.checkpoint made in a script cannot be sent to another process",
)

SEAM: Sequence[SeamName] = (_CACHE,)

_ALL_DEVICES = "_get_all_devices"
"""A method of backends, in 0.8 to 0.12: the devices of every kind, where one backend has several;
without it only those of the backend's own kind are found."""


def default_backend_devices() -> list[jax.Device]:
    """Lists all devices of the backend that JAX computes on, of every kind and process."""
    return _devices_of(jax.local_devices()[0].client)


def all_backends_devices() -> list[jax.Device]:
    """Lists all devices of all backends, of every kind and process."""
    return [d for backend in jax_backend.backends().values() for d in _devices_of(backend)]


def _devices_of(backend: Any) -> list[jax.Device]:
    every = getattr(backend, _ALL_DEVICES, None)
    return list(every() if every is not None else backend.devices())


def cached_function_name(obj: Any) -> tuple[str, str] | None:
    """Finds the module and name under which JAX keeps a cached function of its own, or None.

    These functions have no name of their own to be pickled by.
    """
    kind = _CACHE.get()
    if kind is None or not isinstance(obj, kind):
        return None
    return next(
        (
            (module.__name__, name)
            for module in _jax_modules()
            for name, value in vars(module).items()
            if value is obj
        ),
        None,
    )


def cached_function(module: str, name: str) -> Any:
    """Returns the function of JAX that `cached_function_name` named in another process."""
    return getattr(importlib.import_module(module), name)


def _jax_modules() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.startswith("jax.") and isinstance(module, ModuleType):
            yield module
