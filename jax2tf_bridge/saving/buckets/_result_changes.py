"""Finds results that padding changes by more than rounding noise, and makes the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import (
    DTYPES_BY_ELEMENT_TYPE,
    NARROW_FLOATS,
    find_dtype,
    is_integer,
)
from jax2tf_bridge.bytecode import TensorType, read_program
from jax2tf_bridge.comparing import PlausibleInputs, measure_distance, widen_array
from jax2tf_bridge.errors import (
    Argument,
    Blank,
    BridgeError,
    Message,
    UnsoundBucketsError,
    format_bullets,
)
from jax2tf_bridge.portable import PortableFunction, variables_in
from jax2tf_bridge.rewriting import every_operation
from jax2tf_bridge.saving.buckets._buckets import Bucketing

SAME_PROGRAM_TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Tolerance for two results of one program, relative to the largest number in them.

The same instructions run on the same rows, so there is almost no noise, unless the end of a loop
depends on all rows. The tolerance is a few hundred roundings; for narrow dtypes it is a few.
"""

NARROW_PROGRAM_TOLERANCE = {"float64": 1e-3, "float32": 2e-2, "float16": 2e-2, "bfloat16": 5e-2}
"""Tolerance for results of programs for different sizes, if they may compute in narrow floats.

It is relative as well. Such programs add in different orders. Functions of float32 often compute in
bfloat16, which rounds by 0.8 percent, and GPUs multiply in TensorFloat-32.
"""

WIDE_PROGRAM_TOLERANCE = {"float64": 1e-8, "float32": 1e-3}
"""Tolerance for programs without narrow floats on a CPU: some thousand roundings."""

_MAX_FLIPPED_FRACTION = 0.1
"""Maximum fraction of integers and bools that noise may change between programs, as in argmax.

If there are fewer than ten, none may differ.
"""


@dataclass(frozen=True)
class ResultChange:
    """Change of a result by more than noise.

    Attributes:
      output: the name of the output.
      largest: the largest change.
      ratio: its ratio to the largest number; for integers, the fraction that changed.
      index: the index of the largest change.
      values: the numbers at that index, before and after.
    """

    output: str
    largest: float
    ratio: float
    index: tuple[int, ...]
    values: tuple[Any, Any]

    def error(
        self,
        bucketing: Bucketing,
        sizes: Mapping[str, int],
        bucket: Mapping[str, int],
        what: str,
        remedy: str,
    ) -> UnsoundBucketsError:
        """Makes the error, with the cause of the change and a remedy."""
        index = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        before, after = self.values
        return UnsoundBucketsError(
            Message(
                f"{bucketing.name}: {what} the output {self.output!r} by up to {self.largest:.3g} "
                f"({self.output}{index}: {before:.6g} became {after:.6g}). ",
                remedy,
            ),
            output=self.output,
            sizes=sizes,
            bucket=bucket,
            difference=self.largest,
        )


def find_change(
    name: str, dtype_name: str, expected: Any, got: Any, allowed: Mapping[str, float]
) -> ResultChange | None:
    """Compares two results; None if they differ by no more than noise."""
    dtype = tf.as_dtype(dtype_name)
    a, b = _to_numbers(expected), _to_numbers(got)
    distance = measure_distance(a, b)
    if dtype.is_floating or dtype.is_complex:
        ratio = distance.relative()
        is_noise = distance.absolute <= _find_tolerance(dtype, allowed) * distance.scale
    else:
        ratio = distance.differing
        is_noise = ratio <= (0 if allowed is SAME_PROGRAM_TOLERANCE else _MAX_FLIPPED_FRACTION)
    if is_noise:
        return None
    values = (_drop_zero_imaginary(a[distance.index]), _drop_zero_imaginary(b[distance.index]))
    return ResultChange(name, distance.absolute, ratio, distance.index, values)


def choose_tolerance(portable: PortableFunction) -> Mapping[str, float]:
    """Chooses the tolerance for programs of a function for different sizes."""
    if tf.config.list_logical_devices("GPU") or _has_narrow_floats(portable):
        return NARROW_PROGRAM_TOLERANCE
    return WIDE_PROGRAM_TOLERANCE


def _has_narrow_floats(portable: PortableFunction) -> bool:
    """Returns whether a function may compute with floats of fewer than 32 bits."""
    try:
        program = read_program(portable.module.data)
    except BridgeError:
        return True
    return any(
        isinstance(value.type, TensorType) and _is_narrow(value.type.element)
        for function in program.functions.values()
        for operation in every_operation(function.body.operations)
        for value in operation.results
    )


def _is_narrow(element: str) -> bool:
    dtype = DTYPES_BY_ELEMENT_TYPE.get(element, "")
    return dtype in ("float16", "bfloat16") or dtype in NARROW_FLOATS


def _find_tolerance(dtype: tf.DType, allowed: Mapping[str, float]) -> float:
    row = find_dtype(dtype.name)
    return allowed.get(row.real if row else "", 0.15)  # about one rounding of 8 bits and fewer


def _to_numbers(tensor: Any) -> Any:
    return widen_array(tensor.numpy())


def is_finite(tensor: Any) -> bool:
    """Returns whether no number in a tensor is infinity or NaN."""
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return True
    return bool(np.isfinite(_to_numbers(tensor)).all())


def has_nonzero(tensor: Any) -> bool:
    """Returns whether some finite number in a tensor is not zero."""
    numbers = _to_numbers(tensor)
    return bool((np.isfinite(numbers) & (numbers != 0)).any())


def _drop_zero_imaginary(number: Any) -> Any:
    return number if np.iscomplexobj(number) and number.imag else float(number.real)


def format_remedy(
    bucketing: Bucketing,
    plausible: PlausibleInputs,
    variables: Sequence[str],
    *,
    mixes_rows: bool = False,
) -> Message:
    """Explains what the function mixes, how to fix it, and which inputs the trial used."""
    names = " and ".join(variables)
    masks = ", ".join(map(repr, bucketing.masks))
    mask = Argument("mask", Blank("'...'"), "Signature(..., padding=Padding(mask='...'))")
    example = Argument("example", Blank("{...}"), "Signature(..., example={...})")
    fixes: list[str]
    if masks:
        why = f"The mask {masks} does not keep padding out of the results"
        fixes = ["apply the mask where the function mixes positions"]
    elif mixes_rows:
        why = f"The function mixes rows along {names}, and a batch has rows of other requests there"
        fixes = [
            "compute each row by itself",
            Message("take an argument that is 1 for real rows, and name it: ", mask),
        ]
    else:
        why = (
            f"The function mixes positions along {names}, and padding "
            f"({format_pad_values(bucketing, plausible, variables)}) affects the result"
        )
        fixes = [
            # A mask that the buckets fill would mark what preprocess pads as real.
            "return a mask that is 1 for real elements and 0 for padding from preprocess, as an "
            "argument of the function, and use it there"
            if bucketing.has_preprocess
            else Message(
                "take an argument that is 1 for real elements and 0 for padding, use it in the "
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
        f"{why}. Any of these fixes it:",
        format_bullets(fixes),
        f"\nTried with {tried}; ",
        example,
        " tries your values.",
    )


def _suggest_pad_value(
    bucketing: Bucketing, plausible: PlausibleInputs, variables: Sequence[str]
) -> list[str]:
    """Advises another pad value for ids, since the function may use one of them for padding."""
    for name, aval in bucketing.passed_inputs().items():
        is_ids = is_integer(aval.op_dtype)
        if is_ids and not variables_in(aval).isdisjoint(variables):
            pad_value = 1 if plausible.pad_value(name) == 0 else 0
            code = f"Signature(..., padding=Padding(pad_values={{{name!r}: {pad_value}}}))"
            return [
                Message(
                    "if the function uses a special number for padding, pad with that: ",
                    Argument("pad_values", {name: pad_value}, code),
                )
            ]
    return []


def format_pad_values(
    bucketing: Bucketing, plausible: PlausibleInputs, variables: Sequence[str]
) -> str:
    """Formats the pad values of the inputs along some variables."""
    values: dict[str, list[str]] = {}
    for name, aval in bucketing.passed_inputs().items():
        if not variables_in(aval).isdisjoint(variables):
            values.setdefault(f"{plausible.pad_value(name):g}", []).append(name)
    return ", ".join(f"{value} in {' and '.join(names)}" for value, names in values.items())
