"""Proposes polymorphic_shapes where those that the user wrote do not fit the arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.from_jax._argument_types import shape_and_dtype
from jax2tf_bridge.from_jax.shapes._spec_entries import is_entry

Fits = Callable[[Any, Any, str], object]
"""Takes an argument, its entry and its name, and raises a BridgeError if they do not fit."""


def proposed_shapes(
    polymorphic_shapes: Any,
    args: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    entries: Sequence[Any],
    by_name: Mapping[str, Any],
    fits: Fits,
) -> Any:
    """polymorphic_shapes that fit, as near to the given as can be; None if none are found.

    An entry that fits stays. One entry for all arguments is left out for those that it does not
    fit, and dimensions that are not known get variables.

    Args:
      polymorphic_shapes: as the user wrote them.
      args: the positional arguments by name; None for static ones.
      kwargs: those by keyword that are not static.
      entries: the entries of the positional arguments.
      by_name: those of the others.
      fits: compares an argument with an entry.
    """
    shared = is_entry(polymorphic_shapes)
    given = [
        *((name, arg, entry) for (name, arg), entry in zip(args.items(), entries, strict=True)),
        *((name, arg, by_name.get(name)) for name, arg in kwargs.items()),
    ]
    found: dict[str, Any] = {}
    for name, argument, entry in given:
        candidates = [entry, *([None] if shared else []), *_with_names(argument)]
        fitting = [c for c in candidates if _fit(fits, argument, c, name)]
        if not fitting:
            return None
        found[name] = fitting[0]
    if all(entry is None for entry in found.values()):
        return None
    if isinstance(polymorphic_shapes, Mapping) or any(found[name] is not None for name in kwargs):
        return {name: entry for name, entry in found.items() if entry is not None}
    return [found[name] for name in args]


def _fit(fits: Fits, argument: Any, entry: Any, name: str) -> bool:
    try:
        fits(argument, entry, name)
    except BridgeError:
        return False
    return True


def _with_names(argument: Any) -> list[Any]:
    """An entry with a variable for each dimension that is not known, if code can write it."""
    if not _is_plain(argument):
        return []
    return [jax.tree_util.tree_map(_text, argument)]


def _text(leaf: Any) -> str | None:
    shape, _ = shape_and_dtype(leaf, "")
    return shape_with_names(shape) if None in shape else None


def shape_with_names(shape: Sequence[int | None]) -> str:
    """A shape as an entry, with variables for the sizes that are not known.

    >>> shape_with_names([None, 28]), shape_with_names([None])
    ('(b, 28)', '(b,)')
    """
    names = ["b", *(f"d{i}" for i in range(1, len(shape)))]
    sizes = [name if d is None else str(d) for name, d in zip(names, shape, strict=False)]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _is_plain(tree: Any) -> bool:
    """Whether Python's own containers alone are in it."""
    if isinstance(tree, dict):
        return type(tree) is dict and all(map(_is_plain, tree.values()))
    if isinstance(tree, (list, tuple)):
        return type(tree) in (list, tuple) and all(map(_is_plain, tree))
    return tree is None or bool(jax.tree_util.all_leaves([tree]))
