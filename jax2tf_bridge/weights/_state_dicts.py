"""State dicts: to_state_dict and from_state_dict, with the semantics of flax.serialization.

Functions that a user registered for a type call these two again, and current_path(). What such an
inner call needs of the outer one, where it stands and what it stands within, is in a context
variable. It is set while a registered function runs, and holds nothing after the outer call.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jax2tf_bridge.errors import StateDictError
from jax2tf_bridge.weights._containers import Container, container_of, is_named_tuple
from jax2tf_bridge.weights._descriptions import misfit
from jax2tf_bridge.weights._flax_types import (
    Ours,
    flax_state,
    is_registered_with_flax,
    restore_with_flax,
)
from jax2tf_bridge.weights._paths import (
    clashing_keys,
    contains_itself,
    join_path,
    path_below,
    same_text,
)
from jax2tf_bridge.weights._registered_types import handlers_of, has_registrations
from jax2tf_bridge.weights._strict import differences

_ADVICE = (
    "Change the state, or restore into a target that is built like the one that was stored: the "
    "state's structure must be that of to_state_dict(target)."
)
_STRICT_ADVICE = (
    "Change the state, or the target; or leave strict out, and the state's leaves are taken as "
    "they are, and keys that the target lacks are left alone."
)


def to_state_dict(target: Any) -> Any:
    """The state of an object: nested dicts with text as keys, as flax.serialization makes it.

    Dicts keep their keys as text; lists and tuples become dicts with the keys "0", "1", ...;
    named tuples become dicts of their fields, and jax.tree_util.Partial one of "args" and
    "keywords". What was registered with register_serialization_state has the state that its
    function gives, and what only Flax knows has the one that Flax gives. Anything else is a leaf
    and is handed over as it is: arrays of NumPy and JAX, numbers, text, None, and also subclasses
    of dict, list and tuple.

    Args:
      target: the object; it is not changed, and arrays are not copied.

    Returns:
      A dict; the object itself if it is a leaf.

    Raises:
      StateDictError: a ValueError. Two keys of a dict are the same text, a registered function
        returns a dict whose keys are not text, or the object contains itself.

    >>> to_state_dict({"layers": [1.5, (2, 3)], 0: None})
    {'layers': {'0': 1.5, '1': {'0': 2, '1': 3}}, '0': None}
    """
    with _this_call() as call:
        return _Making(call).run(target)


def from_state_dict(target: Any, state: Any, name: str = ".", *, strict: bool = False) -> Any:
    """An object like `target`, with the values of a state, as flax.serialization restores it.

    The structure of the target leads. The state of a dict must have all of its keys, and what
    else it has is left alone; that of a list or tuple must have the same length; that of a named
    tuple the same fields (the form of Flax before 2022, of "name", "fields" and "values", is read
    too). A leaf of the target is replaced by what the state has in its place, whatever that is.

    Unless `strict` is set: then the state must be what to_state_dict(target) is, with its keys
    and no others, and leaves of its shapes and dtypes. A leaf of the target may be an array of
    NumPy or JAX, a jax.ShapeDtypeStruct, a number of Python (which fits an array without
    dimensions of its kind), or None and text (which fit their own type). That is not the default,
    since code written for Flax counts on the other: its targets often hold placeholders, and
    states of another precision or with more keys.

    Args:
      target: of what is restored; it is not changed.
      state: as to_state_dict makes it.
      name: how messages name the place of the target within what it belongs to.
      strict: whether to compare shapes and dtypes, and to refuse keys that the target lacks.

    Returns:
      An object of the target's type; the state itself if the target is a leaf.

    Raises:
      StateDictError: a TypeError and a ValueError. The state does not fit; the message has all
        differences with their paths, and what each side has.

    >>> target = {"layers": [0.0, (0, 0)], "step": 0}
    >>> from_state_dict(target, {"layers": {"0": 1.5, "1": {"0": 2, "1": 3}}, "step": 7})
    {'layers': [1.5, (2, 3)], 'step': 7}
    """
    with _this_call() as outer:
        # A registered function names a key; whoever else calls names a place in their own words.
        own_path = join_path([name]) if outer.places else name
        path = outer.path if name == "." else path_below(outer.path, own_path)
        call = _Call((*outer.places, name), path, outer.entered)
        if strict:
            found = differences(_Making(call).run(target), state)
            if found:
                raise misfit([(path_below(path, at), text) for at, text in found], _STRICT_ADVICE)
        return _Restoring(call).run((target, state))


def current_path() -> str:
    """Where in the state a registered function is at work, for its messages.

    Returns:
      The keys joined by "/", from the `name` on that from_state_dict was called with, as in Flax:
      "./params/layers_0"; "" outside of from_state_dict.

    >>> current_path()
    ''
    """
    call = _CALL.get()
    return "/".join(call.places) if call is not None else ""


@dataclass(frozen=True)
class _Call:
    """Where a call of to_state_dict or from_state_dict stands.

    Attributes:
      places: for current_path(): the names and keys on the way, as Flax has them.
      path: for our own messages: without the names that were not given.
      entered: what the call stands within, by identity.
    """

    places: tuple[str, ...] = ()
    path: str = ""
    entered: frozenset[int] = frozenset()


_CALL: ContextVar[_Call | None] = ContextVar("jax2tf_bridge_state_dicts", default=None)


@contextmanager
def _this_call() -> Iterator[_Call]:
    """Where this call stands: below a registered function that makes it, or nowhere yet."""
    outer = _CALL.get()
    if outer is not None:
        yield outer
        return
    try:
        yield _Call()
    except RecursionError as error:
        raise StateDictError(
            "Objects of registered types are nested too deeply in one another for Python's "
            f"recursion limit of {sys.getrecursionlimit()}: raise it with sys.setrecursionlimit, "
            "or take out what leads back to an object that it belongs to."
        ) from error


@dataclass(frozen=True)
class _Frame:
    """A container that a walk is in.

    Attributes:
      target: the container.
      keys: of its children.
      children: what the walk opens next.
      build: makes the container's result of those of its children.
      results: those that are known.
    """

    target: Any
    keys: Sequence[str]
    children: Sequence[Any]
    build: Callable[[list[Any]], Any]
    results: list[Any] = field(default_factory=list)


class _Walk(ABC):
    """A walk through an object; its stack is its own, so that objects may be of any depth."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self._keys: list[str] = []
        self._entered = set(call.entered)

    def run(self, root: Any) -> Any:
        """The result of the whole."""
        frames: list[_Frame] = []
        opened = self._open(root)
        while True:
            if isinstance(opened, _Frame):
                self._enter(opened.target)
                frames.append(opened)
            elif not frames:
                return opened
            else:
                frames[-1].results.append(opened)
                self._keys.pop()
            frame = frames[-1]
            position = len(frame.results)
            if position < len(frame.children):
                self._keys.append(frame.keys[position])
                opened = self._open(frame.children[position])
            else:
                frames.pop()
                self._entered.discard(id(frame.target))
                opened = frame.build(frame.results)

    @abstractmethod
    def _open(self, item: Any) -> Any:
        """A frame for a container; the result of anything else."""

    def _path(self, keys: Sequence[str] = ()) -> str:
        """Where the walk is, and further on."""
        return path_below(self._call.path, join_path([*self._keys, *keys]))

    def _enter(self, target: Any) -> None:
        if id(target) in self._entered:
            raise StateDictError(contains_itself(self._path()), path=self._path())
        self._entered.add(id(target))

    @contextmanager
    def _registered_function(self, target: Any, within: str = "") -> Iterator[None]:
        """Within it runs a function that was registered for the type of an object.

        Args:
          target: the object.
          within: how paths go on from there.
        """
        self._enter(target)
        places = (*self._call.places, *self._keys)
        path = path_below(self._path(), within)
        token = _CALL.set(_Call(places, path, frozenset(self._entered)))
        try:
            yield
        finally:
            _CALL.reset(token)
            self._entered.discard(id(target))

    def _within_flax(self) -> Ours | None:
        """How Flax's objects are helped with what they hold of types that are registered here."""
        if not has_registrations():
            return None

        def call_at(keys: Sequence[str]) -> _Call:
            places = (*self._call.places, *self._keys, *keys)
            return _Call(places, self._path(keys), frozenset(self._entered))

        return Ours(
            has=lambda leaf: not is_named_tuple(leaf) and handlers_of(leaf) is not None,
            to_state=lambda leaf, keys: _Making(call_at(keys)).run(leaf),
            from_state=lambda leaf, state, keys: _Restoring(call_at(keys)).run((leaf, state)),
        )


class _Making(_Walk):
    """Makes the state of an object."""

    def _open(self, item: Any) -> Any:
        handlers = None if is_named_tuple(item) else handlers_of(item)
        if handlers is not None:
            # It does not say for which key of its state it calls to_state_dict.
            with self._registered_function(item, f"<{type(item).__name__}>"):
                state = handlers.to_state(item)
            self._check_keys(item, state)
            return state
        container = container_of(item)
        if container is not None:
            clashing = clashing_keys(list(item)) if container.kind == "dict" else ()
            if clashing:
                raise StateDictError(same_text(self._path(), clashing), path=self._path())
            return _Frame(
                item,
                container.keys,
                container.children,
                lambda r: dict(zip(container.keys, r, strict=True)),
            )
        if is_registered_with_flax(type(item)):
            with self._registered_function(item):
                return flax_state(item, path=self._path(), ours=self._within_flax())
        return item

    def _check_keys(self, target: Any, state: Any) -> None:
        """Only text may be a key of a state."""
        for key in state if isinstance(state, dict) else ():
            if not isinstance(key, str):
                raise StateDictError(
                    f"{self._path() or 'at the top'}: the function registered for "
                    f"{type(target).__name__} gives a state with the key {key!r} of type "
                    f"{type(key).__name__}. The keys of a state dict are text: let it use str().",
                    path=self._path(),
                )


class _Restoring(_Walk):
    """Restores an object: what it opens are pairs of a target and its state."""

    def __init__(self, call: _Call) -> None:
        super().__init__(call)
        self._misfits: list[tuple[str, str]] = []

    def run(self, root: Any) -> Any:
        """The object; an error about all containers that do not fit."""
        restored = super().run(root)
        if self._misfits:
            raise misfit(self._misfits, _ADVICE)
        return restored

    def _open(self, item: Any) -> Any:
        target, state = item
        handlers = None if is_named_tuple(target) else handlers_of(target)
        container = container_of(target) if handlers is None else None
        if container is not None:
            states = container.child_states(state)
            if isinstance(states, str):
                self._misfits.append((self._path(), states))
                return None
            pairs = list(zip(container.children, states, strict=True))
            return _Frame(target, container.keys, pairs, partial(self._build, container))
        if self._misfits:
            return None  # there is no result any more: only what else does not fit is looked for
        if handlers is not None:
            with self._registered_function(target):
                return handlers.from_state(target, state)
        if is_registered_with_flax(type(target)):
            with self._registered_function(target):
                return restore_with_flax(
                    target,
                    state,
                    name="/".join((*self._call.places, *self._keys)),
                    path=self._path(),
                    ours=self._within_flax(),
                )
        return state

    def _build(self, container: Container, results: list[Any]) -> Any:
        return None if self._misfits else container.build(results)
