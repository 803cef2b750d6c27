"""Takes dicts, lists, tuples, named tuples and Partials apart, and rebuilds them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.weights._mismatches import (
    MAX_SHOWN_KEYS,
    OLD_NAMED_TUPLE_KEYS,
    convert_old_named_tuple,
    describe,
    format_keys,
    is_mapping,
    suggest_key,
    suggest_level,
)

_TEXT = frozenset({str})
_INDEX_KEYS = [str(index) for index in range(64)]


@dataclass(frozen=True)
class Container:
    """Container object, which is stored by its children.

    Attributes:
      kind: "dict", "list", "tuple", "Partial", or "named tuple" and a name.
      keys: the keys of its state, one for each child.
      children: its children.
      build: builds a similar object from other children.
    """

    kind: str
    keys: Sequence[str]
    children: Sequence[Any]
    build: Callable[[list[Any]], Any]

    def child_states(self, state: Any) -> list[Any] | str:
        """Returns the state of each child, or the reason why the state does not fit.

        Lists and tuples need exactly their indices, and named tuples their fields. Additional keys
        are ignored for dicts.
        """
        is_sequence = self.kind in ("list", "tuple")
        if self._has_fields and set(self.keys) != OLD_NAMED_TUPLE_KEYS:
            state = convert_old_named_tuple(state)
        if not is_mapping(state):
            is_empty = is_sequence and not self.keys and _is_empty(state)
            return [] if is_empty else _describe_without_keys(self, state)
        state_keys = dict.fromkeys(state.keys())
        if (is_sequence or self._has_fields) and state_keys.keys() != set(self.keys):
            expected = f", which has {format_keys(self.keys)}" if is_sequence else ""
            actual = format_keys([*state_keys], self._noun)
            return f"the target is {self}{expected}; the state has {actual}"
        missing = [key for key in self.keys if key not in state_keys]
        if missing:
            return _describe_missing_keys(self, missing, state)
        return [state[key] for key in self.keys]

    @property
    def _has_fields(self) -> bool:
        return self.kind.startswith("named tuple")

    @property
    def _noun(self) -> str:
        return "field" if self._has_fields else "key"

    def __str__(self) -> str:
        if self.kind in ("list", "tuple"):
            return f"a {self.kind} of length {len(self.keys)}"
        return f"a {self.kind} with {format_keys(self.keys, self._noun)}"


def is_named_tuple(target: Any) -> bool:
    """Returns whether an object looks like a named tuple."""
    return isinstance(target, tuple) and hasattr(target, "_fields")


def find_container(target: Any) -> Container | None:
    """Returns the parts of a container; None for leaves, such as subclasses of dict and list."""
    kind = type(target)
    if kind is dict:
        return Container(
            "dict",
            [str(key) for key in target],
            list(target.values()),
            lambda children: dict(zip(target, children, strict=True)),
        )
    if kind is list or kind is tuple:
        return Container(kind.__name__, index_keys(len(target))[: len(target)], target, kind)
    if is_named_tuple(target):
        fields = target._fields
        return Container(
            f"named tuple {kind.__name__}",
            fields,
            [getattr(target, field) for field in fields],
            lambda children: kind(**dict(zip(fields, children, strict=True))),
        )
    if kind is find_partial_type():
        return Container(
            "Partial",
            ["args", "keywords"],
            [target.args, target.keywords],
            lambda children: kind(target.func, *children[0], **children[1]),
        )
    return None


def is_container(target: Any) -> bool:
    """Returns whether an object is a container."""
    return is_built_in(type(target)) or is_named_tuple(target)


def has_text_keys(target: dict[Any, Any]) -> bool:
    """Returns whether all keys of a dict are plain text, as in its state."""
    return _TEXT.issuperset(map(type, target))


def index_keys(count: int) -> list[str]:
    """Returns the keys "0", "1", ... of a list's state: at least `count` of them."""
    return _INDEX_KEYS if count <= len(_INDEX_KEYS) else list(map(str, range(count)))


def is_built_in(kind: type) -> bool:
    """Returns whether a type is a built-in container; False for named tuples."""
    return kind in (dict, list, tuple) or kind is find_partial_type()


def find_partial_type() -> Any:
    """Returns jax.tree_util.Partial; None if JAX is not imported: no object has the type then."""
    return getattr(sys.modules.get("jax.tree_util"), "Partial", None)


def _describe_without_keys(target: Container, state: Any) -> str:
    """Describes a state that is not a mapping."""
    text = f"the target is {target}; the state is {describe(state)}"
    if isinstance(state, (list, tuple)):
        return f"{text}: to_state_dict turns it into a state"
    if isinstance(state, (bytes, bytearray, memoryview)):
        return f"{text}: from_bytes reads bytes"
    if isinstance(state, (str, os.PathLike)):
        return f"{text}: read_weights reads files"
    return text


def _describe_missing_keys(target: Container, missing: Sequence[str], state: Any) -> str:
    state_keys = list(state.keys())
    target_keys = set(target.keys)
    others = [key for key in state_keys if key not in target_keys]
    lacks = " and ".join(f"{key!r}{suggest_key(key, others)}" for key in missing[:MAX_SHOWN_KEYS])
    if len(missing) > MAX_SHOWN_KEYS:
        lacks += f" and {len(missing) - MAX_SHOWN_KEYS} more"
    end = "" if lacks.endswith("?") else "."
    known = format_keys(state_keys)
    text = f"the state lacks {lacks}{end} The target is {target}; the state has {known}"
    hint = suggest_level(dict(zip(target.keys, target.children, strict=True)), missing[0], state)
    return f"{text}. {hint}" if hint else text


def _is_empty(state: Any) -> bool:
    try:
        return len(state) == 0
    except TypeError:
        return False
