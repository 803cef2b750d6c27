"""Texts about states: what a leaf or a container is, and what a state lacks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.errors import StateDictError, bullet_list

if TYPE_CHECKING:
    from jax2tf_bridge.weights._containers import Container

_MOST_KEYS = 8
MOST_LINES = 20
_MOST_COMPARED = 100


def describe(value: Any) -> str:
    """What a state is, in a few words.

    >>> describe({"a": 1}), describe(1.5), describe([1, 2])
    ("a dict with the key 'a'", 'a Python float', 'a list of length 2')
    """
    if value is None:
        return "None"
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return f"a {kind} with {keys_text(list(value))}"
    if isinstance(value, (bool, int, float, complex)) and type(value).__module__ == "builtins":
        return f"a Python {kind}"
    if isinstance(value, (list, tuple, str, bytes, bytearray)):
        return f"a {kind} of length {len(value)}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return array_text(value)
    return f"a {kind}"


def array_text(value: Any) -> str:
    """An array, or what stands for one, by dtype and shape: "float32[3,4]"."""
    dtype = value.dtype
    return f"{getattr(dtype, 'name', dtype)}[{','.join(str(size) for size in value.shape)}]"


def keys_text(keys: Sequence[Any], noun: str = "key") -> str:
    """Keys as text, the first few of many.

    >>> keys_text(["a", "b"]), keys_text(["x"], "field"), keys_text([])
    ("the keys 'a', 'b'", "the field 'x'", 'no keys')
    """
    if not keys:
        return f"no {noun}s"
    shown = ", ".join(repr(key) for key in keys[:_MOST_KEYS])
    more = f" and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
    return f"the {noun}{'s' * (len(keys) > 1)} {shown}{more}"


def no_mapping(target: object, state: Any) -> str:
    """What to say of a state that should have keys and has none."""
    text = f"the target is {target}; the state is {describe(state)}"
    if isinstance(state, (list, tuple)):
        return f"{text}, of which to_state_dict makes a state"
    if isinstance(state, (bytes, bytearray, memoryview)):
        return f"{text}, which from_bytes reads"
    if isinstance(state, (str, os.PathLike)):
        return f"{text}: read_weights reads files"
    return text


def nearest(name: str, others: Sequence[Any]) -> str:
    """Which of these keys was probably meant, as the end of a message."""
    # To compare thousands of keys with thousands would take minutes.
    return did_you_mean(name, map(str, others[:_MOST_COMPARED]), quoted=True)


def lacking(target: Container, missing: Sequence[str], state: Any) -> str:
    """What to say of a dict whose state lacks keys, with what may have been meant.

    Args:
      target: the dict.
      missing: those of its keys that the state lacks.
      state: with other keys.
    """
    there = list(state.keys())
    known = set(target.keys)
    others = [key for key in there if key not in known]
    lacks = " and ".join(f"{key!r}{nearest(key, others)}" for key in missing[:_MOST_KEYS])
    if len(missing) > _MOST_KEYS:
        lacks += f" and {len(missing) - _MOST_KEYS} more"
    end = "" if lacks.endswith("?") else "."
    text = f"the state lacks {lacks}{end} The target is {target}; the state has {keys_text(there)}"
    return text + _hint(target, missing[0], state)


def _hint(target: Container, missing: str, state: Any) -> str:
    """What else the state may be, if that is easily seen."""
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


def misfit(lines: Sequence[tuple[str, str]], advice: str) -> StateDictError:
    """The error about all differences between a state and what it is to be restored into.

    Args:
      lines: where, as a path, and what; at least one.
      advice: what to do, as a sentence.
    """
    texts = [f"{path or 'at the top'}: {text}" for path, text in lines[:MOST_LINES]]
    if len(lines) > MOST_LINES:
        texts.append(f"and {len(lines) - MOST_LINES} more")
    return StateDictError(
        f"The state does not fit the target. {advice}{bullet_list(texts)}", path=lines[0][0]
    )
