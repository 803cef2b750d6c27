"""Chooses sizes: buckets for expected sizes, sizes that a function takes, sizes of trials."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from jax2tf_bridge._utils import as_integer
from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saving.buckets._buckets import Bucketing
from shape_poly import Comparison, SymbolicScope, sample_sizes, variables_of

SMALLEST = (*range(1, 33), 48, 64, 96, 100, 128, 224, 256, 299, 384, 512, 768, 1000, 1024)
"""Sizes to try for the smallest ones that a function takes."""
TYPICAL = (4, 3, 5, 8, 2, 6, 7, 16, 1, 9, 10, 12, 15, 24, 32, 64, 128, 224, 256, 512)
"""Sizes to try for typical ones, in this order."""
_MAX_SIZE = 1024
"""Maximum size that is chosen; larger sizes take long to run, so users have to name them."""


def find_sizes(
    name: str,
    avals: Iterable[Aval],
    constraints: Sequence[Comparison],
    known: Mapping[str, int],
    candidates: Sequence[int] = SMALLEST,
) -> dict[str, int]:
    """Completes the known sizes of variables to sizes of all variables of a signature.

    Args:
      name: the name of the signature, for messages.
      avals: the avals whose shapes contain the variables.
      constraints: the constraints on the variables.
      known: the sizes of some variables.
      candidates: the sizes to try, in this order.

    Raises:
      ShapeError: no sizes were found that satisfy the constraints.
    """
    names = {v for aval in avals for d in aval.op_shape for v in variables_of(d)} | set(known)
    free = sorted(names - set(known))
    sizes = next(
        sample_sizes(
            [*known, *free],
            SymbolicScope(constraints, check=False),
            among={variable: [size] for variable, size in known.items()},
            candidates=candidates,
            largest=_MAX_SIZE,
        ),
        None,
    )
    if sizes is None:
        relevant = [str(c) for c in constraints if c.variables() <= names]
        raise ShapeError(
            f"{name}: no sizes of {', '.join(free) or ', '.join(known)} were found that satisfy "
            f"{', '.join(relevant)}. Give {', '.join(free) or 'them'} buckets."
        )
    return sizes


_Array: TypeAlias = npt.NDArray[Any]


def choose_buckets(sizes: Iterable[SupportsIndex], *, at_most: int = 8) -> tuple[int, ...]:
    """Chooses buckets that minimize the work after padding each size to its bucket.

    Args:
      sizes: the sizes of the expected requests, each as often as it occurs, for instance from a
        day's log. Size 0 is ignored.
      at_most: the maximum number of buckets. Each costs a compile and a warm-up request.

    Returns:
      The buckets, increasing; the last is the largest size. The sum of bucket(size) over all sizes
      is the minimum for so many buckets; ties go to the choice with the fewest buckets.

    Raises:
      ShapeError: a size is no integer or is negative, no size is above 0, or at_most is below 1.

    >>> choose_buckets([1, 1, 1, 7, 8, 100], at_most=3)
    (1, 8, 100)
    """
    if isinstance(sizes, Mapping) or not isinstance(sizes, Iterable):  # such as a Counter
        raise ShapeError(
            f"The expected sizes must be integers in a list, as [1, 8, 32]. Got: {sizes!r:.200}."
        )
    if (as_integer(at_most) or 0) < 1:
        raise ShapeError(f"at_most={at_most!r}: expected an integer, 1 or more")
    counts = Counter(map(_validate_size, sizes))
    del counts[0]
    if not counts:
        raise ShapeError("No buckets can be chosen, since no size is above 0. Pass expected sizes.")
    if max(counts) >= 2**31:
        raise ShapeError(f"{max(counts)} is not a size: sizes are below {2**31}")
    distinct = np.array(sorted(counts), np.int64)
    # requests[i]: the number of requests with one of the first i sizes.
    requests = np.cumsum([0, *(counts[size] for size in distinct.tolist())])
    return _minimize_work(distinct, requests, min(at_most, len(distinct)))


def _minimize_work(distinct: _Array, requests: _Array, at_most: int) -> tuple[int, ...]:
    # Dynamic programming over the number of buckets and the number of sizes that they serve.
    count = len(distinct)
    # work[i]: the minimum cost of the first i sizes with the buckets so far.
    work = np.full(count + 1, np.inf)
    work[0] = 0
    choices: list[_Array] = []
    for _ in range(at_most):
        next_work, starts = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
        for last in range(1, count + 1):
            # The sizes from `first` to `last` share one bucket.
            costs = work[:last] + distinct[last - 1] * (requests[last] - requests[:last])
            starts[last] = first = costs.argmin()
            next_work[last] = costs[first]
        work = next_work
        choices.append(starts)
    buckets = []
    last = count
    for starts in reversed(choices):
        buckets.append(int(distinct[last - 1]))
        last = int(starts[last])
    return tuple(reversed(buckets))


def _validate_size(value: object) -> int:
    if (size := as_integer(value)) is None:
        raise ShapeError(f"{value!r} is not a size: expected an integer")
    if size < 0:
        raise ShapeError(f"{size} is not a size: it is negative")
    return size


_MAX_SEARCH = 256
"""Maximum distance below a bucket at which a valid size of the function is searched."""

_MIN_TRIAL_BUCKET = 8
"""Minimum size that replaces a larger bucket in the trial, to save time.

A function that mixes positions does so at every size at which its results are finite.
"""


class TrialSizes:
    """Sizes for the trial of one signature."""

    def __init__(self, bucketing: Bucketing, *, is_small: bool = True) -> None:
        """Chooses sizes.

        Args:
          bucketing: the buckets of the signature.
          is_small: whether small sizes may replace the user's buckets.
        """
        self._bucketing, self._is_small = bucketing, is_small

    def list_checked(self) -> list[str]:
        """Lists the padded variables for which the user does not vouch."""
        unchecked = self._bucketing.unchecked
        return [v for v in self._bucketing.sizes if v not in unchecked and self.bucket(v) > 1]

    def bucket(self, variable: str) -> int:
        """Returns the bucket of the trial: the user's smallest or less; 1 without padding."""
        return self._buckets[variable]

    @functools.cached_property
    def _buckets(self) -> dict[str, int]:
        sizes = self._bucketing.sizes
        constraints = [c for c in self._bucketing.constraints if c.variables() <= set(sizes)]
        buckets = {variable: self._find_bucket(variable, _MIN_TRIAL_BUCKET) for variable in sizes}
        if self._is_small and all(constraint.holds(buckets) for constraint in constraints):
            return buckets
        return {variable: self._find_bucket(variable, None) for variable in sizes}

    def _find_bucket(self, variable: str, lowest: int | None) -> int:
        larger = [size for size in self._bucketing.sizes[variable] if size > 1]
        constraints = [c for c in self._bucketing.constraints if c.variables() == {variable}]
        smallest: int = larger[0] if larger else 1

        def is_valid(size: int) -> bool:
            return all(c.holds({variable: size}) for c in constraints)

        smaller = range(smallest if lowest is None else lowest, smallest)
        candidates: list[int] = [*smaller, *larger]
        for bucket in candidates:
            sizes = range(bucket - 1, max(0, bucket - _MAX_SEARCH), -1)
            if is_valid(bucket) and any(map(is_valid, sizes)):
                return bucket
        return smallest

    def iterate_larger_buckets(self) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
        """Yields combinations of buckets above the trial's; each larger bucket is in one of them.

        A combination is a pair of sizes of all variables: the smallest ones that are padded to
        these buckets, and those at the buckets.
        """
        by_variable = self._bucketing.sizes
        for i in range(max(map(len, by_variable.values()))):
            places = {v: min(i, len(sizes) - 1) for v, sizes in by_variable.items()}
            buckets = {v: by_variable[v][place] for v, place in places.items()}
            full = self.complete(buckets)
            is_tried = all(size <= self._buckets[v] for v, size in buckets.items())
            if is_tried or not self.satisfies_constraints(full):
                continue
            least = dict(full)
            for variable, place in places.items():
                if variable in self._bucketing.unchecked:
                    continue
                before = by_variable[variable][place - 1] if place else 0
                sizes = range(before + 1, buckets[variable])
                valid = (n for n in sizes if self.satisfies_constraints({**least, variable: n}))
                least[variable] = next(valid, buckets[variable])
            yield least, full

    def bucket_text(self, variable: str) -> str:
        """Names the bucket in a message; the trial's may be no bucket of the user."""
        bucket = self.bucket(variable)
        article = "the bucket" if self.are_buckets({variable: bucket}) else "a bucket of"
        return f"{article} {bucket}"

    def get_usual_size(self, variable: str) -> int:
        """Returns two thirds of the bucket; the size may be invalid."""
        return max(1, self.bucket(variable) * 2 // 3)

    def find_size_below(self, variable: str) -> int | None:
        """Finds a valid size below the bucket, with the other variables at their buckets."""
        bucket = self.bucket(variable)
        smaller = range(bucket - 1, max(0, bucket - _MAX_SEARCH), -1)
        candidates = (self.get_usual_size(variable), 1, *smaller)
        return next((n for n in candidates if self._is_valid(variable, n)), None)

    def find_sizes_below(self) -> dict[str, int]:
        """Finds a valid size below the bucket for each checked variable that has one."""
        sizes = {variable: self.find_size_below(variable) for variable in self.list_checked()}
        return {variable: size for variable, size in sizes.items() if size is not None}

    def satisfies_constraints(self, values: Mapping[str, int]) -> bool:
        """Returns whether these sizes satisfy the constraints of the function."""
        return all(c.holds(values) for c in self._bucketing.constraints)

    def find_valid(self, variable: str, sizes: range) -> int:
        """Returns the first of these sizes that is valid, or the first of all if none is."""
        return next((n for n in sizes if self._is_valid(variable, n)), sizes.start)

    def _is_valid(self, variable: str, size: int) -> bool:
        return self.satisfies_constraints({**self.full, variable: size})

    @functools.cached_property
    def full(self) -> dict[str, int]:
        """Sizes of all variables, at the buckets of the trial."""
        return self.complete({})

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Completes sizes by the trial's buckets and by typical sizes of other variables."""
        bucketing = self._bucketing
        avals = (*bucketing.inputs.values(), *bucketing.outputs.values())
        fixed = {**self._buckets, **sizes}
        return find_sizes(bucketing.name, avals, bucketing.constraints, fixed, TYPICAL)

    def are_buckets(self, values: Mapping[str, int]) -> bool:
        """Returns whether the sizes are buckets of the user."""
        return all(size in self._bucketing.sizes[variable] for variable, size in values.items())
