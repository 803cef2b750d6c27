"""Draws sizes that satisfy constraints, to try a function with."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shape_poly._comparisons import Comparison
from shape_poly._expressions import Dim, DimExpr
from shape_poly._scope import SymbolicScope, get_constraints

CANDIDATES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64, 6, 9, 10, 128, 256)
"""Sizes to try: small ones, powers of two and their neighbours, then others."""

_MAX_CHECKS = 100_000
"""Maximum number of constraint checks; takes half a second."""
_MAX_SCANNED_SIZE = 256
"""Maximum size to try for a variable without a valid candidate."""
_MAX_REPEATS = 100
"""Number of successive repetitions after which random sampling ends."""


def sample_sizes(
    variables: Iterable[str],
    scope: SymbolicScope,
    *,
    among: Mapping[str, Sequence[int]] | None = None,
    nonempty: Iterable[Sequence[Dim]] = (),
    candidates: Sequence[int] = CANDIDATES,
    largest: int = 2**31 - 1,
    seed: int | None = None,
) -> Iterator[dict[str, int]]:
    """Yields distinct sizes of the variables that satisfy the constraints.

    Small sizes come first. Without a seed, sizes follow the order of the candidates, and the last
    variable changes fastest; with a seed, all but the first are random. The work is bounded, so not
    all valid sizes may be yielded.

    Args:
      variables: the variables, in the order of the results.
      scope: the constraints; those on other variables are ignored.
      among: the allowed sizes of some variables, such as `{"b": [8]}`.
      nonempty: shapes whose symbolic sizes must be at least 1.
      candidates: the sizes to try for other variables, preferred ones first. If none is valid,
        sizes at which a constraint starts or stops holding are tried.
      largest: the maximum of sizes that are not candidates.
      seed: the seed of random sizes. Equal seeds give equal sizes in every process.

    >>> from shape_poly import SymbolicScope
    >>> scope = SymbolicScope(["mod(b, 4) == 0", "n == 3*b"])
    >>> next(sample_sizes(["b", "n"], scope))
    {'b': 4, 'n': 12}
    >>> next(sample_sizes(["b", "n"], scope, among={"n": [600]}))
    {'b': 200, 'n': 600}
    """
    names = tuple(dict.fromkeys(variables))
    dims = (d for shape in nonempty for d in shape if isinstance(d, DimExpr))
    constraints = dict.fromkeys((*get_constraints(scope), *(Comparison(">=", d, 1) for d in dims)))
    search = _SizeSearch(names, [*constraints], among or {}, candidates, largest)
    if seed is None:
        yield from search.search()
        return
    first = next(search.search(), None)
    if first is None:
        return
    yield first
    generator, seen, repeats = random.Random(seed), {tuple(first.values())}, 0
    while names and repeats < _MAX_REPEATS:
        sizes = next(search.search(generator), None)
        if sizes is None:
            return
        repeats += 1
        if tuple(sizes.values()) not in seen:
            seen.add(tuple(sizes.values()))
            repeats = 0
            yield sizes


class _SizeSearch:
    """Assigns sizes to one variable after the other, and backtracks."""

    def __init__(
        self,
        names: Sequence[str],
        constraints: Sequence[Comparison],
        among: Mapping[str, Sequence[int]],
        candidates: Sequence[int],
        largest: int,
    ) -> None:
        self._names, self._among = names, among
        self._candidates, self._largest = candidates, largest
        self._largest_candidate = max(itertools.chain(candidates, *among.values()), default=0)
        # Variables with few choices come first, because they may determine others.
        self._order = sorted(names, key=lambda name: name not in among)
        # The constraints that can be checked as soon as each variable has a size.
        self._checkable = [
            [
                c
                for c in constraints
                if c.variables() <= {*self._order[: i + 1]} and name in c.variables()
            ]
            for i, name in enumerate(self._order)
        ]
        self._never = not all(c.holds({}) for c in constraints if not c.variables())
        self._checks = 0

    def search(self, generator: random.Random | None = None) -> Iterator[dict[str, int]]:
        """Yields solutions in order, or in random order with a generator."""
        if not self._never:
            yield from self._iter_from(0, {}, generator)

    def _iter_from(
        self, depth: int, sizes: dict[str, int], generator: random.Random | None
    ) -> Iterator[dict[str, int]]:
        if depth == len(self._order):
            yield {name: sizes[name] for name in self._names}
            return
        name, constraints = self._order[depth], self._checkable[depth]
        choices = self._list_choices(name, constraints, sizes)
        if generator is not None:
            choices = [*choices]
            generator.shuffle(choices)
        for size in choices:
            yield from self._iter_from(depth + 1, {**sizes, name: size}, generator)

    def _list_choices(
        self, name: str, constraints: Sequence[Comparison], sizes: Mapping[str, int]
    ) -> Iterable[int]:
        def fits(size: int) -> bool:
            self._checks += 1
            return self._checks <= _MAX_CHECKS and all(
                c.holds({**sizes, name: size}) for c in constraints
            )

        if name in self._among:
            return filter(fits, self._among[name])
        thresholds = {size for c in constraints for size in _iter_thresholds(c, sizes, name)}
        thresholds = {size for size in thresholds if 1 <= size <= self._largest}
        first = [*self._candidates]
        # Larger sizes come last, because an upper bound is rarely a good size to run.
        for size in sorted(s for s in thresholds - {*first} if s <= self._largest_candidate):
            place = next((i for i, known in enumerate(first) if known > size), len(first))
            first.insert(place, size)
        scanned = range(1, min(_MAX_SCANNED_SIZE, self._largest) + 1) if constraints else ()
        for choices in (first, sorted(thresholds), scanned):
            candidates = filter(fits, choices)
            for fitting in candidates:
                return itertools.chain([fitting], candidates)
        return ()


def _iter_thresholds(comparison: Comparison, sizes: Mapping[str, int], name: str) -> Iterator[int]:
    """Yields sizes near which a linear comparison starts or stops holding."""
    difference = comparison.difference()
    if isinstance(difference, int):
        return
    try:
        first, second = (difference.evaluate({**sizes, name: size}) for size in (1, 2))
    except ZeroDivisionError:
        return
    if first != second:
        near = 1 - first // (second - first)
        yield from (near - 1, near, near + 1)
