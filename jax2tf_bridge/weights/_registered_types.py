"""Types that have a state of their own: registered here, or known to Flax alone.

flax.struct.dataclass, TrainState and FrozenDict are registered with Flax. Their objects exist only
where flax.serialization is imported, so it is looked up there, and never imported here. Dicts,
lists, tuples, named tuples and jax.tree_util.Partial are in _containers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from jax2tf_bridge.errors import SerializationError, StateDictError
from jax2tf_bridge.weights._containers import is_built_in, is_named_tuple
from jax2tf_bridge.weights._mismatches import describe, differences, mismatch
from jax2tf_bridge.weights._paths import path_below

T = TypeVar("T")
Keys: TypeAlias = tuple[str, ...]

# Raised by Flax's functions on a state that does not fit, depending on whose code meets it first.
_FLAX_ERRORS = (ValueError, LookupError, AttributeError, TypeError, AssertionError)


@dataclass(frozen=True)
class Handlers:
    """A pair of functions registered for a type; see register_serialization_state."""

    to_state: Callable[[Any], Any]
    from_state: Callable[[Any, Any], Any]


class _StateRegistry:
    """A process's registrations."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handlers: dict[type, Handlers] = {}


_REGISTRY = _StateRegistry()


def register_serialization_state(
    ty: type[T],
    ty_to_state_dict: Callable[[T], Any],
    ty_from_state_dict: Callable[[T, Any], T],
    override: bool = False,
) -> None:
    """Registers a type, so that its objects have a state of their own in state dicts.

    The registration does not cover subclasses.

    Args:
      ty: the type; not a named tuple, since those are always stored by their fields.
      ty_to_state_dict: returns an object's state: usually a dict with text as keys and
        to_state_dict(...) of each part as values.
      ty_from_state_dict: called with an object and a state; returns the object with that state.
        It keeps what is not in the state, and calls from_state_dict(part, state[key], name=key)
        for each part. Its messages can use current_path().
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
    name = f"{ty.__module__}.{ty.__qualname__}"
    if issubclass(ty, tuple) and hasattr(ty, "_fields"):
        raise SerializationError(
            f"{name} is a named tuple: those are always stored by their fields, as in Flax, and "
            "functions registered for them are never called. Remove the registration, or use "
            "another class."
        )
    for what, function in (("to", ty_to_state_dict), ("from", ty_from_state_dict)):
        if not callable(function):
            raise SerializationError(
                f"ty_{what}_state_dict of {name} must be a function. Got: {function!r}"
            )
    with _REGISTRY.lock:
        is_registered = ty in _REGISTRY.handlers
        if not override and (is_registered or is_built_in(ty)):
            raise SerializationError(
                f"{name} already has functions for its state{'' if is_registered else ', built in'}"
                ". Give override=True to replace them in the whole process, or register the type "
                "once."
            )
        _REGISTRY.handlers[ty] = Handlers(ty_to_state_dict, ty_from_state_dict)


def is_serializable(target: Any) -> bool:
    """Returns whether a type has a state: registered, here or with Flax, or built in.

    Args:
      target: a type, or an object, whose type is meant.

    Returns:
      True for dict, list, tuple, jax.tree_util.Partial and registered types; False for leaves of
      state dicts, such as arrays and subclasses of dict, and, as in Flax, for named tuples, which
      need no registration.

    >>> import numpy as np
    >>> is_serializable({"a": 1}), is_serializable(tuple), is_serializable(np.ones(3))
    (True, True, False)
    """
    ty = target if isinstance(target, type) else type(target)
    return is_built_in(ty) or ty in _REGISTRY.handlers or is_registered_with_flax(ty)


def handlers_of(target: Any) -> Handlers | None:
    """Returns what was registered for the type of an object; None for named tuples."""
    return None if is_named_tuple(target) else _REGISTRY.handlers.get(type(target))


def has_registrations() -> bool:
    return bool(_REGISTRY.handlers)


def is_registered_with_flax(ty: type) -> bool:
    is_known = getattr(_flax(), "is_serializable", None)
    return is_known is not None and bool(is_known(ty))


@dataclass(frozen=True)
class NestedHandlers:
    """Functions for objects within Flax's own that are registered here alone: Flax skips those.

    Attributes:
      has: tells whether a leaf is such an object.
      to_state: returns its state; also gets its keys within Flax's object.
      from_state: restores it from a state; also gets these keys.
    """

    has: Callable[[Any], bool]
    to_state: Callable[[Any, Keys], Any]
    from_state: Callable[[Any, Any, Keys], Any]


def flax_state(target: Any, *, path: str, nested: NestedHandlers | None) -> Any:
    """Returns the state that Flax gives an object.

    Args:
      target: the object.
      path: the object's path, for messages.
      nested: for objects in it that are registered here; None if there can be none.

    Raises:
      StateDictError: Flax gives it no state.
    """
    state = _state_by_flax(target, path)
    return state if nested is None else _converted(state, (), nested)


def restore_with_flax(
    target: Any, state: Any, *, name: str, path: str, nested: NestedHandlers | None
) -> Any:
    """Lets Flax restore an object from a state.

    Args:
      target: the object.
      state: of the whole object.
      name: the object's place as current_path() has it, for Flax's messages.
      path: the object's path, for the bridge's.
      nested: for objects in it that are registered here; None if there can be none.

    Raises:
      StateDictError: Flax cannot restore the object from that state.
    """
    if nested is not None:
        # Flax takes the state of what it does not know as it is: so that is restored before.
        state = _restored(_state_by_flax(target, path), state, (), nested)
    try:
        return _flax().from_state_dict(target, state, name=name)
    except StateDictError:
        raise  # of a type whose functions call the bridge
    except _FLAX_ERRORS as error:
        own = _state_by_flax(target, path)
        lines = [
            (path_below(path, within), text)
            for within, text in differences(own, state, leaves=False)
        ] or [(path, f"the state is {describe(state)}")]
        raise mismatch(
            lines,
            "Make it what to_state_dict gives of the target. Flax, which has the type "
            f"{type(target).__name__}, says {type(error).__name__}: {error}",
        ) from error


def _flax() -> Any:
    return sys.modules.get("flax.serialization")


def _state_by_flax(target: Any, path: str) -> Any:
    try:
        return _flax().to_state_dict(target)
    except StateDictError:
        raise  # of a type whose functions call the bridge
    except _FLAX_ERRORS as error:
        raise StateDictError(
            f"{path or 'at the top'}: Flax, which has the type {type(target).__name__}, gives it "
            f"no state: {type(error).__name__}: {error}",
            path=path,
        ) from error


def _converted(state: Any, keys: Keys, nested: NestedHandlers) -> Any:
    if type(state) is dict:
        return {key: _converted(part, (*keys, key), nested) for key, part in state.items()}
    return nested.to_state(state, keys) if nested.has(state) else state


def _restored(own: Any, state: Any, keys: Keys, nested: NestedHandlers) -> Any:
    """Puts restored objects into a state, where the object's own state has some."""
    if type(own) is not dict:
        return nested.from_state(own, state, keys) if nested.has(own) else state
    if not isinstance(state, dict):
        return state
    parts = {
        key: _restored(part, state[key], (*keys, key), nested)
        for key, part in own.items()
        if key in state
    }
    if all(state[key] is part for key, part in parts.items()):
        return state  # unchanged, and in its own type
    return {key: parts.get(key, part) for key, part in state.items()}
