"""Types with their own states: registered here, or registered only with Flax.

flax.struct.dataclass, TrainState and FrozenDict are registered with Flax. Their objects exist only
if flax.serialization is already imported, so it is never imported here. See _containers for dicts,
lists, tuples, named tuples and jax.tree_util.Partial.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from jax2tf_bridge.errors import SerializationError, StateDictError
from jax2tf_bridge.weights._containers import is_built_in, is_named_tuple
from jax2tf_bridge.weights._mismatches import describe, list_differences, make_state_error
from jax2tf_bridge.weights._paths import path_below

T = TypeVar("T")
Keys: TypeAlias = tuple[str, ...]

# Errors of Flax's functions for a state that does not fit.
_FLAX_ERRORS = (ValueError, LookupError, AttributeError, TypeError, AssertionError)


@dataclass(frozen=True)
class Handlers:
    """Functions registered for a type; see register_serialization_state."""

    to_state: Callable[[Any], Any]
    from_state: Callable[[Any, Any], Any]


class _StateRegistry:
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
    """Registers functions that make and restore the state of a type's objects.

    The registration does not apply to subclasses.

    Args:
      ty: the type; not a named tuple, because those are always stored by their fields.
      ty_to_state_dict: returns the state of an object, usually a dict with text keys whose values
        are to_state_dict(...) of each part.
      ty_from_state_dict: called with an object and a state; returns the object with that state.
        It keeps everything that is not in the state, and calls
        from_state_dict(part, state[key], name=key) for each part. Its messages can use
        current_path().
      override: whether to replace an existing registration.

    Raises:
      SerializationError: the type is already registered, is a named tuple, or is not a type. A
        ValueError too.

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
    for direction, function in (("to", ty_to_state_dict), ("from", ty_from_state_dict)):
        if not callable(function):
            raise SerializationError(
                f"ty_{direction}_state_dict of {name} must be a function. Got: {function!r}"
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
    """Returns whether a type has a state: registered here or with Flax, or built in.

    Args:
      target: a type, or an object of the type.

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


def find_handlers(target: Any) -> Handlers | None:
    """Returns the registered functions for an object's type; None for named tuples."""
    return None if is_named_tuple(target) else _REGISTRY.handlers.get(type(target))


def has_registrations() -> bool:
    return bool(_REGISTRY.handlers)


def is_registered_with_flax(ty: type) -> bool:
    is_known = getattr(_flax(), "is_serializable", None)
    return is_known is not None and bool(is_known(ty))


@dataclass(frozen=True)
class NestedHandlers:
    """Functions for objects inside Flax's objects that are only registered here: Flax skips those.

    Attributes:
      to_state: returns the state of the object; also receives its keys within Flax's object.
      from_state: restores the object from a state; also receives these keys.
    """

    to_state: Callable[[Any, Keys], Any]
    from_state: Callable[[Any, Any, Keys], Any]


def make_flax_state(target: Any, *, path: str, nested: NestedHandlers | None) -> Any:
    """Returns Flax's state of an object.

    Args:
      target: the object.
      path: the path of the object, for messages.
      nested: functions for nested objects that are registered here; None if there are none.

    Raises:
      StateDictError: Flax raises an error.
    """
    state = _call_flax(target, path)
    return state if nested is None else _convert_nested(state, (), nested)


def restore_with_flax(
    target: Any, state: Any, *, name: str, path: str, nested: NestedHandlers | None
) -> Any:
    """Restores an object from a state with Flax.

    Args:
      target: the object.
      state: the state of the whole object.
      name: the place of the object as in current_path(), for Flax's messages.
      path: the path of the object, for the bridge's messages.
      nested: functions for nested objects that are registered here; None if there are none.

    Raises:
      StateDictError: Flax cannot restore the object from that state.
    """
    if nested is not None:
        # Flax copies the states of unknown types as they are, so these are restored first.
        state = _restore_nested(_call_flax(target, path), state, (), nested)
    try:
        return _flax().from_state_dict(target, state, name=name)
    except StateDictError:
        raise  # an error of the bridge, which the functions of the type call
    except _FLAX_ERRORS as error:
        own = _call_flax(target, path)
        lines = [
            (path_below(path, within), text)
            for within, text in list_differences(own, state, leaves=False)
        ] or [(path, f"the state is {describe(state)}")]
        raise make_state_error(
            lines,
            "Give it the structure of to_state_dict(target). The type is registered with Flax: "
            f"{type(target).__name__}; Flax raised {type(error).__name__}: {error}",
        ) from error


def _flax() -> Any:
    return sys.modules.get("flax.serialization")


def _call_flax(target: Any, path: str) -> Any:
    try:
        return _flax().to_state_dict(target)
    except StateDictError:
        raise  # an error of the bridge, which the functions of the type call
    except _FLAX_ERRORS as error:
        raise StateDictError(
            f"{path or 'at the top'}: Flax, with which the type {type(target).__name__} is "
            f"registered, cannot make its state: {type(error).__name__}: {error}",
            path=path,
        ) from error


def _convert_nested(state: Any, keys: Keys, nested: NestedHandlers) -> Any:
    if type(state) is dict:
        return {key: _convert_nested(part, (*keys, key), nested) for key, part in state.items()}
    return state if find_handlers(state) is None else nested.to_state(state, keys)


def _restore_nested(own: Any, state: Any, keys: Keys, nested: NestedHandlers) -> Any:
    if type(own) is not dict:
        return state if find_handlers(own) is None else nested.from_state(own, state, keys)
    if not isinstance(state, dict):
        return state
    parts = {
        key: _restore_nested(part, state[key], (*keys, key), nested)
        for key, part in own.items()
        if key in state
    }
    if all(state[key] is part for key, part in parts.items()):
        return state  # unchanged, so it keeps its type
    return {key: parts.get(key, part) for key, part in state.items()}
