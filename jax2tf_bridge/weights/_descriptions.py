"""Texts about states: what a leaf or a container is, and what a state lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax2tf_bridge._utils._array_texts import array_type_text
from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.errors import StateDictError, bullet_list

MOST_KEYS = 8
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
    return array_type_text(getattr(dtype, "name", dtype), value.shape)


def keys_text(keys: Sequence[Any], noun: str = "key") -> str:
    """Keys as text, the first few of many.

    >>> keys_text(["a", "b"]), keys_text(["x"], "field"), keys_text([])
    ("the keys 'a', 'b'", "the field 'x'", 'no keys')
    """
    if not keys:
        return f"no {noun}s"
    shown = ", ".join(repr(key) for key in keys[:MOST_KEYS])
    more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
    return f"the {noun}{'s' * (len(keys) > 1)} {shown}{more}"


def nearest(name: str, others: Sequence[Any]) -> str:
    """Which of these keys was probably meant, as the end of a message."""
    # To compare thousands of keys with thousands would take minutes.
    return did_you_mean(name, map(str, others[:_MOST_COMPARED]), quoted=True)


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
