"""Which entry of polymorphic_shapes is whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.errors import Message, StructureError
from jax2tf_bridge.from_jax.shapes._size_words import SHAPES
from jax2tf_bridge.portable._auto import Auto


def specs_of_arguments(
    polymorphic_shapes: Any, names: Sequence[str], kwargs: Mapping[str, Any], function: str
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The entries of the positional arguments, and of those by keyword.

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
    """Whether it is one specification, and no pytree of them."""
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
                    f" of {function} have an entry {name!r}, and no argument is called "
                    f"so{near or '.'} The arguments are {', '.join(known) or 'none'}; where one "
                    "is a dict, its shapes stand in a dict below its name, or in a list with one "
                    "entry for each argument.",
                )
            )
