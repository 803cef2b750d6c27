"""The texts about entries of polymorphic_shapes that do not fit their arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.errors import Argument, Message
from jax2tf_bridge.from_jax.shapes._shape_proposals import shape_with_names
from jax2tf_bridge.from_jax.shapes._size_words import AUTO_SHAPES, CONSTRAINTS, SHAPES
from jax2tf_bridge.portable._auto import AUTO
from shape_poly import Dim, symbolic_shape


def shape_problem(
    shape: Sequence[int | None], shape_spec: str | None, path: str, error: ValueError
) -> Message:
    """Tells what is wrong with the entry of an argument.

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
    if did_you_mean(word, ["auto"]):
        code = "AUTO (from jax2tf_bridge import AUTO), which is no string"
        auto = Argument(SHAPES.name, AUTO, code)
        hint = Message(" For the bridge to choose it, pass ", auto, ".")
    elif did_you_mean(word, ["infer"]):
        hint = Message(" 'infer' is for ", CONSTRAINTS, "; for shapes there is ", AUTO_SHAPES, ".")
    return Message(
        f"{argument}, which does not match its ",
        SHAPES,
        f" entry {shape_spec!r}: {difference}.",
        hint,
    )


def _dimensions_named(shape_spec: str) -> tuple[Dim, ...] | None:
    """The dimensions of a specification, with variables for "_" and nothing for "..." at the end.

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
    """How the sizes of an argument differ from those that its entry names; None if they do not."""
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
