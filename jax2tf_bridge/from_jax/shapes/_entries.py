"""Entries of polymorphic_shapes: their arguments, problems, and proposed corrections."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import BridgeError, Message, StructureError
from jax2tf_bridge.from_jax.arguments import shape_and_dtype
from jax2tf_bridge.from_jax.shapes._options import NAMED_AUTO_SHAPES, SHAPES
from jax2tf_bridge.portable import Auto
from shape_poly import Dim, shape_text, symbolic_shape


def find_entries(
    polymorphic_shapes: Any, names: Sequence[str], kwargs: Mapping[str, Any], function: str
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Finds the entries of the positional arguments, in the order of `names`, and those by keyword.

    Raises:
      StructureError: they have an invalid form, or an entry for an unknown argument.
    """
    if polymorphic_shapes is None or is_entry(polymorphic_shapes):
        return [polymorphic_shapes] * len(names), {}
    if isinstance(polymorphic_shapes, (list, tuple)) and len(polymorphic_shapes) == len(names):
        return polymorphic_shapes, {}
    if isinstance(polymorphic_shapes, Mapping):
        _check_names(polymorphic_shapes, [*names, *kwargs], function)
        return [polymorphic_shapes.get(name) for name in names], polymorphic_shapes
    by_keyword = ""
    if kwargs:
        entries = polymorphic_shapes if isinstance(polymorphic_shapes, (list, tuple)) else ()
        by_name = zip([*names, *kwargs], entries, strict=False)
        example = {name: entry for name, entry in by_name if entry is not None}
        example = example or {next(iter(kwargs)): "(b, ...)"}
        by_keyword = f" (passed by keyword: {', '.join(kwargs)}; use a dict, as {example!r})"
    positional = f"each of the {len(names)} positional arguments"
    if len(names) == 1:
        positional = "the positional argument"
    raise StructureError(
        Message(
            SHAPES,
            f" of {function} must be None, a string, a dict by the names of arguments, or a "
            f"sequence with one entry for {positional}{by_keyword}. Got: {polymorphic_shapes!r}",
        )
    )


def is_entry(value: Any) -> bool:
    """Returns whether a value is one specification rather than a pytree of them."""
    # jax2tf's PolyShape is a subclass of tuple.
    return isinstance(value, (str, Auto, type(None))) or type(value).__name__ == "PolyShape"


def entry_text(entry: Any, place: str) -> str | None:
    """Returns the text of a specification; None for None.

    Args:
      entry: a string, None, or a tuple of dimensions such as jax2tf's PolyShape.
      place: the argument's name for messages, such as "the argument x".

    Raises:
      StructureError: the entry has another type.
    """
    if entry is None or isinstance(entry, str):
        return entry
    if isinstance(entry, (tuple, list)):
        return ", ".join("..." if d is ... else str(d) for d in entry)
    raise StructureError(
        f"The polymorphic_shapes entry of {place} must be None or a string, as '(b, 28)'. "
        f"Got: {entry!r} of type {type(entry).__name__}."
    )


def _check_names(entries: Mapping[Any, Any], known: Sequence[str], function: str) -> None:
    for name in entries:
        if name not in known:
            near = did_you_mean(str(name), known, quoted=True)
            raise StructureError(
                Message(
                    SHAPES,
                    f" of {function} has an entry {name!r}, but no argument has this "
                    f"name{near or '.'} The arguments are {', '.join(known) or 'none'}. If one "
                    "of them is a dict, nest its shapes in a dict below its name, or pass a list "
                    "with one entry for each argument.",
                )
            )


Fits = Callable[[Any, Any, str], object]
"""Function that takes an argument, its entry and its name; raises BridgeError on a mismatch."""


def propose_shapes(
    polymorphic_shapes: Any, arguments: Sequence[tuple[str, Any, Any]], count: int, fits: Fits
) -> Any:
    """Proposes polymorphic_shapes that fit, close to the user's; None if it finds none.

    Entries that fit are kept. If all arguments share one entry, those that it does not fit get
    none. Unknown sizes get variables. `arguments` has (name, value, entry) for each argument: the
    first `count` are positional, and the value of a static one is None.
    """
    shared = is_entry(polymorphic_shapes)
    proposals: dict[str, Any] = {}
    for name, argument, entry in arguments:
        candidates = [entry, *([None] if shared else []), *_name_unknown_sizes(argument)]
        fitting = [c for c in candidates if _fit(fits, argument, c, name)]
        if not fitting:
            return None
        proposals[name] = fitting[0]
    if all(entry is None for entry in proposals.values()):
        return None
    names = [name for name, _, _ in arguments]
    if isinstance(polymorphic_shapes, Mapping) or any(
        proposals[n] is not None for n in names[count:]
    ):
        return {name: entry for name, entry in proposals.items() if entry is not None}
    return [proposals[name] for name in names[:count]]


def _fit(fits: Fits, argument: Any, entry: Any, name: str) -> bool:
    try:
        fits(argument, entry, name)
    except BridgeError:
        return False
    return True


def _name_unknown_sizes(argument: Any) -> list[Any]:
    """Returns a list with an entry that names unknown sizes, if code can express it; else []."""
    if not _has_only_builtin_containers(argument):
        return []
    return [jax.tree_util.tree_map(_describe_unknown_sizes, argument)]


def _describe_unknown_sizes(leaf: Any) -> str | None:
    shape, _ = shape_and_dtype(leaf, "")
    return format_with_names(shape) if None in shape else None


def format_with_names(shape: Sequence[int | str | None]) -> str:
    """Formats a shape as an entry, with variables for unknown sizes.

    >>> format_with_names([None, 28]), format_with_names([None])
    ('(b, 28)', '(b,)')
    """
    names = ["b", *(f"d{i}" for i in range(1, len(shape)))]
    return shape_text(name if d is None else d for name, d in zip(names, shape, strict=False))


def _has_only_builtin_containers(tree: Any) -> bool:
    if isinstance(tree, dict):
        return type(tree) is dict and all(map(_has_only_builtin_containers, tree.values()))
    if isinstance(tree, (list, tuple)):
        return type(tree) in (list, tuple) and all(map(_has_only_builtin_containers, tree))
    return tree is None or bool(jax.tree_util.all_leaves([tree]))


def describe_problem(
    shape: Sequence[int | None], shape_spec: str | None, path: str, error: ValueError
) -> Message:
    """Describes shape_poly's error about the entry of an argument.

    `shape` has None for unknown sizes. `path` is the argument in Python's syntax: "x",
    "params['w']".
    """
    shown = shape_text(shape)
    argument = f"The argument {path} has shape {shown}"
    entry = shape_spec or "..."
    named = _parse_dimensions(entry)
    difference = (
        _describe_difference(shape, named, open_ended="..." in entry) if named is not None else None
    )
    if named is None or (difference is None and None not in shape):
        described = f"The argument {path} of shape {shown} has no valid "
        return Message(described, SHAPES, f" entry: {error}")
    if difference is None:
        return Message(
            f"{argument} with an unknown dimension, and its ",
            SHAPES,
            f" entry {shape_spec!r} names no variable for it, as "
            f"{format_with_names(shape)!r} does.",
        )
    word = entry.strip("() ").lower()
    hint = Message()
    if did_you_mean(word, ["auto", "infer"]):
        hint = Message(" To let the bridge choose it, pass ", NAMED_AUTO_SHAPES, ".")
    return Message(
        f"{argument}, which does not match its ",
        SHAPES,
        f" entry {shape_spec!r}: {difference}.",
        hint,
    )


def _parse_dimensions(shape_spec: str) -> tuple[Dim, ...] | None:
    """Parses a specification; "_" becomes a variable, and a final "..." is dropped.

    Returns None if it cannot be parsed.
    """
    text = re.sub(r"(?<!\w)_(?!\w)", "placeholder", shape_spec)
    text = re.sub(r"\.\.\.([\s,)]*)\Z", r"\1", text)
    try:
        return symbolic_shape(text)
    except ValueError:
        return None


def _describe_difference(
    shape: Sequence[int | None], named: Sequence[Dim], *, open_ended: bool
) -> str | None:
    """Describes the differences between an argument's sizes and its entry; None if they match."""
    if len(named) > len(shape) or (len(named) < len(shape) and not open_ended):
        dimensions = "dimension" if len(named) == 1 else "dimensions"
        return f"the entry has {len(named)} {dimensions}, the argument {len(shape)}"
    sizes = zip(shape, named, strict=False)
    differing = [
        f"dimension {axis} is {size} and not {expected}"
        for axis, (size, expected) in enumerate(sizes)
        if size is not None and isinstance(expected, int) and size != expected
    ]
    return ", ".join(differing) or None
