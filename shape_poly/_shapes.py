"""Parses specifications of whole shapes, such as "(b, 28, ...)"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from shape_poly._comparisons import Comparison
from shape_poly._expressions import Dim, DimExpr, as_size
from shape_poly._parser import DimensionSyntaxError, DimParser, Token, tokenize
from shape_poly._scope import SymbolicScope, symbolic_dim_bounds
from shape_poly._solution import shape_text

_MAX_SIZE = 2**63 - 1


class ShapeSyntaxError(DimensionSyntaxError):
    """Raised for text that does not specify a shape; `column` is the column, from 1."""

    subject = "shape specification"
    help = (
        "A shape is a list of dimensions, as '(b, 28, ...)': integers, variables or expressions "
        "like '2*b'; '_' copies one dimension of the argument, '...' at the end all remaining "
        "ones."
    )


@dataclass(frozen=True)
class ShapeSpec:
    """Shape, possibly symbolic, and dtype of an argument."""

    shape: tuple[Dim, ...]
    dtype: Any


def is_symbolic_dim(dimension: Any) -> TypeGuard[DimExpr]:
    """Returns whether a dimension is an expression rather than a known size.

    >>> from shape_poly import parse_dimension
    >>> is_symbolic_dim(parse_dimension("b + 1")), is_symbolic_dim(3)
    (True, False)
    """
    return isinstance(dimension, DimExpr)


def symbolic_shape(
    spec: str | None,
    *,
    constraints: Sequence[str | Comparison] = (),
    scope: SymbolicScope | None = None,
    like: Sequence[Dim | None] | None = None,
) -> tuple[Dim, ...]:
    """Parses the specification of a shape.

    Dimensions do not store a scope: `constraints` and `scope` only serve to find contradictions and
    impossible sizes. Expressions are simplified.

    Args:
      spec: dimensions separated by commas, with or without parentheses; None means "...".
      constraints: comparisons that the variables satisfy.
      scope: the constraints as a scope, instead of `constraints`.
      like: the shape of the argument, with None for unknown sizes. "_" copies one of its
        dimensions, "..." all remaining ones; a size must equal that of the argument.

    Raises:
      ShapeSyntaxError: the specification cannot be parsed, or contradicts `like`.
      ContradictionError: no sizes satisfy the constraints.
      ValueError: both constraints and scope are passed.
      TypeError: the specification is not text, or the constraints are not a sequence.

    >>> symbolic_shape("(b, 28, ...)", like=(None, 28, 3))
    (DimExpr('b'), 28, 3)
    """
    scope = _make_scope(constraints, scope)
    if spec is None:
        spec = "..."
    return _ShapeReader(spec, like, scope).read_shape()


def _make_scope(
    constraints: Sequence[str | Comparison], scope: SymbolicScope | None
) -> SymbolicScope | None:
    if not constraints:
        return scope
    if scope is not None:
        raise ValueError(
            "constraints and scope were both passed. Pass one of them: "
            "scope.with_constraints(*constraints) combines both."
        )
    return SymbolicScope(constraints)


class _ShapeReader:
    def __init__(
        self, text: str, like: Sequence[Dim | None] | None, scope: SymbolicScope | None
    ) -> None:
        self._text, self._like, self._scope = text, like, scope
        self._dimensions: list[Dim] = []
        tokens, self._closing = _drop_outer_parentheses(tokenize(text, ShapeSyntaxError))
        self._reader = DimParser(text, tokens, simplify=True, error=ShapeSyntaxError)

    def read_shape(self) -> tuple[Dim, ...]:
        reader = self._reader
        while not reader.is_at_end():
            start = reader.token
            if reader.take("..."):
                self._take_rest(start)
                reader.take(",")
                if not reader.is_at_end():
                    raise self._make_error(
                        start, "'...' must be the last dimension: write '_' for single ones"
                    )
                return tuple(self._dimensions)
            self._dimensions.append(self._read_dimension(start))
            if not reader.is_at_end() and not reader.take(","):
                raise reader.make_expected_error("an operator, ',' or the end of the shape")
        self._check_rank()
        return tuple(self._dimensions)

    def _read_dimension(self, start: Token) -> Dim:
        if self._like is not None and len(self._dimensions) >= len(self._like):
            raise self._make_error(start, f"{self._describe_rank()}, but found more")
        if self._reader.take("_"):
            # An operator may follow, so that this is the start of an expression.
            if self._reader.token.text != "," and not self._reader.is_at_end():
                raise self._make_error(start, "'_' stands for a whole dimension, not for a part")
            return self._read_placeholder(start)
        if start.text == "None":
            raise self._make_error(
                start, "None is not a size: write a name, as b, or '_' for the known one"
            )
        dimension = self._reader.read_dimension()
        self._check_size(start, dimension)
        return dimension

    def _take_rest(self, place: Token) -> None:
        if self._like is None:
            raise self._make_error(place, "'...' takes dimensions from `like`, which is not given")
        while len(self._dimensions) < len(self._like):
            self._dimensions.append(self._read_placeholder(place))

    def _read_placeholder(self, place: Token) -> Dim:
        if self._like is None:
            raise self._make_error(place, "'_' takes a dimension from `like`, which is not given")
        axis = len(self._dimensions)
        dimension = self._like[axis]
        if dimension is None:
            raise self._make_error(
                place,
                f"'{place.text}' takes dimension {axis} of the argument of shape "
                f"{shape_text(self._like)}, which is not known: name a variable for it",
            )
        return dimension

    def _check_size(self, start: Token, dimension: Dim) -> None:
        axis = len(self._dimensions)
        lower, upper = symbolic_dim_bounds(dimension, self._scope)
        if upper < 0:
            size = f"size {upper}" if lower == upper else f"size of at most {upper}"
            raise self._make_error(start, f"a negative {size}")
        if lower > _MAX_SIZE:
            raise self._make_error(start, "a size above 2**63 - 1, the maximum")
        known = None if self._like is None else self._like[axis]
        if isinstance(dimension, int) and known is not None and dimension != known:
            raise self._make_error(
                start,
                f"expected size {known} for dimension {axis}, as in the argument of shape "
                f"{shape_text(self._like or ())}, but found {dimension}",
            )

    def _check_rank(self) -> None:
        if self._like is not None and len(self._dimensions) < len(self._like):
            raise ShapeSyntaxError(
                self._text,
                self._closing,
                f"{self._describe_rank()}, but found {len(self._dimensions)}: end with '...' to "
                "take the others as they are",
            )

    def _describe_rank(self) -> str:
        rank = len(self._like or ())
        shown = "1 dimension" if rank == 1 else f"{rank} dimensions"
        return f"expected {shown}, as in the argument of shape {shape_text(self._like or ())}"

    def _make_error(self, place: Token, problem: str) -> ShapeSyntaxError:
        return ShapeSyntaxError(self._text, place.column, problem)


def _drop_outer_parentheses(inner: list[Token]) -> tuple[list[Token], int]:
    """Drops parentheses around all tokens; also returns the column of the closing one."""
    end = inner[-1]
    inner = inner[:-1]
    while inner and inner[0].text == "(" and _find_closing(inner) == len(inner) - 1:
        end = Token("end", ")", inner[-1].column)
        inner = inner[1:-1]
    return [*inner, end], end.column


def _find_closing(items: Sequence[Token]) -> int | None:
    depth = 0
    for i, token in enumerate(items):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return i
    return None


def symbolic_args_specs(
    args: Any,
    shapes_specs: Any,
    constraints: Sequence[str | Comparison] = (),
    scope: SymbolicScope | None = None,
) -> Any:
    """Parses the specifications of arguments' shapes, in the structure of the arguments.

    Args:
      args: nested tuples, lists, dicts and None of objects with a shape and a dtype.
      shapes_specs: None to keep every shape, one specification for all arguments, or a prefix of
        the structure of `args` with such leaves.
      constraints: as in symbolic_shape.
      scope: as in symbolic_shape.

    Returns:
      `args` with a ShapeSpec for each array.

    Raises:
      ValueError: a specification does not fit its argument, whose path is named.
      TypeError: an argument has no shape of known rank, or no dtype.
      ContradictionError: no sizes satisfy the constraints.

    >>> import types
    >>> x = types.SimpleNamespace(shape=(8, 3), dtype="float32")
    >>> symbolic_args_specs([x, (x,)], "b, _")[1]
    (ShapeSpec(shape=(DimExpr('b'), 3), dtype='float32'),)
    """
    return _make_specs(args, shapes_specs, _make_scope(constraints, scope), "args")


def _make_specs(args: Any, spec: Any, scope: SymbolicScope | None, path: str) -> Any:
    if args is None:
        return None
    children = _list_children(args)
    if children is None:
        return _make_leaf_spec(args, spec, scope, path)
    # A specification applies to all arrays below it.
    child_specs = dict.fromkeys(children, spec)
    if spec is not None and not isinstance(spec, str):
        subspecs = _list_children(spec)
        if subspecs is None or subspecs.keys() != children.keys():
            raise ValueError(
                f"shapes_specs for {path} is {spec!r}, which does not have the structure of the "
                f"arguments there: expected None, a string, or {len(children)} entries"
                + (f" ({', '.join(map(repr, children))})" if isinstance(args, Mapping) else "")
                + "."
            )
        child_specs = subspecs
    results = {
        key: _make_specs(child, child_specs[key], scope, f"{path}[{key!r}]")
        for key, child in children.items()
    }
    return _rebuild(args, results)


def _list_children(node: Any) -> dict[Any, Any] | None:
    if isinstance(node, Mapping):
        return dict(node)
    return dict(enumerate(node)) if isinstance(node, (tuple, list)) else None


def _rebuild(node: Any, children: Mapping[Any, Any]) -> Any:
    if isinstance(node, Mapping):
        return dict(children)
    if hasattr(node, "_fields"):
        return type(node)(*children.values())
    return list(children.values()) if isinstance(node, list) else tuple(children.values())


def _make_leaf_spec(leaf: Any, spec: Any, scope: SymbolicScope | None, path: str) -> ShapeSpec:
    try:
        sizes, dtype = tuple(leaf.shape), leaf.dtype
    except (AttributeError, TypeError, ValueError) as e:  # ValueError if TensorFlow knows no rank
        raise TypeError(
            f"{path} has no shape of known rank, or no dtype. Pass an array, or an object that has "
            f"both. Got: {leaf!r} of type {type(leaf).__name__}"
        ) from e
    if spec is not None and not isinstance(spec, str):
        raise ValueError(
            f"shapes_specs for {path} is {spec!r}, expected a string such as '(b, ...)' or None."
        )
    try:
        shape = symbolic_shape(spec, scope=scope, like=sizes)
    except ShapeSyntaxError as e:
        raise ShapeSyntaxError(e.text, e.column, f"for {path}, {e.problem}") from e
    return ShapeSpec(shape, dtype)


def evaluate_shape(shape: Sequence[Dim], values: Mapping[str, int]) -> tuple[int | None, ...]:
    """Evaluates each dimension of a shape; unknown ones become None.

    >>> from shape_poly import parse_dimension
    >>> evaluate_shape((parse_dimension("2*b"), 3, parse_dimension("h")), {"b": 4})
    (8, 3, None)
    """
    return tuple(_evaluate(d, values) for d in shape)


def _evaluate(dimension: Dim, values: Mapping[str, int]) -> int | None:
    if not isinstance(dimension, DimExpr):
        return as_size(dimension)
    if not dimension.variables() <= values.keys():
        return None
    try:
        return dimension.evaluate(values)
    except ZeroDivisionError:
        return None
