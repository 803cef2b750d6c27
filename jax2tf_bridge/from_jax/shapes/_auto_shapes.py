"""AUTO: finds the dimensions that can stay open, and those that are equal."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax2tf_bridge.errors import BridgeError, Message, ShapeError
from jax2tf_bridge.from_jax._symbols import is_single_variable
from jax2tf_bridge.from_jax.shapes._assumptions import Requirement
from jax2tf_bridge.from_jax.shapes._options import (
    AUTO_CONSTRAINTS,
    AUTO_SHAPES,
    CONSTRAINTS,
    SHAPES,
)
from jax2tf_bridge.from_jax.shapes._specs import AutoSpec, Specs
from shape_poly import Comparison, Dim, DimExpr, is_symbolic_dim

logger = logging.getLogger("jax2tf_bridge")

Place = tuple[int, int]
"""Dimension of an argument: the index of the flat argument, and the axis."""
Choice = Mapping[Place, Dim]
"""Maps each dimension that AUTO decides on to a size or a variable."""

_MAX_REFINEMENTS = 16


@dataclass(frozen=True)
class TracedTrial:
    """Outcome of tracing a function with some specs.

    Attributes:
      requirements: the requirements on the sizes.
      results: the shapes of the flat results.
    """

    requirements: Sequence[Requirement]
    results: Sequence[tuple[Dim, ...]]


def choose_auto_shapes(
    specs: Specs, trace: Callable[[Specs], TracedTrial], *, infer: bool
) -> Specs:
    """Replaces each AUTO by a specification, as open as tracing allows.

    Unknown sizes are open. If all sizes are known, the leading dimensions are tried first. An
    argument counts as parameters, and keeps its shapes, if none of its leading dimensions can be
    open, or if the leading dimensions of the results come from other arguments only. Then the other
    dimensions of the remaining arguments are tried, and stay closed if that fails.

    Args:
      specs: the specs, with AutoSpecs among the leaves.
      trace: traces the function with some specs; raises the errors of tracing.
      infer: whether requirements may stay; otherwise dimensions are closed until there are none.

    Raises:
      ShapeError: no dimension can stay open, or an unknown one cannot.
      Exception: tracing fails even with the sizes of the examples.
    """
    return _PlaceSearch(specs, trace, infer).result()


class _PlaceSearch:
    """Search over the places that AUTO decides on; traces are cached."""

    def __init__(self, specs: Specs, trace: Callable[[Specs], TracedTrial], infer: bool) -> None:
        self.specs, self.trace, self.infer = specs, trace, infer
        self.trials: dict[tuple[tuple[Dim, ...] | None, ...], TracedTrial] = {}
        self.sizes: dict[Place, int | None] = {
            (i, axis): size
            for i, leaf in enumerate(specs.leaves())
            if isinstance(leaf, AutoSpec)
            for axis, size in enumerate(leaf.shape)
        }
        self.names = _iter_free_names(specs, 0)
        self.argument_of = specs.arguments_of_leaves()

    def result(self) -> Specs:
        unknown = [place for place, size in self.sizes.items() if size is None]
        start = self.open_places({}, unknown)
        choice = self.refine(start) if unknown else self.choose_from_examples()
        specs = self.specs.with_shapes(self.shapes(self.rename_variables(choice)))
        logger.info("AUTO chose %s.", specs.description())
        return specs

    def choose_from_examples(self) -> Choice:
        leading = [place for place in self.sizes if place[1] == 0]
        batch = self.close_parameters(self.open_leading(self.open_places({}, leading)))
        data = {i for (i, _), d in batch.items() if isinstance(d, DimExpr)}
        inner = [p for p in self.sizes if p[0] in data and p[1] > 0]
        if not inner:
            return batch
        choice = self.attempt(
            self.open_places(batch, inner), "more than the leading dimensions open"
        )
        return batch if isinstance(choice, Exception) else choice

    def open_leading(self, choice: Choice) -> Choice:
        """Opens the leading dimensions of all arguments, or else only that of the last one."""
        failure = self.attempt(choice, "the leading dimensions open", by_argument=True)
        if not isinstance(failure, Exception):
            return failure
        arguments = dict.fromkeys(self.argument_of[i] for i, _ in self.sizes)
        for argument in reversed(arguments):
            alone = {
                place: d if self.argument_of[place[0]] == argument else self.size_of(place)
                for place, d in choice.items()
            }
            outcome = self.attempt(alone, "the leading dimensions of one argument open")
            if not isinstance(outcome, Exception):
                return outcome
        raise failure

    def close_parameters(self, choice: Choice) -> Choice:
        """Closes the arguments whose leading dimensions lead no result, if that can be traced.

        A convolution accepts kernels of any size, and an embedding tables of any size, so open
        dimensions do not imply data. Arguments with a variable of the user are data.
        """
        leading = self.find_leading_variables(choice)
        variables = leading | self.specs.variables()
        data = {self.argument_of[i] for (i, _), d in choice.items() if str(d) in variables}
        closed = {
            p: d if self.argument_of[p[0]] in data else self.size_of(p) for p, d in choice.items()
        }
        if not leading or closed == choice:
            return choice
        outcome = self.attempt(closed, "the arguments that lead no result closed")
        return closed if outcome == closed else choice

    def find_leading_variables(self, choice: Choice) -> frozenset[str]:
        """Collects the variables in the first open dimension of each result.

        Results with an argument's shape may be updated weights. If there are other results, and
        none of them has an open dimension (like a loss), no variable is returned.
        """
        results, arguments = self.trial(choice).results, self.shapes(choice)
        other_results = [result for result in results if result not in arguments]
        is_informative = bool(_find_first_variables(other_results)) or not other_results
        return _find_first_variables(results if is_informative else ())

    def trial(self, choice: Choice) -> TracedTrial:
        shapes = tuple(self.shapes(choice))
        if shapes not in self.trials:
            self.trials[shapes] = self.trace(self.specs.with_shapes(shapes))
        return self.trials[shapes]

    def attempt(
        self, choice: Choice, what: str, *, by_argument: bool = False
    ) -> Choice | Exception:
        """Returns the refined choice, or the error if it fails; `what` is for the log."""
        try:
            return self.refine(choice, by_argument=by_argument)
        except Exception as e:
            if isinstance(e, BridgeError) and not isinstance(e, ShapeError):
                raise
            logger.debug("With %s: %s", what, e)
            return e

    def refine(self, choice: Choice, *, by_argument: bool = False) -> Choice:
        """Merges and closes dimensions until tracing adds no requirement.

        With `by_argument`, all dimensions of an argument are closed if one must be.
        """
        for _ in range(_MAX_REFINEMENTS):
            requirements = self.trial(choice).requirements
            before = choice
            for requirement in requirements:
                choice = self.merge(choice, requirement.comparison) or choice
            for requirement in requirements if choice == before and not self.infer else ():
                choice = self.close_places(choice, requirement, by_argument)
            if choice == before:
                return choice
            if not (self.variables(choice) or self.specs.variables()):
                raise self.make_nothing_open_error(requirements)
        raise ShapeError(
            Message(
                AUTO_SHAPES,
                " finds no specification: each trace requires further sizes to be equal. Write ",
                SHAPES,
                " yourself.",
            )
        )

    def merge(self, choice: Choice, comparison: Comparison) -> Choice | None:
        """Merges two equal variables, or replaces one by a number; None for other comparisons.

        The user's variables keep their names.
        """
        left, right = comparison.left, comparison.right
        if comparison.operator != "==":
            return None
        if not is_single_variable(left) or str(left) in self.specs.variables():
            left, right = right, left
        if (
            not is_single_variable(left)
            or str(left) in self.specs.variables()
            or not (is_single_variable(right) or isinstance(right, int))
        ):
            return None
        places = [p for p, d in choice.items() if d in (left, right)]
        expected = {self.sizes[p] for p in places} | ({right} if isinstance(right, int) else set())
        if len(expected) > 1 or (isinstance(right, int) and None in expected):
            return None
        return {p: right if d == left else d for p, d in choice.items()}

    def close_places(self, choice: Choice, requirement: Requirement, by_argument: bool) -> Choice:
        """Closes the dimensions of a requirement, at the sizes of the examples."""
        names = requirement.comparison.variables()
        inner = {n for n in names if not self.is_leading(choice, n)}
        places = [p for p, d in choice.items() if str(d) in (inner or names)]
        if by_argument:
            arguments = {self.argument_of[i] for i, _ in places}
            places = [p for p in choice if self.argument_of[p[0]] in arguments]
        return {p: self.size_of(p, requirement) if p in places else d for p, d in choice.items()}

    def make_nothing_open_error(self, requirements: Sequence[Requirement]) -> ShapeError:
        needs = ", ".join(dict.fromkeys(str(r.comparison) for r in requirements))
        checked = (
            "Pass ",
            AUTO_CONSTRAINTS,
            " to have it checked when the function is called, or write ",
        )
        return ShapeError(
            Message(
                AUTO_SHAPES,
                f" finds no dimension that can stay open for all sizes: the function needs {needs} "
                "(d0, d1, ... are the leading dimensions of its arguments). ",
                *(("Write ",) if self.infer else checked),
                SHAPES,
                " and ",
                CONSTRAINTS,
                " yourself.",
            )
        )

    def size_of(self, place: Place, requirement: Requirement | None = None) -> int:
        size = self.sizes[place]
        if size is None:
            needs = f": the function needs {requirement.comparison}" if requirement else ""
            raise ShapeError(
                Message(
                    AUTO_SHAPES,
                    f" cannot leave dimension {place[1]} of the argument "
                    f"{self.specs.paths()[place[0]]} open, and its size is unknown{needs}. Pass ",
                    AUTO_CONSTRAINTS,
                    " to have that checked when the function is called, or give the argument a "
                    "known size there.",
                )
            )
        return size

    def open_places(self, choice: Choice, places: Sequence[Place]) -> Choice:
        """Opens each of the places with a new variable; other places keep their known size."""
        known = {place: size for place, size in self.sizes.items() if size is not None}
        return {**known, **choice, **{p: DimExpr.variable(next(self.names)) for p in places}}

    def is_leading(self, choice: Choice, name: str) -> bool:
        return any(axis == 0 and str(d) == name for (_, axis), d in choice.items())

    def variables(self, choice: Choice) -> list[str]:
        return list(dict.fromkeys(str(d) for d in choice.values() if isinstance(d, DimExpr)))

    def shapes(self, choice: Choice) -> list[tuple[Dim, ...] | None]:
        return [
            tuple(choice[i, axis] for axis in range(len(leaf.shape)))
            if isinstance(leaf, AutoSpec)
            else None
            for i, leaf in enumerate(self.specs.leaves())
        ]

    def rename_variables(self, choice: Choice) -> Choice:
        """Renames the variables: b for the first leading dimension, then d1, d2, ..."""
        by_user = self.specs.variables()
        new = [v for v in self.variables(choice) if v not in by_user]
        leading = [v for v in new if self.is_leading(choice, v)]
        others = [v for v in new if v not in leading[:1]]
        free = _iter_free_names(self.specs, 1)
        names = dict(zip(others, free, strict=False))
        if leading:
            names[leading[0]] = "b" if "b" not in by_user else next(free)
        return {
            p: DimExpr.variable(names.get(str(d), str(d))) if isinstance(d, DimExpr) else d
            for p, d in choice.items()
        }


def _iter_free_names(specs: Specs, first: int) -> Iterator[str]:
    by_user = specs.variables()
    return (name for i in itertools.count(first) if (name := f"d{i}") not in by_user)


def _find_first_variables(shapes: Sequence[tuple[Dim, ...]]) -> frozenset[str]:
    first = [next(filter(is_symbolic_dim, shape), None) for shape in shapes]
    return frozenset[str]().union(*(d.variables() for d in first if d is not None))
