"""Private names of JAX that are needed to send functions and devices to another process.

Each name is looked up when it is needed. `SEAM` says what a JAX release without the name cannot do.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import jax
from jax.extend import backend as jax_backend

from jax2tf_bridge._utils import SeamName

_CACHE = SeamName(
    "jaxlib.weakref_lru_cache",
    "WeakrefLRUCache",
    "0.8 to 0.12",
    "functions that jax.checkpoint made in a script cannot be sent to another process",
)

SEAM: Sequence[SeamName] = (_CACHE,)

_ALL_DEVICES = "_get_all_devices"
"""Method of backends in JAX 0.8 to 0.12 that returns devices of all kinds.

Without it, only devices of the main kind of each backend are found.
"""


def list_default_backend_devices() -> list[jax.Device]:
    """Returns all devices of the default backend, of every kind and process."""
    return _list_devices(jax.local_devices()[0].client)


def list_all_backends_devices() -> list[jax.Device]:
    """Returns all devices of all backends, of every kind and process."""
    return [d for backend in jax_backend.backends().values() for d in _list_devices(backend)]


def _list_devices(backend: Any) -> list[jax.Device]:
    get_all_devices = getattr(backend, _ALL_DEVICES, None)
    return list(get_all_devices() if get_all_devices is not None else backend.devices())


def find_cached_function_name(obj: Any) -> tuple[str, str] | None:
    """Returns the module and name of a cached function of JAX; None for other objects.

    Pickle needs this search because these functions do not know their own names.
    """
    kind = _CACHE.get()
    if kind is None or not isinstance(obj, kind):
        return None
    return next(
        (
            (module.__name__, name)
            for module in _list_jax_modules()
            for name, value in vars(module).items()
            if value is obj
        ),
        None,
    )


def import_cached_function(module: str, name: str) -> Any:
    """Returns the function of JAX that `find_cached_function_name` found in another process."""
    return getattr(importlib.import_module(module), name)


def _list_jax_modules() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.startswith("jax.") and isinstance(module, ModuleType):
            yield module
