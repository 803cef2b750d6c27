"""Measures how outputs and gradients differ, and compares that with tolerances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jax2tf_bridge.comparing import measure_distance, tolerance_of
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.verifying._samples import Sizes

SMALL_GRADIENT = 0.1
"""Minimum scale of a gradient, as a fraction of the function's largest gradient.

Where large terms cancel, as for the key biases of an attention, only rounding errors remain, which
have no digits in common with another program's.
"""


@dataclass
class Difference:
    """Largest difference of an output or a gradient.

    Attributes:
      what: "output" or "gradient".
      name: the name of the output, input or weight.
      dtype: its dtype.
      tolerance: the maximum of `relative` that is allowed.
      absolute: the largest difference of two numbers.
      relative: the largest ratio of the difference to the scale of the array. The scale is the
        array's largest number; for a small gradient, SMALL_GRADIENT of the function's largest.
      sizes: the sizes with the largest `relative`.
      is_small: whether the scale at these sizes was that of a small gradient.
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
        """Whether it is within the tolerance."""
        return self.relative <= self.tolerance

    def add(self, expected: Any, actual: Any, sizes: Sizes, least_scale: float = 0.0) -> None:
        """Adds the difference of a pair of arrays, whose scale is at least `least_scale`.

        Raises:
          BridgeError: the arrays have different shapes.
        """
        if np.shape(expected) != np.shape(actual):
            raise BridgeError(
                f"The {self.what} {self.name} has the shape {np.shape(actual)}, and in JAX "
                f"{np.shape(expected)}, at {format_sample_sizes(sizes)}."
            )
        distance = measure_distance(expected, actual)
        if distance.shares_nan:
            self.nan_at.append(dict(sizes))
        relative = distance.relative(least_scale)
        self.absolute = max(self.absolute, distance.absolute)
        if relative > self.relative:
            self.relative, self.sizes = relative, dict(sizes)
            self.is_small = distance.scale < least_scale


def make_difference(what: str, name: str, dtype: str, tolerance: float | None) -> Difference:
    """Makes the difference of an array that was not compared yet."""
    allowed = tolerance_of(dtype)
    if tolerance is not None and allowed:  # integers stay equal
        allowed = tolerance
    return Difference(what, name, dtype, allowed)


def format_sample_sizes(sizes: Sizes) -> str:
    """Formats sizes for people."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items()) or "its fixed sizes"
