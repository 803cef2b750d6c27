"""Checks that options for buckets name existing inputs and dimension variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import Argument, Blank, Message, ShapeError
from jax2tf_bridge.portable import Aval, variables_in

BUCKETS = Argument("buckets", Blank("{...}"))
"""Placeholder for buckets in messages."""


def check_buckets(name: str, buckets: Any) -> None:
    """Raises unless buckets are a mapping.

    Raises:
      ShapeError: they are not.
    """
    if not isinstance(buckets, Mapping):
        raise ShapeError(
            f"{name}: buckets={buckets!r}: expected a mapping, as {{'b': [1, 8, 32]}}. To have "
            "buckets chosen, pass save(..., expected_sizes=[...]), the sizes of requests."
        )


def list_masks(name: str, mask: Any) -> tuple[str, ...]:
    """Lists the names in the `mask` option.

    Raises:
      ShapeError: `mask` is neither a name, a list of names nor None.
    """
    if isinstance(mask, str):
        return (mask,)
    masks = () if mask is None else mask
    if not isinstance(masks, Sequence) or not all(isinstance(each, str) for each in masks):
        raise ShapeError(
            f"{name}: mask={mask!r}: expected the name of an input, as 'mask', or a list of names"
        )
    return tuple(masks)


def check_variables(name: str, buckets: Iterable[str], inputs: Mapping[str, Aval]) -> None:
    """Raises if buckets are for a name that is not a dimension variable.

    Raises:
      ShapeError: the message suggests what was probably meant.
    """
    known = sorted({v for aval in inputs.values() for v in variables_in(aval)})
    shapes = ", ".join(f"{n}: {aval}" for n, aval in inputs.items()) or "none"
    for variable in buckets:
        if variable in known:
            continue
        if not known:
            shapes_argument = Argument("polymorphic_shapes", f"({variable}, ...)")
            raise ShapeError(
                Message(
                    f"{name}: buckets are for dimension variables, and its inputs have none "
                    f"({shapes}). Export the function with ",
                    shapes_argument,
                    ".",
                )
            )
        near = did_you_mean(str(variable), known, quoted=True) or f" ({shapes})."
        raise ShapeError(
            Message(
                f"{name}: ",
                Argument("buckets"),
                f" for {variable!r}, which is not a dimension variable of its inputs{near}",
            )
        )


def check_inputs(
    name: str,
    inputs: Collection[str],
    masks: Sequence[str],
    pad_values: Mapping[str, Any],
    before: Collection[str] = (),
) -> None:
    """Raises if masks or pad values are for a name that is not an input of the function.

    `before` are the inputs of preprocess, if there is one.

    Raises:
      ShapeError: the message suggests what was probably meant.
    """
    if not isinstance(pad_values, Mapping):
        raise ShapeError(f"{name}: pad_values={pad_values!r}: expected a dict, as {{'ids': 1}}")
    places = [(mask, Argument("mask", mask)) for mask in masks]
    places += [(n, Argument("pad_values", {n: value})) for n, value in pad_values.items()]
    listed = ", ".join(map(repr, inputs))
    for input_name, place in places:
        if input_name in inputs:
            continue
        if input_name in before:
            raise ShapeError(
                f"{name}: {place}: that is an input of preprocess. Name an input of the function: "
                f"{listed}"
            )
        near = did_you_mean(str(input_name), inputs, quoted=True) or f": {listed}"
        raise ShapeError(Message(f"{name}: ", place, f": there is no such input{near}"))


def check_unchecked(name: str, given: Sequence[str], bucketed: Collection[str]) -> tuple[str, ...]:
    """Lists the variables of unchecked_padding, each once.

    Raises:
      ShapeError: a variable has no buckets, or the option is not a list.
    """
    if isinstance(given, str) or not isinstance(given, Collection):
        shown = [given if isinstance(given, str) else "n"]
        raise ShapeError(f"{name}: unchecked_padding={given!r}: expected a list, as {shown}")
    for variable in given:
        if variable not in bucketed:
            near = did_you_mean(str(variable), bucketed, quoted=True)
            raise ShapeError(
                Message(
                    f"{name}: ",
                    Argument("unchecked_padding"),
                    f" names {variable!r}, which has no buckets{near}",
                )
            )
    return tuple(dict.fromkeys(given))
