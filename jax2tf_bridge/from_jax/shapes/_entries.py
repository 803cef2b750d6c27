"""Entries of polymorphic_shapes: whose each is, what is wrong with it, and what fits instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import BridgeError, Message, StructureError
from jax2tf_bridge.from_jax.arguments import shape_and_dtype
from jax2tf_bridge.from_jax.shapes._traced_function import NAMED_AUTO_SHAPES, SHAPES
from jax2tf_bridge.portable import Auto
from shape_poly import Dim, symbolic_shape


def specs_of_arguments(
    polymorphic_shapes: Any, names: Sequence[str], kwargs: Mapping[str, Any], function: str
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Finds the entry of each positional argument, and those of arguments by keyword.

    Args:
      polymorphic_shapes: as the user wrote them.
      names: of the positional arguments.
      kwargs: the arguments by keyword.
      function: its name, for messages.

    Raises:
      StructureError: they have another form, or there is no such argument.
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
        one_each = polymorphic_shapes if isinstance(polymorphic_shapes, (list, tuple)) else ()
        by_name = zip([*names, *kwargs], one_each, strict=False)
        example = {name: entry for name, entry in by_name if entry is not None}
        example = example or {next(iter(kwargs)): "(b, ...)"}
        by_keyword = f" ({', '.join(kwargs)} came by keyword: name the arguments, as {example!r})"
    raise StructureError(
        Message(
            SHAPES,
            f" of {function} must be None, a string, a dict by the names of arguments, or a "
            f"sequence with one entry for each of the {len(names)} positional "
            f"arguments{by_keyword}. Got: {polymorphic_shapes!r}",
        )
    )


def is_entry(value: Any) -> bool:
    """Returns whether a value is one specification rather than a pytree of them."""
    # jax2tf's PolyShape is a tuple of dimensions of a type of its own.
    return isinstance(value, (str, Auto, type(None))) or type(value).__name__ == "PolyShape"


def entry_text(entry: Any, place: str) -> str | None:
    """Returns one specification as text; None for none.

    Args:
      entry: a string, None, or a tuple of dimensions, as jax2tf's PolyShape is.
      place: how messages call what it is for, as "the argument x".

    Raises:
      StructureError: it is something else.
    """
    if entry is None or isinstance(entry, str):
        return entry
    if isinstance(entry, (tuple, list)):
        return ", ".join("..." if d is ... else str(d) for d in entry)
    raise StructureError(
        f"The polymorphic_shapes entry of {place} must be None or a string, as '(b, 28)'. "
        f"Got: {entry!r} of type {type(entry).__name__}."
    )


def _check_names(given: Mapping[Any, Any], known: Sequence[str], function: str) -> None:
    for name in given:
        if name not in known:
            near = did_you_mean(str(name), known, quoted=True)
            raise StructureError(
                Message(
                    SHAPES,
                    f" of {function} has an entry {name!r}, but no argument has this "
                    f"name{near or '.'} The arguments are {', '.join(known) or 'none'}; where one "
                    "is a dict, its shapes stand in a dict below its name, or in a list with one "
                    "entry for each argument.",
                )
            )


Fits = Callable[[Any, Any, str], object]
"""Takes an argument, its entry and its name, and raises a BridgeError if they do not fit."""


def proposed_shapes(
    polymorphic_shapes: Any, arguments: Sequence[tuple[str, Any, Any]], count: int, fits: Fits
) -> Any:
    """Proposes polymorphic_shapes that fit, as near to the given as can be; None if none are found.

    An entry that fits stays. One entry for all arguments is left out for those that it does not
    fit, and dimensions that are not known get variables.

    Args:
      polymorphic_shapes: as the user wrote them.
      arguments: the name, value and entry of each; the value is None for static ones.
      count: how many of them are positional.
      fits: compares an argument with an entry.
    """
    shared = is_entry(polymorphic_shapes)
    found: dict[str, Any] = {}
    for name, argument, entry in arguments:
        candidates = [entry, *([None] if shared else []), *_with_names(argument)]
        fitting = [c for c in candidates if _fit(fits, argument, c, name)]
        if not fitting:
            return None
        found[name] = fitting[0]
    if all(entry is None for entry in found.values()):
        return None
    names = [name for name, _, _ in arguments]
    if isinstance(polymorphic_shapes, Mapping) or any(found[n] is not None for n in names[count:]):
        return {name: entry for name, entry in found.items() if entry is not None}
    return [found[name] for name in names[:count]]


def _fit(fits: Fits, argument: Any, entry: Any, name: str) -> bool:
    try:
        fits(argument, entry, name)
    except BridgeError:
        return False
    return True


def _with_names(argument: Any) -> list[Any]:
    """Lists an entry with a variable for each size that is not known, if code can write it."""
    if not _is_plain(argument):
        return []
    return [jax.tree_util.tree_map(_text, argument)]


def _text(leaf: Any) -> str | None:
    shape, _ = shape_and_dtype(leaf, "")
    return shape_with_names(shape) if None in shape else None


def shape_with_names(shape: Sequence[int | None]) -> str:
    """Writes a shape as an entry, with variables for the sizes that are not known.

    >>> shape_with_names([None, 28]), shape_with_names([None])
    ('(b, 28)', '(b,)')
    """
    names = ["b", *(f"d{i}" for i in range(1, len(shape)))]
    sizes = [name if d is None else str(d) for name, d in zip(names, shape, strict=False)]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _is_plain(tree: Any) -> bool:
    """Returns whether a tree consists of Python's own containers only."""
    if isinstance(tree, dict):
        return type(tree) is dict and all(map(_is_plain, tree.values()))
    if isinstance(tree, (list, tuple)):
        return type(tree) in (list, tuple) and all(map(_is_plain, tree))
    return tree is None or bool(jax.tree_util.all_leaves([tree]))


def shape_problem(
    shape: Sequence[int | None], shape_spec: str | None, path: str, error: ValueError
) -> Message:
    """Describes what is wrong with the entry of an argument.

    Args:
      shape: the argument's, None where a size is not known.
      shape_spec: its entry; None for none.
      path: how a user would write the argument: "x", "params['w']".
      error: what shape_poly said of the entry.
    """
    shown = f"({', '.join('?' if d is None else str(d) for d in shape)})"
    argument = f"The argument {path} has shape {shown}"
    entry = shape_spec or "..."
    named = _dimensions_named(entry)
    difference = _difference(shape, named, open_ended="..." in entry) if named is not None else None
    if named is None or (difference is None and None not in shape):
        described = f"The argument {path} of shape {shown} has no valid "
        return Message(described, SHAPES, f" entry: {error}")
    if difference is None:
        return Message(
            f"{argument} with a dimension that is not known, and its ",
            SHAPES,
            f" entry {shape_spec!r} names no variable for it, as {shape_with_names(shape)!r} does.",
        )
    word = entry.strip("() ").lower()
    hint = Message()
    if did_you_mean(word, ["auto", "infer"]):
        hint = Message(" For the bridge to choose it, pass ", NAMED_AUTO_SHAPES, ".")
    return Message(
        f"{argument}, which does not match its ",
        SHAPES,
        f" entry {shape_spec!r}: {difference}.",
        hint,
    )


def _dimensions_named(shape_spec: str) -> tuple[Dim, ...] | None:
    """Reads a specification, with variables for "_" and nothing for "..." at the end.

    None if it cannot be read.
    """
    text = re.sub(r"(?<!\w)_(?!\w)", "placeholder", shape_spec)
    text = re.sub(r"\.\.\.([\s,)]*)\Z", r"\1", text)
    try:
        return symbolic_shape(text)
    except ValueError:
        return None


def _difference(
    shape: Sequence[int | None], named: Sequence[Dim], *, open_ended: bool
) -> str | None:
    """Describes how an argument's sizes differ from its entry; None if they do not."""
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
