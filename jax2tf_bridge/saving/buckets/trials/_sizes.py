"""Sizes at which a function with buckets is tried."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from jax2tf_bridge.saving.buckets._buckets import Bucketing
from jax2tf_bridge.saving.buckets._likely_sizes import typical_sizes

_NEARBY = 256
"""How far below a bucket a size is looked for at which the function runs by itself."""

_LARGE_ENOUGH = 8
"""Padding to larger buckets than this is tried at this size, which takes less time.

What mixes positions does so at every size at which the function gives numbers.
"""


class TrialSizes:
    """Sizes at which one signature is tried."""

    def __init__(
        self, bucketing: Bucketing, others: Mapping[str, int], *, small: bool = True
    ) -> None:
        """Chooses sizes for a signature."""
        self._bucketing, self._others, self._small = bucketing, others, small

    def checked(self) -> list[str]:
        """Lists the variables along which something is padded and nobody vouches for it."""
        unchecked = self._bucketing.unchecked
        return [v for v in self._bucketing.sizes if v not in unchecked and self.bucket(v) > 1]

    def bucket(self, variable: str) -> int:
        """Returns the size to which is padded here: the smallest bucket or less; 1 for none."""
        return self._buckets[variable]

    @functools.cached_property
    def _buckets(self) -> dict[str, int]:
        sizes = self._bucketing.sizes
        known = [c for c in self._bucketing.constraints if c.variables() <= set(sizes)]
        found = {variable: self._find_bucket(variable, _LARGE_ENOUGH) for variable in sizes}
        if self._small and all(constraint.holds(found) for constraint in known):
            return found
        return {variable: self._find_bucket(variable, None) for variable in sizes}

    def _find_bucket(self, variable: str, enough: int | None) -> int:
        larger = [size for size in self._bucketing.sizes[variable] if size > 1]
        own = [c for c in self._bucketing.constraints if c.variables() == {variable}]
        most: int = larger[0] if larger else 1

        def runs(size: int) -> bool:
            return all(c.holds({variable: size}) for c in own)

        smaller = range(most if enough is None else enough, most)
        candidates: list[int] = [*smaller, *larger]
        for bucket in candidates:
            sizes = range(bucket - 1, max(0, bucket - _NEARBY), -1)
            if runs(bucket) and any(map(runs, sizes)):
                return bucket
        return most

    def larger_buckets(self) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
        """Yields the buckets that the trial leaves out since they are larger than its own.

        Each bucket of each variable comes once, with the least sizes that are padded to it: sizes
        of all variables, then the same with the buckets in their place.
        """
        by_variable = self._bucketing.sizes
        for i in range(max(map(len, by_variable.values()))):
            places = {v: min(i, len(sizes) - 1) for v, sizes in by_variable.items()}
            buckets = {v: by_variable[v][place] for v, place in places.items()}
            full = self.all(buckets)
            if all(size <= self._buckets[v] for v, size in buckets.items()):
                continue
            if not self.allows(full):
                continue
            least = dict(full)
            for variable, place in places.items():
                if variable in self._bucketing.unchecked:
                    continue
                before = by_variable[variable][place - 1] if place else 0
                sizes = range(before + 1, buckets[variable])
                fitting = (n for n in sizes if self.allows({**least, variable: n}))
                least[variable] = next(fitting, buckets[variable])
            yield least, full

    def bucket_text(self, variable: str) -> str:
        """Names the bucket in a message: it may be none of the user's."""
        bucket = self.bucket(variable)
        is_one = bucket in self._bucketing.sizes[variable]
        return f"the bucket {bucket}" if is_one else f"a bucket of {bucket}"

    def size_below(self, variable: str) -> int | None:
        """Finds a size at which the function runs by itself, with the others at a bucket."""
        bucket = self.bucket(variable)
        full = self.all({})
        likely = [max(1, bucket * 2 // 3), 1, *range(bucket - 1, max(0, bucket - _NEARBY), -1)]
        return next((n for n in likely if self.allows({**full, variable: n})), None)

    def below(self) -> dict[str, int]:
        """Finds a size for each variable along which something is padded, where there is one."""
        found = {variable: self.size_below(variable) for variable in self.checked()}
        return {variable: size for variable, size in found.items() if size is not None}

    def allows(self, values: Mapping[str, int]) -> bool:
        """Checks that the function runs at these sizes."""
        return all(c.holds(values) for c in self._bucketing.constraints)

    def valid(self, variable: str, sizes: range) -> int:
        """Finds the first of some sizes at which it runs; the first of all if there is none."""
        full = self.all({})
        return next((n for n in sizes if self.allows({**full, variable: n})), sizes.start)

    def all(self, given: Mapping[str, int]) -> dict[str, int]:
        """Completes sizes by a bucket for each variable that has some, and typical sizes."""
        bucketing = self._bucketing
        avals = (*bucketing.inputs.values(), *bucketing.outputs.values())
        fixed = {**self._buckets, **given, **self._others}
        return typical_sizes(bucketing.name, avals, bucketing.constraints, fixed)

    def are_buckets(self, values: Mapping[str, int]) -> bool:
        """Checks that sizes are buckets of the user's."""
        return all(size in self._bucketing.sizes[variable] for variable, size in values.items())
