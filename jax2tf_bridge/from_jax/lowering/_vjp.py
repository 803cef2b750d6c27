"""VJPs of exported functions, which are traced and lowered on demand."""

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
from jax2tf_bridge.from_jax.lowering._build import build_portable_function
from jax2tf_bridge.from_jax.lowering._differentiable import is_surely_differentiable
from jax2tf_bridge.from_jax.lowering._effects import refuse_host_callbacks
from jax2tf_bridge.from_jax.lowering._flat_functions import trace_vjp, trace_with_wide_dtypes
from jax2tf_bridge.from_jax.lowering._lowering import LoweredModule, lower
from jax2tf_bridge.from_jax.shapes import (
    ExportOptions,
    Inferred,
    SizeAssumptions,
    TracedFunction,
    check_requirements_allowed,
    infer,
    infer_and_lower,
    with_reshape_requirements,
)
from jax2tf_bridge.from_jax.stablehlo import ConstantPool
from jax2tf_bridge.portable import (
    Gradient,
    GradientOnDemand,
    PortableFunction,
    flat_call,
)
from shape_poly import Dim

T = TypeVar("T")
P = ParamSpec("P")


def make_gradient_on_demand(
    function: TracedFunction,
    traced: jax.stages.Traced,
    in_shapes: Sequence[tuple[Dim, ...]],
    assumptions: SizeAssumptions,
    options: ExportOptions,
    *,
    constants: ConstantPool,
    exported: jax_export.Exported,
) -> Gradient:
    """Returns the gradient of an exported function; its VJP is exported on demand.

    Tracing the VJP may raise questions about sizes that tracing the function did not. Then the
    function is traced again under assumptions that answer them, and the VJP gets requirements of
    its own.

    Args:
      function: traces the function again.
      traced: the trace that was exported.
      in_shapes: the shapes of the flat arguments, as the user wrote them.
      assumptions: the assumptions that the function was exported under.
      options: the options of its export.
      constants: the large arrays of the function, which the VJP may use as well.
      exported: JAX's export of the function; only its shardings and devices are read.
    """
    # JAX may be configured differently when the gradient is exported.
    x64 = bool(jax.config.read("jax_enable_x64"))
    name, vjp_name = function.name, f"the gradient of {function.name}"
    # The closures below live as long as the portable function, so they must not hold the module,
    # which may be large.
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

    @_cache_outcome
    def infer_vjp() -> Inferred[None]:
        first_function = replace(
            vjp_function,
            trace=_use_first(lambda: trace_vjp(traced, spread()), vjp_function.trace),
        )
        try:
            with jax.enable_x64(x64):
                inferred = infer(first_function, assumptions)
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

    def to_module(vjp: jax.stages.Traced) -> LoweredModule:
        return lower(trace_with_wide_dtypes(vjp), vjp_name, options)

    def make() -> PortableFunction:
        inferred_vjp = infer_vjp()
        next_function = replace(
            vjp_function, trace=_use_first(lambda: inferred_vjp.traced, vjp_function.trace)
        )
        with jax.enable_x64(x64):
            inferred = infer_and_lower(next_function, inferred_vjp.assumptions, to_module)
            check_requirements_allowed(assumptions, inferred.assumptions, vjp_function, options)
            return build_vjp(inferred.traced, inferred.result, inferred.assumptions)

    def build_vjp(
        vjp: jax.stages.Traced, lowered: LoweredModule, known: SizeAssumptions
    ) -> PortableFunction:
        known = with_reshape_requirements(known, vjp, vjp_function)
        primals, cotangents = len(in_shapes), len(vjp.jaxpr.in_avals) - len(in_shapes)
        names = (
            *(f"primal_{i}" for i in range(primals)),
            *(f"cotangent_{i}" for i in range(cotangents)),
        )
        shapes = (*in_shapes, *map(known.shape_from_jax, vjp.jaxpr.in_avals[primals:]))
        return build_portable_function(
            vjp,
            lowered,
            vjp_name,
            options,
            in_shapes=shapes,
            in_tree=flat_call(len(names)),
            argument_names=names,
            assumptions=known,
            constants=constants,
            gradient=make_gradient_on_demand(
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
            infer_vjp()

    return GradientOnDemand(make, check=check)


def _use_first(first: Callable[[], T], later: Callable[P, T]) -> Callable[P, T]:
    """Returns a function that calls `first` at its first call, and `later` at all others."""
    calls = itertools.count()

    def trace(*args: P.args, **kwargs: P.kwargs) -> T:
        return first() if next(calls) == 0 else later(*args, **kwargs)

    return trace


def _cache_outcome(make: Callable[[], T]) -> Callable[[], T]:
    """Caches the result or the exception of `make`, which is called once."""

    @functools.cache
    def outcome() -> Callable[[], T]:
        try:
            result = make()
        except Exception as e:
            failure, trace = e, e.__traceback__

            def again() -> T:
                # Without the original traceback, it would grow at each raise.
                raise failure.with_traceback(trace)

            return again
        return lambda: result

    return lambda: outcome()()
