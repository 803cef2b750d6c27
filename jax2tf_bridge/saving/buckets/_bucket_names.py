"""Checks that the options for buckets name inputs and dimension variables that are there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import Argument, Blank, Message, ShapeError
from jax2tf_bridge.portable import Aval, variables_in

BUCKETS = Argument("buckets", Blank("{...}"))
"""A part of messages: buckets, whatever they are."""


def check_buckets(name: str, buckets: Any) -> None:
    """Raises unless buckets are a mapping.

    Raises:
      ShapeError: they are none.
    """
    if not isinstance(buckets, Mapping):
        elsewhere = (
            ". 'auto' is for all signatures: save(..., buckets='auto', expected_sizes=[...])"
        )
        raise ShapeError(
            f"{name}: buckets={buckets!r}: expected a dict, as {{'b': [1, 8, 32]}}"
            f"{elsewhere if buckets == 'auto' else ''}"
        )


def masks_of(name: str, mask: Any) -> tuple[str, ...]:
    """Lists the inputs that are masks.

    Raises:
      ShapeError: it is none of these.
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
    """Raises if there are buckets for what is no dimension variable.

    Raises:
      ShapeError: it says what was probably meant.
    """
    known = sorted({v for aval in inputs.values() for v in variables_in(aval)})
    shapes = ", ".join(f"{n}: {aval}" for n, aval in inputs.items()) or "none"
    for variable in buckets:
        if variable in known:
            continue
        if not known:
            opened = Argument("polymorphic_shapes", f"({variable}, ...)")
            raise ShapeError(
                Message(
                    f"{name}: buckets are for dimension variables, and its inputs have none "
                    f"({shapes}). Export the function with ",
                    opened,
                    ".",
                )
            )
        near = did_you_mean(str(variable), known, quoted=True) or f" ({shapes})."
        raise ShapeError(
            Message(
                f"{name}: ",
                Argument("buckets"),
                f" for {variable!r}, which is no dimension variable of its inputs{near}",
            )
        )


def check_inputs(
    name: str,
    inputs: Collection[str],
    masks: Sequence[str],
    pad_values: Mapping[str, Any],
    before: Collection[str] = (),
) -> None:
    """Raises if masks or pad values are for what is no input of the function.

    Raises:
      ShapeError: it says what was probably meant.
    """
    if not isinstance(pad_values, Mapping):
        raise ShapeError(f"{name}: pad_values={pad_values!r}: expected a dict, as {{'ids': 1}}")
    places = [(mask, Argument("mask", mask)) for mask in masks]
    places += [(n, Argument("pad_values", {n: value})) for n, value in pad_values.items()]
    listed = ", ".join(map(repr, inputs))
    for given, place in places:
        if given in inputs:
            continue
        if given in before:
            raise ShapeError(
                f"{name}: {place}: preprocess takes that. Name what it gives to the function: "
                f"{listed}"
            )
        near = did_you_mean(str(given), inputs, quoted=True) or f": {listed}"
        raise ShapeError(Message(f"{name}: ", place, f": there is no such input{near}"))


def check_unchecked(name: str, given: Sequence[str], bucketed: Collection[str]) -> tuple[str, ...]:
    """Lists the variables of unchecked_padding, each once.

    Raises:
      ShapeError: one has no buckets, or it is no list.
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
