"""Types that have a state: who makes a state dict of their objects, and who restores them.

Dicts, lists, tuples, named tuples and jax.tree_util.Partial are in _containers; what is known to
Flax alone is in _flax_types.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.weights._containers import is_built_in
from jax2tf_bridge.weights._flax_types import is_registered_with_flax

T = TypeVar("T")


@dataclass(frozen=True)
class Handlers:
    """What was registered for one type; see register_serialization_state."""

    to_state: Callable[[Any], Any]
    from_state: Callable[[Any, Any], Any]


class _Registry:
    """The registrations of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[type, Handlers] = {}

    def get(self, ty: type) -> Handlers | None:
        """What is registered for a type."""
        return self._handlers.get(ty)

    def add(self, ty: type, handlers: Handlers, override: bool) -> None:
        """Registers a type; see register_serialization_state."""
        with self._lock:
            if not override and (ty in self._handlers or is_built_in(ty)):
                raise SerializationError(
                    f"{_name(ty)} has functions for its state already"
                    f"{' by itself' if ty not in self._handlers else ''}. Give override=True to "
                    "replace them, here and for all that use them, or register the type once."
                )
            self._handlers[ty] = handlers

    def __len__(self) -> int:
        return len(self._handlers)


def register_serialization_state(
    ty: type[T],
    ty_to_state_dict: Callable[[T], Any],
    ty_from_state_dict: Callable[[T, Any], T],
    override: bool = False,
) -> None:
    """Registers a type, so that its objects have a state of their own in state dicts.

    It counts for objects of this very type, not for those of subclasses.

    Args:
      ty: the type.  Not a named tuple: those are always stored by their fields.
      ty_to_state_dict: takes an object, gives its state: as a rule a dict, with text as keys and
        to_state_dict(...) of each part as values.
      ty_from_state_dict: takes an object, of which what is not in the state is kept, and a state;
        gives the object with that state.  It calls from_state_dict(part, state[key], name=key)
        for each part.  current_path() says for its messages where it stands.
      override: whether to replace what is registered.

    Raises:
      SerializationError: a ValueError; the type has handlers already, is a named tuple, or is no
        type.

    >>> class Counter:
    ...     def __init__(self, count): self.count = count
    >>> register_serialization_state(
    ...     Counter,
    ...     lambda counter: {"count": counter.count},
    ...     lambda counter, state: Counter(state["count"]),
    ... )
    >>> from jax2tf_bridge.weights import to_state_dict
    >>> to_state_dict([Counter(3)])
    {'0': {'count': 3}}
    """
    if not isinstance(ty, type):
        raise SerializationError(
            f"register_serialization_state takes a type. Got: {ty!r} of type {type(ty).__name__}"
        )
    if issubclass(ty, tuple) and hasattr(ty, "_fields"):
        raise SerializationError(
            f"{_name(ty)} is a named tuple: those are stored by their fields always, as Flax does "
            "it, and functions registered for them would never be called. Leave this out, or make "
            "it another class."
        )
    for what, function in (("to", ty_to_state_dict), ("from", ty_from_state_dict)):
        if not callable(function):
            raise SerializationError(
                f"ty_{what}_state_dict of {_name(ty)} must be a function. Got: {function!r}"
            )
    _REGISTRY.add(ty, Handlers(ty_to_state_dict, ty_from_state_dict), override)


def is_serializable(target: Any) -> bool:
    """Whether a type has a state: it is registered, here or with Flax, or is built in.

    Args:
      target: a type, or an object, whose type is meant.

    Returns:
      True for dict, list, tuple, jax.tree_util.Partial and registered types; False for what is a
      leaf of state dicts, such as arrays and subclasses of dict, and, as in Flax, for named
      tuples, which need no registration.

    >>> import numpy as np
    >>> is_serializable({"a": 1}), is_serializable(tuple), is_serializable(np.ones(3))
    (True, True, False)
    """
    ty = target if isinstance(target, type) else type(target)
    return is_built_in(ty) or _REGISTRY.get(ty) is not None or is_registered_with_flax(ty)


def handlers_of(target: Any) -> Handlers | None:
    """What was registered for the type of an object; None if nothing was."""
    return _REGISTRY.get(type(target))


def has_registrations() -> bool:
    """Whether any type was registered."""
    return len(_REGISTRY) > 0


def _name(ty: type) -> str:
    return f"{ty.__module__}.{ty.__qualname__}"


_REGISTRY = _Registry()
