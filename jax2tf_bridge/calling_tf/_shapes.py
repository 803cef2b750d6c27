"""Infers the symbolic sizes of results, for functions that are embedded as graphs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from jax2tf_bridge.calling_tf._compiled import compile_function
from jax2tf_bridge.calling_tf._failures import make_undetermined_size_error
from jax2tf_bridge.calling_tf._functions import FlatFunction
from jax2tf_bridge.calling_tf._values import get_aval
from jax2tf_bridge.errors import BridgeError, ShapeError
from jax2tf_bridge.from_jax import dim_from_jax
from jax2tf_bridge.portable import Aval
from shape_poly import Dim, DimExpr, variables_of

JaxShape: TypeAlias = tuple[Any, ...]
"""A shape of integers and of JAX's symbolic dimensions."""

# Sizes at which a function is traced: common multiples, odd sizes, and small and large sizes, at
# which functions may crop or pad.
_TRIAL_SIZES = (24, 48, 120, 35, 53, 50, 49, 1, 2, 7, 1031, 4100)
_MAX_STRIDE = 4
_MIN_TRIALS = 3


def compute_result_shapes(
    function: FlatFunction, avals: Sequence[Aval], shapes: Sequence[JaxShape]
) -> list[JaxShape]:
    """Returns the shapes of the results, with JAX's symbolic dimensions.

    Args:
      function: the function.
      avals: the avals of its arguments.
      shapes: the shapes of its arguments, with JAX's symbolic dimensions.

    Raises:
      CallTfError: the function raised.
      ShapeError: a size of a result is neither declared nor inferred.
    """
    known_shapes = function.find_known_shapes(avals, shapes)
    if known_shapes is not None:
        _check_variables(function, avals, known_shapes)
        return known_shapes
    results = function.get_trace(avals).results
    if all(t.shape.is_fully_defined() for t in results):
        return [tuple(t.shape) for t in results]
    return _infer_shapes(function, avals, shapes)


def compute_result_avals(function: FlatFunction, avals: Sequence[Aval]) -> list[Aval]:
    """Returns the shapes and dtypes of the results, for arguments of known sizes.

    If TensorFlow does not know a size and it is not declared, the function is compiled.
    """
    trace = function.get_trace(avals)
    if all(t.shape.is_fully_defined() for t in trace.results):
        return [get_aval(t) for t in trace.results]
    declared = function.options.declared
    return list(declared.avals if declared else compile_function(function, avals, "cpu").results)


def _check_variables(
    function: FlatFunction, avals: Sequence[Aval], shapes: Sequence[JaxShape]
) -> None:
    """Raises ShapeError if a declared size has a variable that no argument has."""
    argument_variables = {name for aval in avals for d in aval.shape for name in variables_of(d)}
    for i, shape in enumerate(shapes):
        for size in map(dim_from_jax, shape):
            missing = variables_of(size) - argument_variables
            if missing:
                raise make_undetermined_size_error(function.name, i, size, missing)


def _infer_shapes(
    function: FlatFunction, avals: Sequence[Aval], shapes: Sequence[JaxShape]
) -> list[JaxShape]:
    """Infers the sizes of results from traces at several sizes.

    A wrong guess cannot give wrong results, because the graph checks its sizes.
    """
    dimensions = (d for aval in avals for d in aval.shape)
    symbolic = list(dict.fromkeys(d for d in dimensions if isinstance(d, DimExpr)))
    variables = sorted({name for d in symbolic for name in d.variables()})
    trials: list[tuple[dict[str, int], list[tuple[int, ...]]]] = []
    failure: BridgeError | None = None
    count = len(_TRIAL_SIZES)
    for trial in range(count):
        # Shifts the sizes per variable, so that no variable is a multiple of another in all trials.
        sizes = {
            name: _TRIAL_SIZES[(trial + i) % count] + _TRIAL_SIZES[0] * (i // count)
            for i, name in enumerate(variables)
        }
        trial_shapes = [tuple(_evaluate(d, sizes) for d in aval.shape) for aval in avals]
        if any(size < 0 for shape in trial_shapes for size in shape):
            continue  # the size b - 4 has no meaning for b = 2
        try:
            results = compute_result_avals(
                function, [replace(a, shape=s) for a, s in zip(avals, trial_shapes, strict=True)]
            )
        except BridgeError as e:
            failure = e
            continue
        trials.append((sizes, [tuple(_evaluate(d, {}) for d in aval.shape) for aval in results]))
    if len(trials) < _MIN_TRIALS:
        raise _make_unknown_size_error(
            function, "it fails at most of the concrete sizes that were tried"
        ) from failure
    jax_dimensions = {dim_from_jax(d): d for shape in shapes for d in shape}
    inferred: list[JaxShape] = []
    for columns in zip(*(results for _, results in trials), strict=True):
        if len(set(map(len, columns))) > 1:
            raise _make_unknown_size_error(function, "its number of dimensions depends on sizes")
        inferred.append(
            tuple(
                _fit_expression(
                    function, [sizes for sizes, _ in trials], column, symbolic, jax_dimensions
                )
                for column in zip(*columns, strict=True)
            )
        )
    return inferred


def _fit_expression(
    function: FlatFunction,
    trials: Sequence[dict[str, int]],
    column: Sequence[int],
    symbolic: Sequence[DimExpr],
    jax_dimensions: dict[Any, Any],
) -> Any:
    """Finds a number, or a JAX expression of argument sizes, with these values in the trials."""
    if len(set(column)) == 1:
        return column[0]
    for expression, values in _iter_candidates(trials, symbolic, jax_dimensions):
        (first, second), (low, high) = column[:2], values[:2]
        if first == second or low == high:
            continue
        factor, remainder = divmod(second - first, high - low)
        offset = first - factor * low
        if not remainder and all(
            factor * v + offset == c for v, c in zip(values, column, strict=True)
        ):
            return factor * expression + offset
    raise _make_unknown_size_error(function, f"at sizes {list(trials)} it is {list(column)}")


def _iter_candidates(
    trials: Sequence[dict[str, int]], symbolic: Sequence[DimExpr], jax_dimensions: dict[Any, Any]
) -> Iterator[tuple[Any, list[int]]]:
    """Yields argument sizes, their quotients, products and sums, with their values."""
    values = {d: [d.evaluate(sizes) for sizes in trials] for d in symbolic}
    for d in symbolic:
        yield jax_dimensions[d], values[d]
    for d in symbolic:
        for k in range(2, _MAX_STRIDE + 1):
            for c in range(k):
                yield (jax_dimensions[d] + c) // k, [(v + c) // k for v in values[d]]
    for i, d in enumerate(symbolic):
        for e in symbolic[i:]:
            pairs = list(zip(values[d], values[e], strict=True))
            yield jax_dimensions[d] * jax_dimensions[e], list(map(math.prod, pairs))
            yield jax_dimensions[d] + jax_dimensions[e], list(map(sum, pairs))


def _evaluate(dimension: Dim, sizes: dict[str, int]) -> int:
    return dimension.evaluate(sizes) if isinstance(dimension, DimExpr) else dimension


def _make_unknown_size_error(function: FlatFunction, why: str) -> ShapeError:
    return ShapeError(
        f"The size of a result of the TensorFlow function {function.name} cannot be inferred for "
        f"arguments of symbolic sizes: {why}. Declare the results where it is called, as "
        "output_shape_dtype=jax.ShapeDtypeStruct((x.shape[0], 10), x.dtype)."
    )
