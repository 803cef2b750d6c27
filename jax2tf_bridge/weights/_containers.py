"""Dicts, lists, tuples, named tuples and Partials: how they come apart, and together again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.weights._descriptions import MOST_KEYS, describe, keys_text, nearest

_OLD_NAMED_TUPLE = frozenset({"name", "fields", "values"})


@dataclass(frozen=True)
class Container:
    """An object that is stored by its children.

    Attributes:
      kind: what it is, for messages: "dict", "list", "named tuple Moments".
      keys: those of its state, one a child.
      children: its children.
      build: makes an object like it of other children.
      states: finds the states of its children in its state.
    """

    kind: str
    keys: Sequence[str]
    children: Sequence[Any]
    build: Callable[[list[Any]], Any]
    states: Callable[[Container, Any], list[Any] | str]

    def child_states(self, state: Any) -> list[Any] | str:
        """The states of the children, one each; or what is wrong with the state, as text."""
        return self.states(self, state)

    def __str__(self) -> str:
        if self.kind in ("list", "tuple"):
            return f"a {self.kind} of length {len(self.keys)}"
        noun = "field" if self.kind.startswith("named tuple") else "key"
        return f"a {self.kind} with {keys_text(self.keys, noun)}"


def is_named_tuple(target: Any) -> bool:
    """Whether an object is a named tuple, as far as one can tell."""
    return isinstance(target, tuple) and hasattr(target, "_fields")


def container_of(target: Any) -> Container | None:
    """How an object comes apart; None if it does not: subclasses of dict and list are leaves."""
    ty = type(target)
    if ty is dict:
        return _dict_container(target)
    if ty is list or ty is tuple:
        keys = [str(index) for index in range(len(target))]
        return Container(ty.__name__, keys, target, list if ty is list else tuple, _by_index)
    if is_named_tuple(target):
        fields = target._fields
        children = [getattr(target, field) for field in fields]

        def build(values: list[Any]) -> Any:
            return ty(**dict(zip(fields, values, strict=True)))

        return Container(f"named tuple {ty.__name__}", fields, children, build, _by_field)
    if ty is partial_type():

        def build_partial(values: list[Any]) -> Any:
            return ty(target.func, *values[0], **values[1])

        children = [target.args, target.keywords]
        return Container("Partial", ["args", "keywords"], children, build_partial, _by_key)
    return None


def is_built_in(ty: type) -> bool:
    """Whether container_of takes objects of a type apart, apart from named tuples."""
    return ty in (dict, list, tuple) or ty is partial_type()


def partial_type() -> Any:
    """jax.tree_util.Partial; None where JAX was not imported, so that there is no such object."""
    return getattr(sys.modules.get("jax.tree_util"), "Partial", None)


def is_mapping(state: Any) -> bool:
    """Whether a state has keys: a Mapping, or what behaves like one."""
    return isinstance(state, Mapping) or (
        hasattr(state, "keys") and hasattr(state, "__getitem__") and not isinstance(state, type)
    )


def plain_named_tuple_state(state: Any) -> Any:
    """A named tuple's state by field, if it is in the form of Flax before 2022; else as it is.

    The old form is {"name": ..., "fields": {"0": name, ...}, "values": {"0": value, ...}}.
    """
    if not is_mapping(state) or set(state.keys()) != _OLD_NAMED_TUPLE:
        return state
    fields, values = state["fields"], state["values"]
    if not is_mapping(fields) or not is_mapping(values):
        return state
    places = [str(index) for index in range(len(fields))]
    if set(fields.keys()) != set(places) or not set(places) <= set(values.keys()):
        return state
    if not all(isinstance(name, str) for name in fields.values()):
        return state
    return {fields[place]: values[place] for place in places}


def _dict_container(target: dict[Any, Any]) -> Container:
    def build(values: list[Any]) -> Any:
        return dict(zip(target, values, strict=True))

    return Container("dict", [str(k) for k in target], list(target.values()), build, _by_key)


def _by_key(container: Container, state: Any) -> list[Any] | str:
    """Every key must be there; what else the state has is left alone."""
    if not is_mapping(state):
        return _no_keys(container, state)
    there = set(state.keys())
    missing = [key for key in container.keys if key not in there]
    if missing:
        return _lacks_keys(container, missing, state)
    return [state[key] for key in container.keys]


def _by_index(container: Container, state: Any) -> list[Any] | str:
    """As many entries as the target has, by their numbers."""
    if not is_mapping(state):
        return [] if not container.keys and _is_empty(state) else _no_keys(container, state)
    keys = list(state.keys())
    if set(keys) != set(container.keys):
        wanted = keys_text(container.keys)
        return f"the target is {container}, so of {wanted}; the state has {keys_text(keys)}"
    return [state[key] for key in container.keys]


def _by_field(container: Container, state: Any) -> list[Any] | str:
    """All fields and no others, in any order; or the old form."""
    if set(container.keys) != _OLD_NAMED_TUPLE:
        state = plain_named_tuple_state(state)
    if not is_mapping(state):
        return _no_keys(container, state)
    there = set(state.keys())
    if there != set(container.keys):
        return f"the target is {container}; the state has {keys_text(list(state.keys()), 'field')}"
    return [state[key] for key in container.keys]


def _no_keys(target: object, state: Any) -> str:
    """Describes a state that should have keys and has none."""
    text = f"the target is {target}; the state is {describe(state)}"
    if isinstance(state, (list, tuple)):
        return f"{text}, of which to_state_dict makes a state"
    if isinstance(state, (bytes, bytearray, memoryview)):
        return f"{text}, which from_bytes reads"
    if isinstance(state, (str, os.PathLike)):
        return f"{text}: read_weights reads files"
    return text


def _lacks_keys(target: Container, missing: Sequence[str], state: Any) -> str:
    """Describes a dict whose state lacks keys, with what may have been meant.

    Args:
      target: the dict.
      missing: those of its keys that the state lacks.
      state: with other keys.
    """
    there = list(state.keys())
    known = set(target.keys)
    others = [key for key in there if key not in known]
    lacks = " and ".join(f"{key!r}{nearest(key, others)}" for key in missing[:MOST_KEYS])
    if len(missing) > MOST_KEYS:
        lacks += f" and {len(missing) - MOST_KEYS} more"
    end = "" if lacks.endswith("?") else "."
    text = f"the state lacks {lacks}{end} The target is {target}; the state has {keys_text(there)}"
    return text + _hint(target, missing[0], state)


def _hint(target: Container, missing: str, state: Any) -> str:
    """Says what else the state may be, if that is easily seen."""
    there = set(state.keys())
    if any(isinstance(key, str) and key.startswith(f"{missing}/") for key in there):
        return ". Its keys are paths: unflatten_state makes the nested dict of them"
    child = target.children[list(target.keys).index(missing)]
    if type(child) is dict and child and set(map(str, child)) <= there:
        return f". It has all keys of the target's {missing!r}: is {{{missing!r}: state}} meant?"
    # Other mappings may have to read files.
    for key, inner in state.items() if type(state) is dict else ():
        if isinstance(inner, Mapping) and set(target.keys) <= set(inner):
            return f". Its {key!r} has them all: is state[{key!r}] meant?"
    return ""


def _is_empty(state: Any) -> bool:
    try:
        return len(state) == 0
    except TypeError:
        return False
