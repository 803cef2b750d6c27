"""Compares results: they may differ by noise, and not by more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import Message, UnsoundBucketsError
from jax2tf_bridge.portable import find_dtype
from jax2tf_bridge.saving.buckets._buckets import Bucketing

SAME_PROGRAM = {"float64": 1e-10, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""What two results of one program may differ by, relative to the largest number in them.

The same instructions run on the same rows: there is next to no noise, unless a loop ends by what is
in all rows. A few hundred roundings of the dtype are allowed; a few, where that is little.
"""

OTHER_PROGRAM = {"float64": 1e-3, "float32": 2e-2, "float16": 2e-2, "bfloat16": 5e-2}
"""The same, where the programs were compiled for different sizes.

Sums are taken in another order then, in a precision that cannot be seen from outside: functions of
float32 often compute in bfloat16, a rounding of which is 0.8 percent. What is looked for is far
larger: a division by the number of rows changes by that number's ratio to the bucket, 1.5 or more.
"""

_FLIPPED = 0.1
"""Which part of integers and bools may differ between programs: where noise decides, as in argmax.

Where there are fewer than ten of them, that is none.
"""


@dataclass(frozen=True)
class Difference:
    """Change of a result by more than noise.

    Attributes:
      output: its name.
      largest: the largest change.
      ratio: that to the largest number; or the part of integers that changed.
      index: where it changed most.
      values: from what to what.
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
        """Makes the error that says what changed the result, and what to do."""
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        before, after = self.values
        return UnsoundBucketsError(
            Message(
                f"{bucketing.name}: {what} the output {self.output!r} by up to {self.largest:.3g} "
                f"({self.output}{place}: {before:.6g} became {after:.6g}). ",
                remedy,
            ),
            output=self.output,
            sizes=sizes,
            bucket=bucket,
            difference=self.largest,
        )


def difference(
    name: str, dtype_name: str, expected: Any, got: Any, allowed: Mapping[str, float]
) -> Difference | None:
    """Compares two results; None if they differ by no more than noise."""
    dtype = tf.as_dtype(dtype_name)
    a, b = _numbers(expected), _numbers(got)
    if a.size == 0:
        return None
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.where(same, 0, np.abs(a - b))
    distance = np.where(np.isnan(distance), np.inf, distance)  # one of them is NaN
    index = np.unravel_index(int(distance.argmax()), distance.shape)
    largest = float(distance[index])
    if dtype.is_floating or dtype.is_complex:
        finite = np.abs(a[np.isfinite(a)])
        scale = float(finite.max()) if finite.size else 0.0
        ratio = largest / scale if scale else np.inf
        is_noise = largest <= _tolerance(dtype, allowed) * scale
    else:
        ratio = float((~same).mean())
        is_noise = ratio <= (_FLIPPED if allowed is OTHER_PROGRAM else 0)
    if is_noise:
        return None
    place = tuple(map(int, index))
    return Difference(name, largest, ratio, place, (_shown(a[place]), _shown(b[place])))


def _tolerance(dtype: tf.DType, allowed: Mapping[str, float]) -> float:
    row = find_dtype(dtype.name)
    return allowed.get(row.real if row else "", 0.15)  # of 8 bits and fewer: about one rounding


def _numbers(tensor: Any) -> Any:
    """Converts a tensor to a dtype in which differences can be taken."""
    array = np.asarray(tensor.numpy())
    return array.astype(np.complex128 if tensor.dtype.is_complex else np.float64)


def is_finite(tensor: Any) -> bool:
    """Checks that no number in a tensor is infinity or NaN."""
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return True
    return bool(np.isfinite(_numbers(tensor)).all())


def says_something(tensor: Any) -> bool:
    """Checks that some finite number in a tensor is not zero."""
    numbers = _numbers(tensor)
    return bool((np.isfinite(numbers) & (numbers != 0)).any())


def _shown(number: Any) -> Any:
    return number if np.iscomplexobj(number) and number.imag else float(number.real)
