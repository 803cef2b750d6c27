"""Types that are registered with Flax alone: their states are left to Flax.

flax.struct.dataclass, TrainState and FrozenDict are such. An object of one exists only where
flax.serialization is imported, so that it is found there and never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from jax2tf_bridge.errors import StateDictError
from jax2tf_bridge.weights._descriptions import describe, misfit
from jax2tf_bridge.weights._paths import path_below
from jax2tf_bridge.weights._strict import differences

Keys: TypeAlias = tuple[str, ...]

# What Flax's functions raise on a state that does not fit, by whose code meets it first.
_MISFITS = (ValueError, LookupError, AttributeError, TypeError, AssertionError)


def is_registered_with_flax(ty: type) -> bool:
    """Whether Flax is imported and knows this type."""
    is_known = getattr(_flax(), "is_serializable", None)
    return is_known is not None and bool(is_known(ty))


@dataclass(frozen=True)
class Ours:
    """What Flax leaves as it is within its own objects, because it is registered here alone.

    Attributes:
      has: whether a leaf is such an object.
      to_state: makes its state; gets the keys by which it stands in Flax's object too.
      from_state: restores it from a state; gets these keys too.
    """

    has: Callable[[Any], bool]
    to_state: Callable[[Any, Keys], Any]
    from_state: Callable[[Any, Any, Keys], Any]


def flax_state(target: Any, *, path: str, ours: Ours | None) -> Any:
    """The state of an object of such a type.

    Args:
      target: the object.
      path: where it stands, for messages.
      ours: what may be in it that is not Flax's; None for nothing.

    Raises:
      StateDictError: Flax gives it no state.
    """
    state = _state_by_flax(target, path)
    return state if ours is None else _converted(state, (), ours)


def restore_with_flax(target: Any, state: Any, *, name: str, path: str, ours: Ours | None) -> Any:
    """The object with another state.

    Args:
      target: the object.
      state: of the whole object.
      name: where it stands as current_path() has it, for Flax's messages.
      path: where it stands, for the bridge's.
      ours: what may be in it that is not Flax's; None for nothing.

    Raises:
      StateDictError: Flax cannot restore the object from that state.
    """
    if ours is not None:
        # Flax hands over as it is the state of what it does not know: so that is restored before.
        state = _restored(_state_by_flax(target, path), state, (), ours)
    try:
        return _flax().from_state_dict(target, state, name=name)
    except StateDictError:
        raise  # of a type whose functions call the bridge
    except _MISFITS as error:
        own = _state_by_flax(target, path)
        lines = [
            (path_below(path, within), text)
            for within, text in differences(own, state, leaves=False)
        ] or [(path, f"the state is {describe(state)}")]
        raise misfit(
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
    except _MISFITS as error:
        raise StateDictError(
            f"{path or 'at the top'}: Flax, which has the type {type(target).__name__}, gives it "
            f"no state: {type(error).__name__}: {error}",
            path=path,
        ) from error


def _converted(state: Any, keys: Keys, ours: Ours) -> Any:
    if type(state) is dict:
        return {key: _converted(part, (*keys, key), ours) for key, part in state.items()}
    return ours.to_state(state, keys) if ours.has(state) else state


def _restored(own: Any, state: Any, keys: Keys, ours: Ours) -> Any:
    """The state, with objects in it where the object has some that are registered here."""
    if type(own) is not dict:
        return ours.from_state(own, state, keys) if ours.has(own) else state
    if not isinstance(state, dict):
        return state
    parts = {
        key: _restored(part, state[key], (*keys, key), ours)
        for key, part in own.items()
        if key in state
    }
    if all(state[key] is part for key, part in parts.items()):
        return state  # unchanged, and in its own type
    return {key: parts.get(key, part) for key, part in state.items()}
