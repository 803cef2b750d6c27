"""Converts dimensions, comparisons and scopes from and to JAX's objects.

The conversion uses texts, in the syntax that JAX and shape_poly share. JAX compares expressions by
their form, so operations are not simplified.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

from jax import export as jax_export

from jax2tf_bridge.errors import ShapeError
from shape_poly import (
    Comparison,
    Dim,
    DimensionSyntaxError,
    DimExpr,
    DimOperation,
    SymbolicScope,
    Variable,
    operation,
    parse_comparison,
    parse_dimension,
)

_Product: TypeAlias = tuple[tuple[Variable | DimOperation, int], ...]

_CONSTRAINTS = " with constraints:\n"


def dim_from_jax(dimension: Any) -> Dim:
    """Converts an integer, or JAX's symbolic dimension.

    Raises:
      ShapeError: the dimension cannot be read.
    """
    if not jax_export.is_symbolic_dim(dimension):
        return operator.index(dimension)
    try:
        return parse_dimension(str(dimension))
    except DimensionSyntaxError as e:
        raise ShapeError(f"The symbolic dimension {dimension} of JAX cannot be read: {e}") from e


def is_single_variable(dimension: Dim) -> bool:
    """Returns whether a dimension is a single variable."""
    return isinstance(dimension, DimExpr) and dimension.is_variable()


def dim_to_jax(dimension: Dim, scope: jax_export.SymbolicScope) -> Any:
    """Converts a dimension to JAX: an int, or a symbolic dimension in JAX's scope.

    Equalities in the scope may rewrite it.

    Raises:
      ShapeError: JAX rejects it.
    """
    if isinstance(dimension, int):
        return dimension
    try:
        (converted,) = jax_export.symbolic_shape(str(dimension), scope=scope)
    except Exception as e:
        raise ShapeError(f"JAX rejects the dimension {dimension}: {e}") from e
    return converted


def comparison_to_jax(comparison: Comparison) -> list[str]:
    """Lists the forms of a constraint that JAX may accept, the most useful ones first.

    JAX supports >=, <= and ==. An equality has a single term on the left, which JAX replaces by the
    right side everywhere. The list is empty for !=, which JAX does not support.
    """
    left, right = comparison.left, comparison.right
    match comparison.operator:
        case ">=" | "<=":
            return [str(comparison)]
        case ">":
            return [f"{left} >= {right + 1}"]
        case "<":
            return [f"{left} <= {right - 1}"]
        case "!=":
            return []
        case "==":
            return _convert_equality(comparison)


def _convert_equality(comparison: Comparison) -> list[str]:
    difference = DimExpr.of(comparison.left) - comparison.right
    if difference.constant_value() is not None:
        return [str(comparison)]
    forms: list[tuple[tuple[bool, bool, bool, bool], str]] = []
    for term in difference.terms:
        monomial, coefficient = term
        if not _may_be_replaced(monomial, difference):
            continue
        replaced, rest = DimExpr((term,)), difference - DimExpr((term,))
        replaced, rest = (-replaced, rest) if coefficient < 0 else (replaced, -rest)
        forms.append(
            (
                (
                    # JAX would loop if the replacement contained the replaced term.
                    _contains(rest, {atom for atom, _ in monomial}),
                    # The sides of the comparison are kept if possible.
                    (replaced, rest) != (comparison.left, comparison.right),
                    abs(coefficient) != 1,
                    not any(isinstance(atom, DimOperation) for atom, _ in monomial),
                ),
                f"{replaced} == {rest}",
            )
        )
    return [text for _, text in sorted(forms, key=lambda form: form[0])]


def _may_be_replaced(monomial: _Product, difference: DimExpr) -> bool:
    """Returns whether JAX's division terminates if it replaces `monomial` by `difference`.

    It may loop if it replaces a product by variables, or a factor by products of that factor.
    """
    replacement = [product for product, _ in difference.terms if product != monomial]
    if not any(replacement):
        return bool(monomial)
    is_single = len(monomial) == 1 and monomial[0][1] == 1
    return is_single and all(monomial[0][0] not in dict(product) for product in replacement)


def _contains(expression: DimExpr, atoms: set[Variable | DimOperation]) -> bool:
    return any(
        atom in atoms
        or (isinstance(atom, DimOperation) and any(_contains(o, atoms) for o in atom.operands))
        for monomial, _ in expression.terms
        for atom, _ in monomial
    )


def scope_to_jax(scope: SymbolicScope) -> jax_export.SymbolicScope:
    """Makes JAX's scope with the constraints.

    If JAX rejects all forms of an equality, for example because another one has the same left side,
    it is replaced by two inequalities. JAX can then prove less, but nothing wrong.

    Raises:
      ShapeError: JAX rejects all forms of a constraint, such as !=.
    """
    accepted: list[str] = []
    for constraint in scope.constraints:
        forms = [[text] for text in comparison_to_jax(constraint)]
        if constraint.operator == "==":
            left, right = constraint.left, constraint.right
            forms.append([f"{left} >= {right}", f"{left} <= {right}"])
        accepted += _find_accepted_form(constraint, forms, accepted)
    return jax_export.SymbolicScope(tuple(accepted))


def _find_accepted_form(
    constraint: Comparison, forms: Sequence[list[str]], before: Sequence[str]
) -> list[str]:
    cause: Exception | None = None
    for form in forms:
        try:
            jax_export.SymbolicScope((*before, *form))
        except Exception as e:  # of several types, one of them with no public name in all releases
            cause = cause or e
        else:
            return form
    problem = ", which supports only >=, <= and ==."
    if cause is not None:
        problem = f": {str(cause) or type(cause).__name__}"
    raise ShapeError(f"The constraint '{constraint}' cannot be passed to JAX{problem}") from cause


def scope_from_jax(scope: jax_export.SymbolicScope) -> SymbolicScope:
    """Reads the constraints of JAX's scope, without a check for contradictions.

    Raises:
      ShapeError: a constraint cannot be read.
    """
    texts = [line.strip() for line in str(scope).partition(_CONSTRAINTS)[2].splitlines()]
    try:
        constraints = [parse_comparison(text) for text in texts]
    except DimensionSyntaxError as e:
        raise ShapeError(f"The constraints of JAX's scope cannot be read: {e}") from e
    return SymbolicScope(
        [
            constraint
            for constraint, following in itertools.zip_longest(constraints, constraints[1:])
            if following is None or not _is_derived(constraint, following)
        ],
        check=False,
    )


def _is_derived(constraint: Comparison, following: Comparison) -> bool:
    """Returns whether a constraint is the k*floordiv(x, k) == x that JAX adds for mod(x, k) == 0.

    JAX applies earlier equalities to x, so the two may spell x differently.
    """
    match DimExpr.of(following.left).terms:
        case (((((DimOperation("mod", (_, k)), 1),), 1)),) if following.right == 0:
            divisor = k.constant_value()
        case _:
            return False
    if divisor is None or {constraint.operator, following.operator} != {"=="}:
        return False
    quotient = operation("floordiv", constraint.right, k, simplify=False)
    return constraint.left == quotient * divisor
