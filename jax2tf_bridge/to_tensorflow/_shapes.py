"""Checks the arguments' shapes: immediately if they are known, else by guards in the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from jax2tf_bridge.emitters import SizeAlgebra
from jax2tf_bridge.errors import format_bullets
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.to_tensorflow._shape_guards import (
    Guards,
    check_result_sizes,
    choose_size_dtype,
    format_known_shape,
    guard_result_sizes,
)
from shape_poly import (
    Check,
    Comparison,
    Dim,
    Plan,
    SymbolicScope,
    evaluate_shape,
    make_plan,
    shape_text,
    solve,
)


@dataclass(frozen=True, eq=False)
class ShapeContract:
    """The shapes that a portable function requires of its flat arguments.

    Attributes:
      name: the name of the function, for messages.
      shapes: the symbolic shape of each argument.
      constraints: the user's constraints on the variables.
      requirements: the function's own requirements, beyond the constraints.
      algebra: the algebra that computes with sizes.
      plans: cache of the plans that solve for the variables, keyed by the sizes that are known.
    """

    name: str
    shapes: tuple[tuple[Dim, ...], ...]
    constraints: tuple[Comparison, ...]
    requirements: tuple[Comparison, ...]
    algebra: SizeAlgebra
    plans: dict[tuple[tuple[bool, ...], ...], Plan] = field(default_factory=dict)

    @staticmethod
    def of(portable: PortableFunction) -> ShapeContract:
        """Makes the contract of a portable function."""
        shapes = tuple(aval.op_shape for aval in portable.in_avals)
        return _make_contract(portable.name, shapes, portable.constraints, portable.requirements)

    def comparisons(self) -> tuple[Comparison, ...]:
        """Returns the constraints and requirements."""
        return (*self.constraints, *self.requirements)

    def plan(self, sizes: Sequence[Sequence[Any]]) -> Plan:
        """Returns the plan that computes the variables from the sizes, preferring known sizes."""
        is_known = tuple(tuple(isinstance(size, int) for size in row) for row in sizes)
        plan = self.plans.get(is_known)
        if plan is None:
            plan = self.plans[is_known] = make_plan(self.shapes, sizes, self.comparisons())
        return plan

    def format_subject(self, comparison: Comparison | None = None) -> str:
        """Returns the start of an error message, in the words of JAX."""
        if comparison is None:
            return f"Input shapes do not match the polymorphic shapes specification of {self.name}"
        is_own = comparison in self.requirements and comparison not in self.constraints
        source = f", which {self.name} requires" if is_own else f" of {self.name}"
        return f"Input shapes do not match the symbolic shape constraint {comparison}{source}"


@functools.lru_cache(maxsize=1024)
def _make_contract(
    name: str,
    shapes: tuple[tuple[Dim, ...], ...],
    constraints: tuple[str, ...],
    requirements: tuple[str, ...],
) -> ShapeContract:
    user_constraints = SymbolicScope(constraints, check=False).constraints
    own_requirements = SymbolicScope(requirements, check=False).constraints
    algebra = SizeAlgebra(choose_size_dtype(shapes, (*user_constraints, *own_requirements)))
    return ShapeContract(name, shapes, user_constraints, own_requirements, algebra)


@dataclass(frozen=True)
class EarlierShapeCheck:
    """A check by an earlier call, which later calls need not repeat.

    Attributes:
      arguments: the number of leading arguments that were checked.
      contract: the contract that they were checked against.
    """

    arguments: int
    contract: ShapeContract

    def covers(self, check: Check[Any]) -> bool:
        """Returns whether the earlier check implies this one."""
        if check.comparison is not None:
            return check.comparison in self.contract.comparisons()
        return all(place.argument < self.arguments for place in check.places)


@dataclass(frozen=True)
class CheckedShapes:
    """Result of checking the shapes of one call.

    Attributes:
      results: the results' shapes, with all sizes that follow from known sizes of the arguments (a
        loop's state must not lose its static shape).
      guards: operations that check the unknown sizes at run time. The computation must depend on
        them.
      variables: the dimension variables: ints if they are known, else scalar tensors.
    """

    results: list[tuple[int | None, ...]]
    guards: list[tf.Operation]
    variables: Mapping[str, Any]


def check_shapes(
    portable: PortableFunction,
    args: Sequence[tf.Tensor],
    paths: Callable[[], Sequence[str]] | None = None,
    before: EarlierShapeCheck | None = None,
) -> CheckedShapes:
    """Checks the known sizes of the arguments, and makes guards for the unknown ones.

    Args:
      portable: the function that is called.
      args: its flat arguments.
      paths: returns the arguments' names for messages; the portable function's paths by default.
      before: an earlier check, which needs no guards.

    Raises:
      tf.errors.InvalidArgumentError: the known sizes contradict the portable function or each
        other.
      ShapeError: the size of a result is known, and does not fit into 32 bits.
    """
    contract = ShapeContract.of(portable)
    results = [aval.op_shape for aval in portable.out_avals]
    call = _CallShapes(contract, paths or portable.in_paths, args)
    call.check_ranks()
    if call.is_as_expected():
        return CheckedShapes([evaluate_shape(shape, {}) for shape in results], [], {})
    guards = Guards(contract.algebra)
    call.find_sizes(guards)
    solution = solve(
        contract.plan(call.sizes), call.sizes, contract.algebra, contract.comparisons()
    )
    failed_checks = [check for check in solution.checks if check.holds is False]
    if failed_checks:
        raise call.make_error(failed_checks)
    for check in solution.checks:
        if before is None or not before.covers(check):
            call.guard(check, guards)
    values = {name: value for name, value in solution.values.items() if isinstance(value, int)}
    known_results = [evaluate_shape(shape, values) for shape in results]
    check_result_sizes(portable.name, results, contract.shapes, known_results)
    if any(size is None for shape in known_results for size in shape):
        guard_result_sizes(portable.name, results, contract.shapes, solution.values, guards)
    return CheckedShapes(known_results, guards.last, solution.values)


class _CallShapes:
    """The arguments of one call, compared with their contract."""

    def __init__(
        self,
        contract: ShapeContract,
        paths: Callable[[], Sequence[str]],
        args: Sequence[tf.Tensor],
    ) -> None:
        self.contract, self.args = contract, args
        self._find_paths = paths
        self.sizes: list[Sequence[Any]] = []
        self._shapes: list[Any] = []

    @functools.cached_property
    def _paths(self) -> Sequence[str]:
        return self._find_paths()

    def is_as_expected(self) -> bool:
        """Returns whether all shapes are fully known and equal to the expected ones."""
        return all(
            arg.shape.is_fully_defined() and tuple(arg.shape.as_list()) == shape
            for arg, shape in zip(self.args, self.contract.shapes, strict=True)
        )

    def check_ranks(self) -> None:
        problems = [
            f"{self._describe_expected(i)}{format_known_shape(arg)}: {_rank_text(shape)}"
            for i, (arg, shape) in enumerate(zip(self.args, self.contract.shapes, strict=True))
            if arg.shape.rank not in (None, len(shape))
        ]
        if problems:
            raise _make_error(f"{self.contract.format_subject()}:{_format_problems(problems)}")

    def find_sizes(self, guards: Guards) -> None:
        """Stores the arguments' sizes: ints if they are known, else tensors."""
        for i, (arg, shape) in enumerate(zip(self.args, self.contract.shapes, strict=True)):
            make_rank_message = functools.partial(self._make_rank_message, i)
            sizes, shown = guards.sizes(arg, len(shape), make_rank_message)
            self.sizes.append(sizes)
            self._shapes.append(shown)

    def _make_rank_message(self, argument: int, shape: Any) -> list[Any]:
        expected = f"{self.contract.format_subject()}: {self._describe_expected(argument)}"
        return [expected, shape, f": {_rank_text(self.contract.shapes[argument])}"]

    def make_error(self, failed_checks: Sequence[Check[Any]]) -> Exception:
        shapes = [format_known_shape(arg) for arg in self.args]
        shape_problems, texts = [], []
        for check in failed_checks:
            text = "".join(map(str, self._make_message(check, shapes)))
            if check.comparison is None:
                shape_problems.append(text)
            else:
                texts.append(f"{self.contract.format_subject(check.comparison)}: {text}")
        if shape_problems:
            texts.insert(0, f"{self.contract.format_subject()}:{_format_problems(shape_problems)}")
        return _make_error("\n".join(texts))

    def guard(self, check: Check[Any], guards: Guards) -> None:
        subject = self.contract.format_subject(check.comparison)
        message = [f"{subject}: ", *self._make_message(check, self._shapes)]
        guards.require(check.operator, check.left, check.right, message)

    def _make_message(self, check: Check[Any], shapes: Sequence[Any]) -> list[Any]:
        """Returns the message of a failed check: texts, and tensors for unknown shapes."""
        message: list[Any] = []
        for i in dict.fromkeys(place.argument for place in check.places):
            message += [f"{'; ' if message else ''}{self._describe_expected(i)}", shapes[i]]
        return [*message, ": " if message else "", *check.reason]

    def _describe_expected(self, argument: int) -> str:
        shape = shape_text(self.contract.shapes[argument])
        return f"{self._paths[argument]}: expected shape {shape}, got "


def _rank_text(shape: Sequence[Dim]) -> str:
    return f"the rank must be {len(shape)}"


def _format_problems(problems: Sequence[str]) -> str:
    return f" {problems[0]}" if len(problems) == 1 else format_bullets(problems)


def _make_error(text: str) -> Exception:
    error: Exception = tf.errors.InvalidArgumentError(None, None, text)
    return error
