"""Experiments: tracing at concrete sizes, where the error with symbolic ones does not tell.

Libraries and users check sizes in words of their own.  Which sizes pass tells what they check.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shape_poly import Comparison, DimExpr, SymbolicScope

Sizes = Mapping[str, int]

_MAX_TRIES = 72
_ENOUGH_FAILURES = 12
_SMALL = 3
_MAX_SMALL = 16
_MAX_SECONDS = 20.0
_LARGEST = 24
_MULTIPLES = 16
_MAX_COMPARISONS = 3


@dataclass(frozen=True)
class Experiment:
    """Sizes at which a function was tried.

    Attributes:
      passed: the sizes at which it can be traced.
      failed: the others, each with the error.
    """

    passed: tuple[Sizes, ...]
    failed: tuple[tuple[Sizes, Exception], ...]

    def without_ones(self) -> Experiment:
        """Leaves out the sizes of 1."""
        return Experiment(
            tuple(s for s in self.passed if 1 not in s.values()),
            tuple((s, e) for s, e in self.failed if 1 not in s.values()),
        )


def experiment(
    trace_at: Callable[[Sizes], object],
    variables: frozenset[str],
    scope: SymbolicScope,
    example: Sizes,
) -> Experiment:
    """Traces the function at some sizes that the scope allows, in at most some seconds.

    Args:
      trace_at: traces it, and raises what JAX raises.
      variables: the dimension variables.
      scope: their constraints.
      example: sizes at which it should work, as far as they are known.
    """
    passed: list[Sizes] = []
    failed: list[tuple[Sizes, Exception]] = []
    start = time.monotonic()
    allowed = (s for s in _sizes(sorted(variables | scope.variables()), example) if scope.holds(s))
    for sizes in itertools.islice(allowed, _MAX_TRIES):
        hopeless = not passed and len(failed) >= _ENOUGH_FAILURES
        if hopeless or time.monotonic() - start > _MAX_SECONDS:
            break
        try:
            trace_at(sizes)
        except Exception as e:
            failed.append((sizes, e))
        else:
            passed.append(sizes)
    passed.sort(key=lambda sizes: sum(sizes.values()))
    failed.sort(key=lambda failure: sum(failure[0].values()))
    return Experiment(tuple(passed), tuple(failed))


def explanation(found: Experiment) -> tuple[Comparison, ...]:
    """Finds a few simple comparisons that hold for all sizes that passed, and for no other.

    Empty if there are none, and if nothing passed or nothing failed. A size of 1 may pass since it
    broadcasts: what holds without these is taken if nothing else is found.
    """
    return _explanation(found) or _explanation(found.without_ones())


def _explanation(found: Experiment) -> tuple[Comparison, ...]:
    if not found.passed:
        return ()
    candidates = [
        c
        for c in dict.fromkeys(_candidates(sorted(found.passed[0]), found.passed))
        if all(map(c.holds, found.passed))
    ]
    left = [sizes for sizes, _ in found.failed]
    chosen: list[Comparison] = []
    while left and candidates and len(chosen) < _MAX_COMPARISONS:
        best = max(candidates, key=lambda c: sum(not c.holds(sizes) for sizes in left))
        chosen.append(best)
        remaining = [sizes for sizes in left if best.holds(sizes)]
        if len(remaining) == len(left):
            return ()
        left = remaining
    return () if left else tuple(chosen)


def _candidates(names: Sequence[str], passed: Sequence[Sizes]) -> Iterator[Comparison]:
    for name in names:
        variable, values = DimExpr.variable(name), [sizes[name] for sizes in passed]
        if len(set(values)) == 1:
            yield Comparison("==", variable, values[0])
        yield Comparison(">=", variable, min(values))
        yield Comparison("<=", variable, max(values))
        for multiple in range(2, _MULTIPLES + 1):
            yield Comparison("==", variable % multiple, values[0] % multiple)
    for first, second in itertools.permutations(names, 2):
        x, y = DimExpr.variable(first), DimExpr.variable(second)
        yield Comparison("==", x, y)
        yield Comparison(">=", x, y)
        yield Comparison("==", x % y, 0)
        if len({sizes[first] - sizes[second] for sizes in passed}) == 1:
            yield Comparison("==", x, y + (passed[0][first] - passed[0][second]))


def _sizes(names: Sequence[str], example: Sizes) -> Iterator[Sizes]:
    """Yields the example, all small sizes, and one variable after another beside the example."""
    seen = set()
    around = {name: example.get(name, 2) for name in names}
    for sizes in itertools.chain(
        [around],
        (dict(zip(names, s, strict=True)) for s in _box(len(names), _SMALL)),
        ({**around, name: size} for size in range(1, _LARGEST + 1) for name in names),
        (dict.fromkeys(names, size) for size in range(1, _LARGEST + 1)),
    ):
        values = tuple(sizes[name] for name in names)
        if values not in seen:
            seen.add(values)
            yield sizes


def _box(count: int, largest: int) -> Iterator[tuple[int, ...]]:
    sizes = itertools.product(range(1, largest + 1), repeat=count)
    return itertools.islice(sorted(sizes, key=sum), _MAX_SMALL) if count <= 4 else iter(())
