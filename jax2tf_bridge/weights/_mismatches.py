"""Compares state dicts, and describes their differences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jax2tf_bridge._utils import array_type_text, did_you_mean, join_names
from jax2tf_bridge.errors import StateDictError, format_bullets
from jax2tf_bridge.weights._paths import join_path, walk

MAX_SHOWN_KEYS = 8
_MAX_LINES = 20
_MAX_COMPARED = 100

OLD_NAMED_TUPLE_KEYS = frozenset({"name", "fields", "values"})
_KIND = re.compile(r"bool|u?int|b?float|complex")
_NUMBERS = (bool, int, float, complex)
# msgpack has one type for these, which is read as bytes.
_BINARIES = (bytes, bytearray, memoryview)


def describe(value: Any) -> str:
    """Describes a state in a few words.

    >>> describe({"a": 1}), describe(1.5), describe([1, 2])
    ("a dict with the key 'a'", 'a Python float', 'a list of length 2')
    """
    if value is None:
        return "None"
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return f"a {kind} with {format_keys(list(value))}"
    if type(value) in _NUMBERS:
        return f"a Python {kind}"
    if isinstance(value, (list, tuple, str, bytes, bytearray)):
        return f"a {kind} of length {len(value)}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return array_type_text(getattr(value.dtype, "name", value.dtype), value.shape)
    return f"a {kind}"


def format_keys(keys: Sequence[Any], noun: str = "key") -> str:
    """Formats a list of keys; only the first few of many.

    >>> format_keys(["a", "b"]), format_keys(["x"], "field"), format_keys([])
    ("the keys 'a', 'b'", "the field 'x'", 'no keys')
    """
    names = join_names([repr(key) for key in keys], MAX_SHOWN_KEYS)
    return f"the {noun}{'s' * (len(keys) > 1)} {names}" if keys else f"no {noun}s"


def suggest_key(name: str, others: Sequence[Any]) -> str:
    """Suggests a similar key, as the end of a message."""
    # Comparing thousands of keys with thousands would take minutes.
    return did_you_mean(name, map(str, others[:_MAX_COMPARED]), quoted=True)


def suggest_level(children: Mapping[str, Any], missing: str, state: Any) -> str:
    """Returns a sentence if the state is flat, or a level too high or too low; else "".

    Args:
      children: the target's children, by key.
      missing: a key of the target that the state lacks.
      state: the state, a mapping.
    """
    state_keys = set(state.keys())
    if any(isinstance(key, str) and key.startswith(f"{missing}/") for key in state_keys):
        return "Its keys are paths: unflatten_state turns them into nested dicts"
    child = children[missing]
    if type(child) is dict and child and set(map(str, child)) <= state_keys:
        return f"It has all keys of the target's {missing!r}: did you mean {{{missing!r}: state}}?"
    # Other mappings may read files.
    for key, inner in state.items() if type(state) is dict else ():
        if isinstance(inner, Mapping) and set(children) <= set(inner):
            return f"Its {key!r} has them all: did you mean state[{key!r}]?"
    return ""


def make_state_error(lines: Sequence[tuple[str, str]], advice: str) -> StateDictError:
    """Makes an error about all differences between a state and its target.

    Args:
      lines: the path and the text of each difference; at least one.
      advice: a sentence with the remedy.
    """
    texts = format_bullets([f"{path or 'at the top'}: {text}" for path, text in lines], _MAX_LINES)
    return StateDictError(f"The state does not fit the target. {advice}{texts}", path=lines[0][0])


def is_mapping(state: Any) -> bool:
    """Returns whether a state has keys: a Mapping, or an object that behaves like one."""
    return isinstance(state, Mapping) or (
        hasattr(state, "keys") and hasattr(state, "__getitem__") and not isinstance(state, type)
    )


def convert_old_named_tuple(state: Any) -> Any:
    """Converts a named tuple's state from the form of Flax before 2022; others stay as they are.

    The old form is {"name": ..., "fields": {"0": name, ...}, "values": {"0": value, ...}}.
    """
    if not is_mapping(state) or set(state.keys()) != OLD_NAMED_TUPLE_KEYS:
        return state
    names, values = state["fields"], state["values"]
    if not is_mapping(names) or not is_mapping(values):
        return state
    places = [str(index) for index in range(len(names))]
    if set(names.keys()) != set(places) or not set(places) <= set(values.keys()):
        return state
    if not all(isinstance(name, str) for name in names.values()):
        return state
    return {names[place]: values[place] for place in places}


def list_differences(expected: Any, state: Any, *, leaves: bool = True) -> list[tuple[str, str]]:
    """Lists the path and the text of each difference between two states.

    Args:
      expected: the state of the target. Leaves are Python numbers, or have a shape and a dtype
        (arrays of any library, jax.ShapeDtypeStruct).
      state: the actual state. The elements of its arrays are not read.
      leaves: whether to compare leaves too, not only keys.
    """
    mismatches: list[tuple[str, str]] = []

    def compare(pair: tuple[Any, Any], keys: Sequence[str]) -> Iterable[tuple[str, Any]]:
        target, actual = pair
        texts: list[str] = []
        pairs: list[tuple[str, Any]] = []
        if isinstance(target, dict):
            texts, pairs = _compare_keys(target, actual)
        elif isinstance(target, (list, tuple)) and isinstance(actual, (list, tuple)):
            # Registered functions may return lists or tuples; msgpack has only lists.
            if len(target) != len(actual):
                texts = [_describe_both(target, actual)]
            pairs = [(str(i), both) for i, both in enumerate(zip(target, actual, strict=False))]
        elif leaves and not _leaves_fit(target, actual):
            texts = [_describe_both(target, actual)]
        mismatches.extend((join_path(keys), text) for text in texts)
        return pairs

    walk((expected, state), compare)
    return mismatches


def _describe_both(target: Any, actual: Any) -> str:
    return f"the target has {describe(target)}, the state {describe(actual)}"


def _compare_keys(target: dict[str, Any], actual: Any) -> tuple[list[str], list[tuple[str, Any]]]:
    """Compares keys; returns texts about differences, and the pairs of values with common keys."""
    converted = convert_old_named_tuple(actual)
    if converted is not actual and set(converted) == set(target):
        actual = converted
    if not is_mapping(actual):
        return [_describe_both(target, actual)], []
    actual_keys = dict.fromkeys(actual.keys())
    missing = [key for key in target if key not in actual_keys]
    extra = [key for key in actual_keys if key not in target]
    texts = [
        # Suggestions take time, so only the lines that are shown get one.
        f"the state lacks {key!r}{suggest_key(key, extra) if number < _MAX_LINES else ''}"
        for number, key in enumerate(missing)
    ]
    if missing and (hint := suggest_level(target, missing[0], actual)):
        texts[0] += f"{'' if texts[0].endswith('?') else '.'} {hint}"
    texts += [f"the state has {key!r}, which the target lacks" for key in extra]
    return texts, [
        (key, (value, actual[key])) for key, value in target.items() if key in actual_keys
    ]


def _leaves_fit(target: Any, actual: Any) -> bool:
    shape, actual_shape = _get_shape(target), _get_shape(actual)
    numbers = [type(leaf) in _NUMBERS for leaf in (target, actual)]
    if all(numbers) or shape is None or actual_shape is None:
        binaries = type(target) in _BINARIES and type(actual) in _BINARIES
        return binaries or type(target) is type(actual)
    if any(numbers):
        # A counter is a Python number at first, and an array after the first step under jit.
        return shape == actual_shape == () and _describe_kind(target) == _describe_kind(actual)
    return shape == actual_shape and bool(_get_dtype(target) == _get_dtype(actual))


def _get_shape(leaf: Any) -> tuple[Any, ...] | None:
    if type(leaf) in _NUMBERS:
        return ()
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return None
    return tuple(leaf.shape)


def _get_dtype(leaf: Any) -> Any:
    """Returns the dtype in the machine's byte order, as in files."""
    dtype = getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype)  # of TensorFlow's dtypes
    try:
        return np.dtype(dtype).newbyteorder("=")
    except TypeError:
        return dtype  # JAX's extended dtypes, such as those of PRNG keys


def _describe_kind(leaf: Any) -> str:
    """Returns "bool", "int", "float" or "complex"; "" for other leaves."""
    name = type(leaf).__name__ if type(leaf) in _NUMBERS else str(_get_dtype(leaf))
    match = _KIND.match(name)
    return match[0].lstrip("u").replace("bfloat", "float") if match else name
