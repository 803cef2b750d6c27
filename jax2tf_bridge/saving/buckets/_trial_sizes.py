"""Sizes for the trial of a function with buckets."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from jax2tf_bridge.saving.buckets._buckets import Bucketing
from jax2tf_bridge.saving.buckets._sizes import TYPICAL, find_sizes

_MAX_SEARCH = 256
"""Maximum distance below a bucket at which a valid size of the function is searched."""

_MIN_TRIAL_BUCKET = 8
"""Size that replaces larger buckets in the trial, to save time.

A function that mixes positions does so at every size at which its results are finite.
"""


class TrialSizes:
    """Sizes for the trial of one signature."""

    def __init__(self, bucketing: Bucketing, *, small: bool = True) -> None:
        """Chooses small sizes in place of the user's buckets, if `small`."""
        self._bucketing, self._small = bucketing, small

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
        known = [c for c in self._bucketing.constraints if c.variables() <= set(sizes)]
        buckets = {variable: self._find_bucket(variable, _MIN_TRIAL_BUCKET) for variable in sizes}
        if self._small and all(constraint.holds(buckets) for constraint in known):
            return buckets
        return {variable: self._find_bucket(variable, None) for variable in sizes}

    def _find_bucket(self, variable: str, lowest: int | None) -> int:
        larger = [size for size in self._bucketing.sizes[variable] if size > 1]
        own = [c for c in self._bucketing.constraints if c.variables() == {variable}]
        smallest: int = larger[0] if larger else 1

        def is_valid(size: int) -> bool:
            return all(c.holds({variable: size}) for c in own)

        smaller = range(smallest if lowest is None else lowest, smallest)
        candidates: list[int] = [*smaller, *larger]
        for bucket in candidates:
            sizes = range(bucket - 1, max(0, bucket - _MAX_SEARCH), -1)
            if is_valid(bucket) and any(map(is_valid, sizes)):
                return bucket
        return smallest

    def iterate_larger_buckets(self) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
        """Yields the buckets that are larger than the trial's.

        Each bucket of each variable comes once. Yields the smallest sizes of all variables that are
        padded to the buckets, and the sizes of all variables with the buckets.
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
                fitting = (n for n in sizes if self.satisfies_constraints({**least, variable: n}))
                least[variable] = next(fitting, buckets[variable])
            yield least, full

    def bucket_text(self, variable: str) -> str:
        """Names the bucket in a message; the trial may use a size that is not the user's bucket."""
        bucket = self.bucket(variable)
        is_users = bucket in self._bucketing.sizes[variable]
        return f"the bucket {bucket}" if is_users else f"a bucket of {bucket}"

    def find_size_below(self, variable: str) -> int | None:
        """Finds a valid size below the bucket, with the other variables at their buckets."""
        bucket = self.bucket(variable)
        full = self.full
        likely = [max(1, bucket * 2 // 3), 1, *range(bucket - 1, max(0, bucket - _MAX_SEARCH), -1)]
        return next((n for n in likely if self.satisfies_constraints({**full, variable: n})), None)

    def find_sizes_below(self) -> dict[str, int]:
        """Finds a valid size below the bucket for each checked variable that has one."""
        sizes = {variable: self.find_size_below(variable) for variable in self.list_checked()}
        return {variable: size for variable, size in sizes.items() if size is not None}

    def satisfies_constraints(self, values: Mapping[str, int]) -> bool:
        """Returns whether these sizes satisfy the constraints of the function."""
        return all(c.holds(values) for c in self._bucketing.constraints)

    def find_valid(self, variable: str, sizes: range) -> int:
        """Returns the first of these sizes that is valid, or the first of all if none is."""
        valid = (n for n in sizes if self.satisfies_constraints({**self.full, variable: n}))
        return next(valid, sizes.start)

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
