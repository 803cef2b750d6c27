"""State dicts of plain trees, which most are, by recursion: as fast as Python gets.

A plain tree has dicts with text as keys, lists, tuples and leaves, and fits its state. All else is
left to _state_dicts, which knows every type and depth, and says what does not fit: here no user's
code is called, so nothing is lost when a tree turns out not to be plain.
"""

from __future__ import annotations

from typing import Any

from jax2tf_bridge.weights._containers import has_text_keys, index_keys, is_container
from jax2tf_bridge.weights._registered_types import handlers_of, is_registered_with_flax

_MAX_DEPTH = 64
"""Containers within each other, at most; what contains itself is deeper."""


class NotPlain(Exception):
    """A tree is not plain, or does not fit its state."""


class PlainTrees:
    """Makes and restores states of plain trees; one object for each call."""

    def __init__(self) -> None:
        """Looks up whether dicts, lists and tuples have their usual states.

        Raises:
          NotPlain: functions are registered for one of them.
        """
        if any(handlers_of(kind()) is not None for kind in (dict, list, tuple)):
            raise NotPlain
        self._leaf_types: set[type] = set()

    def state(self, target: Any, depth: int = 0) -> Any:
        """Returns the state of a tree.

        Raises:
          NotPlain: it is not plain.
        """
        kind = type(target)
        if kind is dict:
            if depth > _MAX_DEPTH or not has_text_keys(target):
                raise NotPlain
            leaf_types, state, below = self._leaf_types, self.state, depth + 1
            return {
                key: child if type(child) in leaf_types else state(child, below)
                for key, child in target.items()
            }
        if kind is list or kind is tuple:
            if depth > _MAX_DEPTH:
                raise NotPlain
            leaf_types, state, below = self._leaf_types, self.state, depth + 1
            return {
                key: child if type(child) in leaf_types else state(child, below)
                for key, child in zip(index_keys(len(target)), target, strict=False)
            }
        self._check_leaf(target)
        return target

    def restored(self, target: Any, state: Any, depth: int = 0) -> Any:
        """Returns a tree like `target` from its state.

        Raises:
          NotPlain: it is not plain, or does not fit.
        """
        kind = type(target)
        if kind is not dict and kind is not list and kind is not tuple:
            self._check_leaf(target)
            return state
        if depth > _MAX_DEPTH or type(state) is not dict:
            raise NotPlain
        leaf_types, restored, below = self._leaf_types, self.restored, depth + 1
        try:
            if kind is dict:
                if not has_text_keys(target):
                    raise NotPlain
                return {
                    key: state[key]
                    if type(child) in leaf_types
                    else restored(child, state[key], below)
                    for key, child in target.items()
                }
            if len(state) != len(target):
                raise NotPlain
            results = [
                state[key] if type(child) in leaf_types else restored(child, state[key], below)
                for key, child in zip(index_keys(len(target)), target, strict=False)
            ]
        except KeyError:
            raise NotPlain from None
        return results if kind is list else tuple(results)

    def _check_leaf(self, target: Any) -> None:
        """Raises unless an object is a leaf, and remembers its type."""
        kind = type(target)
        if kind in self._leaf_types:
            return
        if handlers_of(target) is not None or is_container(target) or is_registered_with_flax(kind):
            raise NotPlain
        # A tuple may be a leaf depending on the object, not only on its type.
        if not issubclass(kind, tuple):
            self._leaf_types.add(kind)
