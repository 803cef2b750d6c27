"""Fast path for state dicts of plain trees, by recursion.

A plain tree consists of dicts with text keys, lists, tuples and leaves, and fits its state.
_state_dicts handles all other trees, any depth, and error messages. This module calls no code of
users, so it can give up at any time.
"""

from __future__ import annotations

from typing import Any

from jax2tf_bridge.weights._containers import has_text_keys, index_keys, is_container
from jax2tf_bridge.weights._registered_types import handlers_of, is_registered_with_flax

_MAX_DEPTH = 64
"""Maximum nesting depth; objects that contain themselves exceed it."""


class NotPlain(Exception):
    """Raised if a tree is not plain, or does not fit its state."""


class PlainTrees:
    """Makes and restores states of plain trees; each call uses a new object."""

    def __init__(self) -> None:
        """Checks that dicts, lists and tuples have their usual states.

        Raises:
          NotPlain: functions are registered for one of them.
        """
        if any(handlers_of(kind()) is not None for kind in (dict, list, tuple)):
            raise NotPlain
        self._leaf_types: set[type] = set()

    def state(self, target: Any, depth: int = 0) -> Any:
        """Returns the state of a tree.

        Raises:
          NotPlain: the tree is not plain.
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

    def restore(self, target: Any, state: Any, depth: int = 0) -> Any:
        """Restores a tree like `target` from its state.

        Raises:
          NotPlain: the tree is not plain, or does not fit.
        """
        kind = type(target)
        if kind is not dict and kind is not list and kind is not tuple:
            self._check_leaf(target)
            return state
        if depth > _MAX_DEPTH or type(state) is not dict:
            raise NotPlain
        leaf_types, restored, below = self._leaf_types, self.restore, depth + 1
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
        # Whether a tuple is a leaf depends on the object, not only on its type.
        if not issubclass(kind, tuple):
            self._leaf_types.add(kind)
