"""Trials of concrete sizes: which sizes a function accepts, and which a constraint allows."""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax

from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions, TracedFunction
from jax2tf_bridge.from_jax.shapes._errors import is_same_error
from jax2tf_bridge.from_jax.shapes._questions import Question
from shape_poly import Comparison, DimExpr, SymbolicScope, evaluate_shape, sample_sizes

Sizes = Mapping[str, int]

_MAX_TRIES = 72
_MAX_FAILURES = 12
_MAX_PASSES = 8
_MAX_SMALL_SIZE = 3
_MAX_SMALL_TRIALS = 16
_MAX_SECONDS = 20.0
_MAX_SECONDS_WITHOUT_FAILURE = 3.0
"""Time in seconds after which trials end if none of them failed."""
_MAX_SIZE = 24
_MAX_MULTIPLE = 16
_MAX_COMPARISONS = 3
_MAX_SAMPLES = 2000
_MAX_VALUES = 4


@dataclass(frozen=True)
class Experiment:
    """Outcome of trials of sizes.

    Attributes:
      passed: the sizes at which the function can be traced.
      failed: the other sizes, each with the error.
    """

    passed: tuple[Sizes, ...]
    failed: tuple[tuple[Sizes, Exception], ...]


def try_sizes(function: TracedFunction, scope: SymbolicScope, error: Exception) -> Experiment:
    """Traces the function at some sizes in the scope, within a time limit.

    `error` is that of tracing with open sizes. If JAX raises the same error at concrete sizes, it
    is not about sizes, and one trial suffices.
    """
    passed: list[Sizes] = []
    failed: list[tuple[Sizes, Exception]] = []
    start = time.monotonic()
    names = sorted(function.variables | scope.variables())
    small = filter(scope.holds, _iter_sizes(names, function.example))
    first = next(small, None)
    # The constraints may exclude all small sizes.
    allowed = sample_sizes(names, scope) if first is None else itertools.chain([first], small)
    for sizes in itertools.islice(allowed, _MAX_TRIES):
        seconds = time.monotonic() - start
        hopeless = not passed and len(failed) >= _MAX_FAILURES
        clear = not failed and len(passed) >= _MAX_PASSES and seconds > _MAX_SECONDS_WITHOUT_FAILURE
        if hopeless or clear or seconds > _MAX_SECONDS:
            break
        try:
            function.trace_at(sizes)
        except Exception as e:
            failed.append((sizes, e))
            by_jax = function.is_gradient or isinstance(error, jax.errors.JAXTypeError)
            if by_jax and not passed and is_same_error(error, e, sizes):
                break
        else:
            passed.append(sizes)
    passed.sort(key=lambda sizes: sum(sizes.values()))
    failed.sort(key=lambda failure: sum(failure[0].values()))
    return Experiment(tuple(passed), tuple(failed))


def explain(experiment: Experiment) -> tuple[Comparison, ...]:
    """Finds a few simple comparisons that separate the passed sizes from the failed ones.

    Returns () if there are none, or if nothing passed or nothing failed. A size of 1 may pass only
    because it broadcasts, so comparisons that ignore these sizes are the second choice.
    """
    passed, failed = experiment.passed, [sizes for sizes, _ in experiment.failed]
    without_ones = ([s for s in sizes if 1 not in s.values()] for sizes in (passed, failed))
    return _explain(passed, failed) or _explain(*without_ones)


def _explain(passed: Sequence[Sizes], failed: Sequence[Sizes]) -> tuple[Comparison, ...]:
    if not passed:
        return ()
    candidates = [
        c
        for c in dict.fromkeys(_iter_candidates(sorted(passed[0]), passed))
        if all(map(c.holds, passed))
    ]
    unexplained = [*failed]
    chosen: list[Comparison] = []
    while unexplained and candidates and len(chosen) < _MAX_COMPARISONS:
        best = max(candidates, key=lambda c: sum(not c.holds(sizes) for sizes in unexplained))
        chosen.append(best)
        remaining = [sizes for sizes in unexplained if best.holds(sizes)]
        if len(remaining) == len(unexplained):
            return ()
        unexplained = remaining
    return () if unexplained else tuple(chosen)


def _iter_candidates(names: Sequence[str], passed: Sequence[Sizes]) -> Iterator[Comparison]:
    for name in names:
        variable, values = DimExpr.variable(name), [sizes[name] for sizes in passed]
        if len(set(values)) == 1:
            yield Comparison("==", variable, values[0])
        yield Comparison(">=", variable, min(values))
        yield Comparison("<=", variable, max(values))
        for multiple in range(2, _MAX_MULTIPLE + 1):
            yield Comparison("==", variable % multiple, values[0] % multiple)
    for first, second in itertools.permutations(names, 2):
        x, y = DimExpr.variable(first), DimExpr.variable(second)
        yield Comparison("==", x, y)
        yield Comparison(">=", x, y)
        yield Comparison("==", x % y, 0)
        if len({sizes[first] - sizes[second] for sizes in passed}) == 1:
            yield Comparison("==", x, y + (passed[0][first] - passed[0][second]))


def _iter_sizes(names: Sequence[str], example: Sizes) -> Iterator[Sizes]:
    """Yields the example, all small sizes, and the example with one variable changed at a time."""
    seen = set()
    start = {name: example.get(name, 2) for name in names}
    for sizes in itertools.chain(
        [start],
        (dict(zip(names, s, strict=True)) for s in _iter_small_sizes(len(names))),
        ({**start, name: size} for size in range(1, _MAX_SIZE + 1) for name in names),
        (dict.fromkeys(names, size) for size in range(1, _MAX_SIZE + 1)),
    ):
        values = tuple(sizes[name] for name in names)
        if values not in seen:
            seen.add(values)
            yield sizes


def _iter_small_sizes(count: int) -> Iterator[tuple[int, ...]]:
    sizes = itertools.product(range(1, _MAX_SMALL_SIZE + 1), repeat=count)
    return itertools.islice(sorted(sizes, key=sum), _MAX_SMALL_TRIALS) if count <= 4 else iter(())


def propose_values(
    question: Question, assumptions: SizeAssumptions, function: TracedFunction
) -> Question:
    """Proposes values for the question's constants: that of the example, then frequent ones."""
    shape = tuple(map(assumptions.from_jax, question.constants))
    samples = itertools.islice(_iter_samples(function.variables), _MAX_SAMPLES)
    allowed = [sizes for sizes in samples if assumptions.full_scope.holds(sizes)]
    # The first of equally frequent values wins: that of the largest size, which has many divisors.
    counts = collections.Counter(evaluate_shape(shape, sizes) for sizes in reversed(allowed))
    rows = [row for row, _ in counts.most_common(_MAX_VALUES)]
    if function.variables <= function.example.keys():
        rows.insert(0, evaluate_shape(shape, function.example))
    known = [tuple(v for v in row if v is not None) for row in dict.fromkeys(rows)]
    return Question(
        tuple(
            tuple(Comparison("==", d, v) for d, v in zip(question.constants, row, strict=True))
            for row in known
            if len(row) == len(shape)
        )
    )


def sort_by_likelihood(question: Question, scope: SymbolicScope) -> list[tuple[Comparison, ...]]:
    """Sorts the options of a question; those that hold for clearly more sizes come first."""
    if len(question.options) == 1:
        return list(question.options)
    asked = frozenset[str]().union(*(c.variables() for o in question.options for c in o))
    samples = itertools.islice(_iter_samples(asked | scope.variables()), _MAX_SAMPLES)
    allowed = [values for values in samples if scope.holds(values)]

    def count_satisfying(option: tuple[Comparison, ...]) -> int:
        return sum(all(c.holds(values) for c in option) for values in allowed)

    first, *alternatives = question.options
    better = [
        option
        for option in alternatives
        if count_satisfying(option) > 1.5 * count_satisfying(first)
    ]
    return [*better, first, *(option for option in alternatives if option not in better)]


def _iter_samples(variables: frozenset[str]) -> Iterator[dict[str, int]]:
    """Yields evenly spread sizes; for one or two variables all sizes up to a bound."""
    names = sorted(variables)
    if len(names) <= 2:
        for sizes in itertools.product(range(1, _MAX_SIZE + 1), repeat=len(names)):
            yield dict(zip(names, sizes, strict=True))
        return
    for n in itertools.count():
        # Each variable has its own step, so that they do not change in parallel.
        yield {
            name: 1 + (n * (2 * i + 5) + n // (i + 2)) % _MAX_SIZE for i, name in enumerate(names)
        }
