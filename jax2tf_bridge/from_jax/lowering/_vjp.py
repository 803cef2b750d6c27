"""VJPs of exported functions, traced and lowered when they are asked for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

import jax
from jax import export as jax_export

from jax2tf_bridge.errors import GradientError, InconclusiveShapeError, Message, ShardingError
from jax2tf_bridge.from_jax._shardings import vjp_shardings
from jax2tf_bridge.from_jax.lowering._build import build
from jax2tf_bridge.from_jax.lowering._differentiable import is_surely_differentiable
from jax2tf_bridge.from_jax.lowering._effects import refuse_host_callbacks
from jax2tf_bridge.from_jax.lowering._flat_functions import trace_vjp, widened
from jax2tf_bridge.from_jax.lowering._lowering import ExportOptions, Lowered, lower
from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions
from jax2tf_bridge.from_jax.shapes._inference import Inferred, infer, infer_and_lower
from jax2tf_bridge.from_jax.shapes._requirements import (
    check_requirements_allowed,
    with_reshape_requirements,
)
from jax2tf_bridge.from_jax.shapes._traced_function import TracedFunction
from jax2tf_bridge.from_jax.stablehlo._constants import ConstantPool
from jax2tf_bridge.portable._portable_function import (
    Gradient,
    GradientOnDemand,
    PortableFunction,
)
from jax2tf_bridge.portable._tree_spec import flat_call
from shape_poly import Dim

T = TypeVar("T")
P = ParamSpec("P")


def gradient_on_demand(
    function: TracedFunction,
    traced: jax.stages.Traced,
    in_shapes: Sequence[tuple[Dim, ...]],
    assumptions: SizeAssumptions,
    options: ExportOptions,
    *,
    constants: ConstantPool,
    exported: jax_export.Exported,
) -> Gradient:
    """Makes the VJP of a function that was exported already; it is exported when asked for.

    Its trace may raise questions about sizes that the function's own did not: then the function is
    traced again under what answers them, and the VJP has requirements of its own.

    Args:
      function: traces it again.
      traced: its trace, as it was exported.
      in_shapes: the shapes of its flat arguments, as the user wrote them.
      assumptions: under which it was exported.
      options: of its export.
      constants: the large arrays of the function, which the VJP may hold as well.
      exported: of the function; only how it is spread over devices is looked at.
    """
    # The gradient may be asked for where JAX is configured otherwise.
    x64 = bool(jax.config.read("jax_enable_x64"))
    name, vjp_name = function.name, f"the gradient of {function.name}"
    # Its module may be large, and what is asked later lives as long as the portable function.
    bare = replace(exported, mlir_module_serialized=b"", _get_vjp=None)
    spread = functools.cache(lambda: vjp_shardings(traced, bare, name))
    vjp_function = replace(
        function,
        name=vjp_name,
        trace=lambda *known: trace_vjp(function.trace(*known), spread()),
        trace_at=lambda sizes: trace_vjp(function.trace_at(sizes), spread()),
        is_gradient=True,
        row_wise=(),
    )

    @_once
    def traced_vjp() -> Inferred[None]:
        begin = replace(
            vjp_function,
            trace=_first_as_it_is(lambda: trace_vjp(traced, spread()), vjp_function.trace),
        )
        try:
            with jax.enable_x64(x64):
                inferred = infer(begin, assumptions)
            refuse_host_callbacks(
                inferred.traced,
                vjp_name,
                without_debug_effects=options.without_debug_effects,
                runtime_checks=options.runtime_checks,
            )
        except (InconclusiveShapeError, ShardingError):
            raise
        except Exception as e:
            raise GradientError(Message(f"{name} has no gradient: ", e)) from e
        check_requirements_allowed(assumptions, inferred.assumptions, vjp_function, options)
        return inferred

    def to_module(vjp: jax.stages.Traced) -> Lowered:
        return lower(widened(vjp), vjp_name, options)

    def make() -> PortableFunction:
        begun = traced_vjp()
        go_on = replace(
            vjp_function, trace=_first_as_it_is(lambda: begun.traced, vjp_function.trace)
        )
        with jax.enable_x64(x64):
            inferred = infer_and_lower(go_on, begun.assumptions, to_module)
            check_requirements_allowed(assumptions, inferred.assumptions, vjp_function, options)
            return built(inferred.traced, inferred.result, inferred.assumptions)

    def built(vjp: jax.stages.Traced, lowered: Lowered, known: SizeAssumptions) -> PortableFunction:
        known = with_reshape_requirements(known, vjp, vjp_function)
        primals, cotangents = len(in_shapes), len(vjp.jaxpr.in_avals) - len(in_shapes)
        names = (
            *(f"primal_{i}" for i in range(primals)),
            *(f"cotangent_{i}" for i in range(cotangents)),
        )
        shapes = (*in_shapes, *map(known.shape_from_jax, vjp.jaxpr.in_avals[primals:]))
        return build(
            vjp,
            lowered,
            vjp_name,
            options,
            in_shapes=shapes,
            in_tree=flat_call(len(names)),
            argument_names=names,
            assumptions=known,
            constants=constants,
            gradient=gradient_on_demand(
                vjp_function,
                vjp,
                shapes,
                known,
                options,
                constants=constants,
                exported=lowered.exported,
            ),
        )

    def check() -> None:
        if not is_surely_differentiable(traced.jaxpr):
            traced_vjp()

    return GradientOnDemand(make, check=check)


def _first_as_it_is(first: Callable[[], T], later: Callable[P, T]) -> Callable[P, T]:
    """Gives what there is already at the first call, and makes it anew at later ones."""
    calls = itertools.count()

    def trace(*args: P.args, **kwargs: P.kwargs) -> T:
        return first() if next(calls) == 0 else later(*args, **kwargs)

    return trace


def _once(make: Callable[[], T]) -> Callable[[], T]:
    """Calls `make` once, and gives its result, or raises its exception, each time."""

    @functools.cache
    def outcome() -> Callable[[], T]:
        try:
            made = make()
        except Exception as e:
            failure, trace = e, e.__traceback__

            def again() -> T:
                # Or else its traceback grows each time.
                raise failure.with_traceback(trace)

            return again
        return lambda: made

    return lambda: outcome()()
