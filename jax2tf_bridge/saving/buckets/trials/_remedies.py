"""Writes the advice in errors about padding that changes results."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge._dtypes import is_integer
from jax2tf_bridge.comparing import PlausibleInputs
from jax2tf_bridge.errors import Argument, Blank, Message, format_bullets
from jax2tf_bridge.portable import variables_in
from jax2tf_bridge.saving.buckets._buckets import Bucketing


def remedy(
    bucketing: Bucketing,
    plausible: PlausibleInputs,
    variables: Sequence[str],
    *,
    beside: bool = False,
) -> Message:
    """Writes what the function mixes, how to fix it, and the inputs of the trial."""
    names = " and ".join(variables)
    masks = ", ".join(map(repr, bucketing.masks))
    mask = Argument("mask", Blank("'...'"), "Signature(..., padding=Padding(mask='...'))")
    example = Argument("example", Blank("{...}"), "Signature(..., example={...})")
    fixes: list[str]
    if masks:
        why = f"The mask {masks} does not keep padding out of it"
        fixes = ["have the function use it there"]
    elif beside:
        why = f"The function mixes rows along {names}, and a batch has rows of other requests there"
        fixes = [
            "compute each row by itself",
            Message("take an argument that is 1 for real rows, and name it: ", mask),
        ]
    else:
        why = (
            f"The function mixes positions along {names}, and padding "
            f"({format_pad_values(bucketing, plausible, variables)}) counts there"
        )
        fixes = [
            Message(
                "take an argument that is 1 for what is real and 0 for padding, use it in the "
                "function, and name it: ",
                mask,
            ),
            *_suggest_pad_value(bucketing, plausible, variables),
        ]
    fixes += [
        Message(
            "if it is sound for all your requests, vouch for it: ",
            Argument("unchecked_padding", list(variables)),
        ),
        f"or give {names} no buckets",
    ]
    tried = ", ".join(f"{name} ({plausible.text(name)})" for name in plausible.avals)
    return Message(
        f"{why}. Any of these mends it:",
        format_bullets(fixes),
        f"\nTried with {tried}; ",
        example,
        " tries your values.",
    )


def _suggest_pad_value(
    bucketing: Bucketing, plausible: PlausibleInputs, variables: Sequence[str]
) -> list[str]:
    """Advises another pad value for ids, since one of them may mean padding to the function."""
    for name, aval in bucketing.given().items():
        is_ids = is_integer(aval.op_dtype)
        if is_ids and not variables_in(aval).isdisjoint(variables):
            pad_value = 1 if plausible.pad_value(name) == 0 else 0
            code = f"Signature(..., padding=Padding(pad_values={{{name!r}: {pad_value}}}))"
            return [
                Message(
                    "if the function knows padding by a number, pad with that: ",
                    Argument("pad_values", {name: pad_value}, code),
                )
            ]
    return []


def format_pad_values(
    bucketing: Bucketing, plausible: PlausibleInputs, variables: Sequence[str]
) -> str:
    """Formats the pad values of the inputs along some variables."""
    values: dict[str, list[str]] = {}
    for name, aval in bucketing.given().items():
        if not variables_in(aval).isdisjoint(variables):
            values.setdefault(f"{plausible.pad_value(name):g}", []).append(name)
    return ", ".join(f"{value} in {' and '.join(names)}" for value, names in values.items())
