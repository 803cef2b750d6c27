"""once_per_object(): what is made of an object once, for as long as the object lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

K = TypeVar("K")
V = TypeVar("V")


def once_per_object(make: Callable[[K], V]) -> Callable[[K], V]:
    """Caches a function of one object, without keeping the object alive.

    The result must not refer to the object, which would then live as long as the process.

    >>> class Model: pass
    >>> @once_per_object
    ... def notes(model): return []
    >>> model = Model()
    >>> notes(model) is notes(model), notes(model) is notes(Model())
    (True, False)
    """
    made: WeakKeyDictionary[K, V] = WeakKeyDictionary()
    lock = threading.RLock()

    def get(key: K) -> V:
        with lock:
            if key not in made:
                made[key] = make(key)
            return made[key]

    return get
