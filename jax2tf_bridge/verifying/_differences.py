"""Measures how outputs and gradients differ, and compares that with tolerances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.portable import tolerance_of
from jax2tf_bridge.verifying._samples import Sizes

SMALL_GRADIENT = 0.1
"""Gradients below this part of the function's largest one are judged by this part of it.

Where terms as large as other gradients cancel, as for the key biases of an attention, what remains
of them is their rounding, which has no digits in common with another program's.
"""


@dataclass
class Difference:
    """Largest difference of an output or a gradient.

    Attributes:
      what: "output" or "gradient".
      name: of the output, input or weight.
      dtype: its dtype.
      tolerance: what is allowed of `relative`.
      absolute: the largest difference of two numbers.
      relative: that to the scale of the array, where that is worst. The scale is its largest
        number; of a small gradient, SMALL_GRADIENT of the function's largest one.
      sizes: at which it was worst.
      is_small: whether the scale was another gradient's there.
      nan_at: sizes at which JAX and the SavedModel both have NaN in the same place. These count
        as equal.
    """

    what: str
    name: str
    dtype: str
    tolerance: float
    absolute: float = 0.0
    relative: float = 0.0
    sizes: Sizes = field(default_factory=dict)
    is_small: bool = False
    nan_at: list[Sizes] = field(default_factory=list)

    @property
    def within(self) -> bool:
        """Returns whether it is within the tolerance."""
        return self.relative <= self.tolerance

    def add(self, expected: Any, found: Any, sizes: Sizes, least_scale: float = 0.0) -> None:
        """Takes another pair of arrays into account, whose scale is at least `least_scale`.

        Raises:
          BridgeError: they have other shapes.
        """
        if np.shape(expected) != np.shape(found):
            raise BridgeError(
                f"The {self.what} {self.name} has the shape {np.shape(found)}, and in JAX "
                f"{np.shape(expected)}, at {sizes_text(sizes)}."
            )
        array = wide(expected)
        tensor = wide(found)
        if (np.isnan(array) & np.isnan(tensor)).any():
            self.nan_at.append(dict(sizes))
        own, absolute = largest(array), _distance(array, tensor)
        scale = max(own, least_scale)
        relative = 0.0 if absolute == 0 else absolute / scale if scale else np.inf
        self.absolute = max(self.absolute, absolute)
        if relative > self.relative:
            self.relative, self.sizes = relative, dict(sizes)
            self.is_small = own < least_scale


def started(what: str, name: str, dtype: str, tolerance: float | None) -> Difference:
    """Makes the difference of something that was not compared yet."""
    allowed = tolerance_of(dtype)
    if tolerance is not None and allowed:  # integers stay equal
        allowed = tolerance
    return Difference(what, name, dtype, allowed)


def _distance(expected: Any, found: Any) -> float:
    """Finds the largest difference of two numbers; infinite where only one of them is NaN."""
    if expected.size == 0:
        return 0.0
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.where(same, 0, np.abs(expected - found))
    return float(np.where(np.isnan(distance), np.inf, distance).max())


def largest(array: Any) -> float:
    """Finds the largest finite number in an array; 0 if there is none."""
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def wide(value: Any) -> Any:
    """Converts an array to 64 bits."""
    array = np.asarray(value)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def sizes_text(sizes: Sizes) -> str:
    """Writes sizes for people."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items()) or "its fixed sizes"
