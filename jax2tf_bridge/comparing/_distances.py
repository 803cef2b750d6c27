"""Distances between the results of two programs, and the tolerances for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import find_dtype, find_kind
from jax2tf_bridge.errors import Argument, Message, SavingError, format_bullets

_TOLERANCES = {"float64": 1e-12, "float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}
_NARROW_FLOAT_TOLERANCE = 0.3

ROUNDING_SEEDS = range(3)
"""Seeds of the runs with rounded results, for `bound_rounding_errors`."""
_ROUNDING_FACTOR = 10
"""Ratio of a dtype's tolerance to the errors of rounded results."""


def tolerance_of(dtype: str) -> float:
    """Returns the tolerance of a result, relative to its largest number; 0 for integers.

    Different XLA releases compile the two programs: they sum in different orders and fuse products
    differently. This amounts to some hundred roundings in float32 (6e-8 each), but only a few in
    the 16-bit dtypes, which are mostly summed in float32.

    >>> tolerance_of("complex64"), tolerance_of("int32")
    (0.0001, 0.0)
    """
    row = find_dtype(dtype)
    if row is None or not row.is_differentiable:
        return 0.0
    return _TOLERANCES.get(row.real, _NARROW_FLOAT_TOLERANCE)


@dataclass(frozen=True)
class Distance:
    """Largest difference between two arrays.

    Attributes:
      absolute: the largest difference of two numbers; infinite if only one of them is NaN.
      scale: the largest finite magnitude of the expected array.
      index: the index of the largest difference.
      differing: the fraction of numbers that differ at all.
      shares_nan: whether both arrays have NaN at the same index.
    """

    absolute: float
    scale: float
    index: tuple[int, ...]
    differing: float
    shares_nan: bool

    def relative(self, min_scale: float = 0.0) -> float:
        """Returns the ratio of the difference to the scale, which is at least `min_scale`."""
        scale = max(self.scale, min_scale)
        return 0.0 if self.absolute == 0 else self.absolute / scale if scale else float("inf")


def measure_distance(expected: Any, actual: Any) -> Distance:
    """Measures how far two arrays of equal shape and dtype are apart.

    Equal infinities, and NaN in the same place, count as equal.

    >>> measure_distance(np.array([2.0, np.nan]), np.array([2.5, np.nan]))
    Distance(absolute=0.5, scale=2.0, index=(0,), differing=0.5, shares_nan=True)
    """
    expected, actual = np.asarray(expected), np.asarray(actual)
    if expected.size == 0:
        return Distance(0.0, 0.0, (), 0.0, shares_nan=False)
    both_nan = (expected != expected) & (actual != actual)
    same = (expected == actual) | both_nan
    wide_expected, wide_actual = widen_array(expected), widen_array(actual)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(wide_expected - wide_actual)
    if expected.dtype.kind in "iu":
        # float64 may round two different integers to the same number.
        difference = np.maximum(difference, 1)
    difference = np.where(same, 0, np.where(np.isnan(difference), np.inf, difference))
    index = np.unravel_index(int(difference.argmax()), difference.shape)
    return Distance(
        float(difference[index]),
        find_largest_finite(wide_expected),
        tuple(map(int, index)),
        float((~same).mean()),
        shares_nan=bool(both_nan.any()),
    )


def widen_array(value: Any) -> Any:
    """Converts an array to float64 or complex128; may return `value` itself."""
    array = np.asarray(value)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64, copy=False)


def find_largest_finite(array: Any) -> float:
    """Returns the largest finite magnitude in an array; 0 if there is none."""
    array = widen_array(array)
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def bound_rounding_errors(
    expected: Sequence[np.ndarray], rounded: Iterable[Sequence[np.ndarray]]
) -> Iterator[list[float]]:
    """Yields the largest absolute difference of each output that rounding errors can explain.

    Where terms cancel, only their rounding errors remain, which differ in every digit. So a program
    is run again with the results of its operations rounded to shorter floats. What changes is as
    large as the errors that the tolerances of the terms allow.

    Args:
      expected: the outputs of the program.
      rounded: the outputs of the rounded programs. Each may raise the bounds.

    >>> [*bound_rounding_errors([np.array([0.0, 1.0])], [[np.array([0.5, 1.0])]])]
    [[5.0]]
    """
    bounds = [0.0] * len(expected)
    for outputs in rounded:
        changes = map(_measure_change, expected, outputs)
        bounds = [
            max(bound, _ROUNDING_FACTOR * change)
            for bound, change in zip(bounds, changes, strict=True)
        ]
        yield bounds


def _measure_change(array: np.ndarray, rounded: np.ndarray) -> float:
    if find_kind(array.dtype.name) not in ("float", "complex"):
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        return find_largest_finite(widen_array(rounded) - widen_array(array))


def drop_explained(
    problems: list[str],
    expected: Mapping[str, np.ndarray],
    actual: Mapping[str, np.ndarray],
    rounded: Iterable[Sequence[np.ndarray]],
) -> list[str]:
    """Returns the differences of a converted model that rounding does not explain.

    Args:
      problems: the differences, as `describe_differences` yields them.
      expected: the outputs of the original by name.
      actual: the outputs of the converted model.
      rounded: the outputs of the rounded original, as for `bound_rounding_errors`. They are read
        only while there are problems.

    >>> y = {"y": np.array([0.0])}
    >>> drop_explained(["y differs"], y, {"y": np.array([0.1])}, [[np.array([0.02])]])
    []
    """
    if problems:
        for bounds in bound_rounding_errors([*expected.values()], rounded):
            errors = dict(zip(expected, bounds, strict=True))
            problems = [*describe_differences(expected, actual, rounding_errors=errors)]
            if not problems:
                break
    return problems


def describe_differences(
    expected: Mapping[str, np.ndarray],
    actual: Mapping[str, np.ndarray],
    *,
    max_differences: Mapping[str, float] | None = None,
    rounding_errors: Mapping[str, float] | None = None,
    only_finite: bool = False,
) -> Iterator[str]:
    """Describes the outputs of a converted model that differ from the original's.

    Args:
      expected: the outputs of the original program, by name.
      actual: the outputs of the converted model.
      max_differences: the largest allowed absolute difference of some outputs; others have ten
        times the tolerance of their dtype.
      rounding_errors: the absolute differences that rounding explains, as `bound_rounding_errors`
        yields them; outputs may differ by them in any case.
      only_finite: whether to check only for shapes, NaN and infinity.

    >>> [*describe_differences({"y": np.array([1, 2])}, {"y": np.array([1, 3])})]
    ['y has other values in 1 of 2 places']
    """
    allowed, explained = max_differences or {}, rounding_errors or {}
    for name, reference in expected.items():
        result, dtype, count = actual[name], reference.dtype.name, reference.size
        if result.shape != reference.shape:
            yield f"{name} has the shape {result.shape} and not {reference.shape}"
            continue
        if find_kind(dtype) not in ("float", "complex"):
            if not only_finite and not np.array_equal(result, reference):
                yield f"{name} has other values in {np.sum(result != reference)} of {count} places"
            continue
        result, reference = widen_array(result), widen_array(reference)
        is_finite = np.isfinite(reference)
        is_lost = is_finite & ~np.isfinite(result)
        if np.any(is_lost):
            yield f"{name} is NaN or infinite in {np.sum(is_lost)} of {count} places"
            continue
        if only_finite or not np.any(is_finite):
            continue
        distance = measure_distance(reference[is_finite], result[is_finite])
        relative = distance.relative(float(np.finfo(np.float32).tiny))
        if name in allowed:
            is_near = distance.absolute <= allowed[name]
        else:
            is_near = relative <= 10 * tolerance_of(dtype)
        if is_near or distance.absolute <= explained.get(name, 0.0):
            continue
        if distance.scale == 0:
            yield f"{name} differs by {distance.absolute:.2g}, and should be 0"
        else:
            yield f"{name} differs by {relative:.2g} of its largest number"


def make_difference_error(
    runtime: str, original: str, name: str, problems: Sequence[str]
) -> SavingError:
    """Makes the error for a converted model whose signature `name` differs from the original."""
    return SavingError(
        Message(
            f"In {runtime} the signature {name} does not compute what it does in {original}, for "
            f"the example of its inputs:{format_bullets(problems)}\nNo file was written. Save "
            "parts of the function to find the operation. To write the file anyway, pass ",
            Argument("verify", code="verify=False"),
            ".",
        )
    )
