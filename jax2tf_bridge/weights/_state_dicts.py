"""Makes state dicts, and restores objects from them, with the semantics of flax.serialization.

Registered functions call to_state_dict, from_state_dict and current_path() again. A context
variable passes the place of the outer call, and the enclosing objects, to such inner calls. It is
set while a registered function runs.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from jax2tf_bridge.errors import StateDictError
from jax2tf_bridge.weights._containers import (
    Container,
    find_container,
    has_text_keys,
    index_keys,
    is_container,
)
from jax2tf_bridge.weights._mismatches import list_differences, make_state_error
from jax2tf_bridge.weights._paths import (
    check_keys_differ,
    join_path,
    make_cycle_error,
    path_below,
)
from jax2tf_bridge.weights._registered_types import (
    NestedHandlers,
    find_handlers,
    has_registrations,
    is_registered_with_flax,
    make_flax_state,
    restore_with_flax,
)

_ADVICE = (
    "Change the state, or restore into a target that is built like the one that was stored: the "
    "state's structure must be that of to_state_dict(target)."
)
_STRICT_ADVICE = (
    "Change the state or the target; or leave out strict=True, to take leaves as they are and to "
    "ignore keys that the target lacks."
)


def to_state_dict(target: Any) -> Any:
    """Returns the state of an object: nested dicts with text keys, as in flax.serialization.

    The keys of dicts become text. Lists and tuples become dicts with the keys "0", "1", ...; named
    tuples become dicts of their fields; jax.tree_util.Partial becomes a dict of "args" and
    "keywords". The functions of register_serialization_state make the states of registered types;
    Flax makes the states of types that are only registered with Flax. All other objects are leaves:
    NumPy and JAX arrays, numbers, text, None, and also subclasses of dict, list and tuple.

    Args:
      target: the object; it is not changed, and arrays are not copied.

    Returns:
      A dict; or the object itself if it is a leaf.

    Raises:
      StateDictError: two keys of a dict have the same text, a registered function returns a dict
        whose keys are not text, or the object contains itself. A ValueError too.

    >>> to_state_dict({"layers": [1.5, (2, 3)], 0: None})
    {'layers': {'0': 1.5, '1': {'0': 2, '1': 3}}, '0': None}
    """
    with _this_call() as call:
        return _StateMaker(call).run(target)


def from_state_dict(target: Any, state: Any, name: str = ".", *, strict: bool = False) -> Any:
    """Restores an object like `target` from a state, as in flax.serialization.

    The target has the structure. The state of a dict must have all of its keys; other keys are
    ignored. The state of a list or tuple must have the same length; that of a named tuple the same
    fields (Flax's form before 2022, with "name", "fields" and "values", is accepted too). Each leaf
    of the target is replaced by any value at its place in the state.

    With `strict`, the state must have exactly the keys of to_state_dict(target), and leaves with
    the same shapes and dtypes. A leaf of the target may then be a NumPy or JAX array, a
    jax.ShapeDtypeStruct, a Python number (which matches an array of rank 0 of its kind), or None or
    text (which match their own type). This is not the default, because code for Flax often uses
    placeholders as targets, or states of another precision or with more keys.

    Args:
      target: an object with the structure to restore; it is not changed.
      state: a state like those of to_state_dict.
      name: the name of the target's place, for messages.
      strict: whether to compare shapes and dtypes, and to refuse keys that the target lacks.

    Returns:
      An object of the target's type; the state itself if the target is a leaf.

    Raises:
      StateDictError: the state does not fit. The message has the paths and both sides of all
        differences. A TypeError and a ValueError too.

    >>> target = {"layers": [0.0, (0, 0)], "step": 0}
    >>> from_state_dict(target, {"layers": {"0": 1.5, "1": {"0": 2, "1": 3}}, "step": 7})
    {'layers': [1.5, (2, 3)], 'step': 7}
    """
    with _this_call() as outer:
        # In a registered function, the name is a key; in other calls it is any text.
        own_path = join_path([name]) if outer.places else name
        path = outer.path if name == "." else path_below(outer.path, own_path)
        call = _CallPlace((*outer.places, name), path, outer.entered)
        if strict:
            mismatches = list_differences(_StateMaker(call).run(target), state)
            if mismatches:
                lines = [(path_below(path, at), text) for at, text in mismatches]
                raise make_state_error(lines, _STRICT_ADVICE)
        return _Restorer(call).run((target, state))


def current_path() -> str:
    """Returns the place in the state that is being restored, for messages of registered functions.

    Returns:
      The keys joined by "/", beginning with from_state_dict's `name`, as in Flax:
      "./params/layers_0"; "" outside of from_state_dict.

    >>> current_path()
    ''
    """
    call = _CALL.get()
    return "/".join(call.places) if call is not None else ""


@dataclass(frozen=True)
class _CallPlace:
    """Place of a call of to_state_dict or from_state_dict.

    Attributes:
      places: Flax's names and keys of the path, for current_path().
      path: the path for the bridge's messages, without default names.
      entered: the ids of the enclosing objects.
    """

    places: tuple[str, ...] = ()
    path: str = ""
    entered: frozenset[int] = frozenset()


_CALL: ContextVar[_CallPlace | None] = ContextVar("jax2tf_bridge_state_dicts", default=None)


@contextmanager
def _this_call() -> Iterator[_CallPlace]:
    """Yields the place of this call: below the calling registered function, or at the top."""
    outer = _CALL.get()
    if outer is not None:
        yield outer
        return
    try:
        yield _CallPlace()
    except RecursionError as error:
        raise StateDictError(
            "Objects of registered types are nested too deeply for Python's recursion limit of "
            f"{sys.getrecursionlimit()}. Raise it with sys.setrecursionlimit, or remove a "
            "reference from an object back to itself."
        ) from error


class _LeafTypes(set[type]):
    """Types of the leaves that a walk has met."""

    def is_leaf(self, value: Any) -> bool:
        """Returns whether a value is a leaf, and adds its type."""
        kind = type(value)
        if kind in self:
            return True
        if find_handlers(value) is not None or is_container(value) or is_registered_with_flax(kind):
            return False
        # A tuple may be a leaf or not, depending on the object as well as on its type.
        if not issubclass(kind, tuple):
            self.add(kind)
        return True


class _ContainerFrame(NamedTuple):
    """Container on the stack of a walk.

    Attributes:
      target: the container.
      place: the key of the container in its parent.
      below: the children that are not leaves, by their keys in `slots`.
      keys: the keys of these children in the state.
      slots: the results for the children; those of leaves are set from the start.
      build: builds the result from the slots; None if the slots are the result.
    """

    target: Any
    place: Any
    below: Iterator[tuple[Any, Any]]
    keys: Sequence[str] | None
    slots: Any
    build: Callable[[Any], Any] | None


class _ObjectWalk(ABC):
    """Walk through an object of any depth, without recursion.

    Most children are leaves. The types of leaves are cached, and a container handles all its leaves
    at once.
    """

    def __init__(self, call: _CallPlace) -> None:
        self._call = call
        self._keys: list[str] = []
        self._entered = set(call.entered)
        self._leaf_types = _LeafTypes()

    def run(self, root: Any) -> Any:
        result = self._open(None, root)
        if not isinstance(result, _ContainerFrame):
            return result
        self._enter(result.target)
        frames = [result]
        while True:
            _, _, below, keys, slots, _ = frame = frames[-1]
            for place, item in below:
                self._keys.append(place if keys is None else keys[place])
                result = self._open(place, item)
                if isinstance(result, _ContainerFrame):
                    self._enter(result.target)
                    frames.append(result)
                    break
                slots[place] = result
                self._keys.pop()
            else:
                frames.pop()
                self._entered.discard(id(frame.target))
                result = slots if frame.build is None else frame.build(slots)
                if not frames:
                    return result
                frames[-1].slots[frame.place] = result
                self._keys.pop()

    @abstractmethod
    def _open(self, place: Any, item: Any) -> Any:
        """Returns a frame for a container with non-leaf children, else the result."""

    def _has_only_leaves(self, values: Iterable[Any]) -> bool:
        """Returns whether all values are leaves of known types."""
        return self._leaf_types.issuperset(map(type, values))

    def _path(self, keys: Sequence[str] = ()) -> str:
        """Returns the path of the current item, extended by `keys`."""
        return path_below(self._call.path, join_path([*self._keys, *keys]))

    def _enter(self, target: Any) -> None:
        if id(target) in self._entered:
            raise make_cycle_error(self._path())
        self._entered.add(id(target))

    @contextmanager
    def _run_registered(self, target: Any, within: str = "") -> Iterator[None]:
        """Runs a registered function for an object; paths of inner calls continue with `within`."""
        self._enter(target)
        places = (*self._call.places, *self._keys)
        path = path_below(self._path(), within)
        token = _CALL.set(_CallPlace(places, path, frozenset(self._entered)))
        try:
            yield
        finally:
            _CALL.reset(token)
            self._entered.discard(id(target))

    def _nested_handlers(self) -> NestedHandlers | None:
        """Returns functions for registered objects inside Flax's; None if nothing is registered."""
        if not has_registrations():
            return None

        def call_at(keys: Sequence[str]) -> _CallPlace:
            places = (*self._call.places, *self._keys, *keys)
            return _CallPlace(places, self._path(keys), frozenset(self._entered))

        return NestedHandlers(
            to_state=lambda leaf, keys: _StateMaker(call_at(keys)).run(leaf),
            from_state=lambda leaf, state, keys: _Restorer(call_at(keys)).run((leaf, state)),
        )


class _StateMaker(_ObjectWalk):
    def _open(self, place: Any, item: Any) -> Any:
        handlers = find_handlers(item)
        if handlers is not None:
            # The key for which the function calls to_state_dict is unknown.
            with self._run_registered(item, f"<{type(item).__name__}>"):
                state = handlers.to_state(item)
            self._check_keys(item, state)
            return state
        slots = self._slots(item)
        if slots is not None:
            if self._has_only_leaves(slots.values()):
                return slots
            is_leaf = self._leaf_types.is_leaf
            below = [(key, child) for key, child in slots.items() if not is_leaf(child)]
            return _ContainerFrame(item, place, iter(below), None, slots, None) if below else slots
        if is_registered_with_flax(type(item)):
            with self._run_registered(item):
                return make_flax_state(item, path=self._path(), nested=self._nested_handlers())
        return item

    def _slots(self, item: Any) -> dict[str, Any] | None:
        """Returns the children of a container by the keys of its state; None for other objects."""
        kind = type(item)
        if kind is dict:
            if not has_text_keys(item):
                check_keys_differ(item, self._path)
                return {str(key): child for key, child in item.items()}
            return dict(item)
        if kind is list or kind is tuple:
            return dict(zip(index_keys(len(item)), item, strict=False))
        container = find_container(item)
        if container is None:
            return None
        return dict(zip(container.keys, container.children, strict=True))

    def _check_keys(self, target: Any, state: Any) -> None:
        for key in state if isinstance(state, dict) else ():
            if not isinstance(key, str):
                raise StateDictError(
                    f"{self._path() or 'at the top'}: the function registered for "
                    f"{type(target).__name__} returns a state with the key {key!r} of type "
                    f"{type(key).__name__}. The keys of a state dict are text: convert it with "
                    f"str().",
                    path=self._path(),
                )


class _Restorer(_ObjectWalk):
    """Restores an object; the items of the walk are pairs of a target and its state."""

    def __init__(self, call: _CallPlace) -> None:
        super().__init__(call)
        self._mismatches: list[tuple[str, str]] = []

    def run(self, root: Any) -> Any:
        """Returns the object, or raises an error about all mismatches."""
        restored = super().run(root)
        if self._mismatches:
            raise make_state_error(self._mismatches, _ADVICE)
        return restored

    def _open(self, place: Any, item: Any) -> Any:
        target, state = item
        handlers = find_handlers(target)
        if handlers is None:
            kind = type(target)
            if kind is dict and type(state) is dict and has_text_keys(target):
                if target.keys() <= state.keys():
                    return self._open_dict(place, target, state)
            elif (kind is list or kind is tuple) and type(state) is dict:
                keys = index_keys(len(target))[: len(target)]
                if len(state) == len(keys) and all(map(state.__contains__, keys)):
                    states = [state[key] for key in keys]
                    build = None if kind is list else self._tuple
                    return self._open_children(place, target, keys, target, states, build)
            container = find_container(target)
            if container is not None:
                child_states = container.child_states(state)
                if isinstance(child_states, str):
                    self._mismatches.append((self._path(), child_states))
                    return None
                build = partial(self._build, container)
                children = container.children
                return self._open_children(
                    place, target, container.keys, children, child_states, build
                )
        if self._mismatches:
            return None  # there is no result; the walk only collects more mismatches
        if handlers is not None:
            with self._run_registered(target):
                return handlers.from_state(target, state)
        if is_registered_with_flax(type(target)):
            with self._run_registered(target):
                return restore_with_flax(
                    target,
                    state,
                    name="/".join((*self._call.places, *self._keys)),
                    path=self._path(),
                    nested=self._nested_handlers(),
                )
        return state

    def _open_dict(self, place: Any, target: dict[str, Any], state: dict[str, Any]) -> Any:
        """Opens a dict whose state has all of its keys."""
        slots = {key: state[key] for key in target}
        if self._has_only_leaves(target.values()):
            return slots
        below = [
            (key, (child, slots[key]))
            for key, child in target.items()
            if not self._leaf_types.is_leaf(child)
        ]
        return _ContainerFrame(target, place, iter(below), None, slots, None) if below else slots

    def _open_children(
        self,
        place: Any,
        target: Any,
        keys: Sequence[str],
        children: Sequence[Any],
        states: list[Any],
        build: Callable[[list[Any]], Any] | None,
    ) -> Any:
        """Opens a container with the states of its children; `build` builds the result."""
        below = []
        if not self._has_only_leaves(children):
            below = [
                (i, (child, states[i]))
                for i, child in enumerate(children)
                if not self._leaf_types.is_leaf(child)
            ]
        if below:
            return _ContainerFrame(target, place, iter(below), keys, states, build)
        return states if build is None else build(states)

    def _tuple(self, results: list[Any]) -> Any:
        return None if self._mismatches else tuple(results)

    def _build(self, container: Container, results: list[Any]) -> Any:
        return None if self._mismatches else container.build(results)
