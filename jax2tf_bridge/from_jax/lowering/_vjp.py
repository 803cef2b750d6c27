"""VJPs of exported functions, which are traced and lowered on demand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import jax
from jax import export as jax_export

from jax2tf_bridge.errors import GradientError, InconclusiveShapeError, Message, ShardingError
from jax2tf_bridge.from_jax._shardings import vjp_shardings
from jax2tf_bridge.from_jax.lowering._differentiable import (
    has_no_derivative,
    is_surely_differentiable,
)
from jax2tf_bridge.from_jax.lowering._effects import refuse_host_callbacks
from jax2tf_bridge.from_jax.lowering._lowering import LoweredModule, build_portable_function, lower
from jax2tf_bridge.from_jax.lowering._tracing import trace_vjp, trace_with_wide_dtypes
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
from jax2tf_bridge.portable import Gradient, GradientOnDemand, PortableFunction, flat_call
from shape_poly import Dim

T = TypeVar("T")


class VjpExport:
    """Traces and lowers the VJP of an exported function.

    Tracing the VJP may raise questions about sizes that tracing the function did not. Then the
    function is traced again under assumptions that answer them, and the VJP gets requirements of
    its own.
    """

    def __init__(
        self,
        function: TracedFunction,
        traced: jax.stages.Traced,
        in_shapes: Sequence[tuple[Dim, ...]],
        assumptions: SizeAssumptions,
        options: ExportOptions,
        *,
        constants: ConstantPool,
        exported: jax_export.Exported,
    ) -> None:
        """Creates the export of the VJP of `traced`, and traces nothing yet.

        `function` traces again. `in_shapes` has the dimensions as the user wrote them. The VJP may
        use the function's `constants`. Only shardings and devices of `exported` are read.
        """
        self._name, self._traced, self._in_shapes = function.name, traced, in_shapes
        self._assumptions, self._options, self._constants = assumptions, options, constants
        # JAX may be configured differently when the gradient is exported.
        self._x64 = bool(jax.config.read("jax_enable_x64"))
        # This object lives as long as the portable function, so it must not hold the module, which
        # may be large.
        bare = replace(exported, mlir_module_serialized=b"", _get_vjp=None)
        self._shardings = functools.cache(lambda: vjp_shardings(traced, bare, function.name))
        self._vjp = replace(
            function,
            name=f"the gradient of {function.name}",
            trace=lambda *known: trace_vjp(function.trace(*known), self._shardings()),
            trace_at=lambda sizes: trace_vjp(function.trace_at(sizes), self._shardings()),
            is_gradient=True,
            row_wise=(),
        )
        self._infer_once = _cache_outcome(self._infer)

    def gradient(self) -> Gradient:
        """Returns the gradient of the function; the VJP is exported when it is asked for."""
        return GradientOnDemand(self._make, check=self._check)

    def _check(self) -> None:
        """Raises if the function has no gradient; traces the VJP only if this is not obvious."""
        if not is_surely_differentiable(self._traced.jaxpr):
            self._infer_once()

    def _make(self) -> PortableFunction:
        traceable = self._infer_once()
        with jax.enable_x64(self._x64):
            inferred = infer_and_lower(
                self._vjp, traceable.assumptions, self._lower, first=lambda: traceable.traced
            )
            self._check_requirements(inferred.assumptions)
            return self._build(inferred)

    def _infer(self) -> Inferred[None]:
        """Traces the VJP, under further assumptions where it needs them."""
        try:
            with jax.enable_x64(self._x64):
                inferred = infer(self._vjp, self._assumptions, first=self._trace_first)
            refuse_host_callbacks(inferred.traced, self._vjp.name, self._options)
        except (InconclusiveShapeError, ShardingError, GradientError):
            raise
        except Exception as e:
            raise self._make_error(e) from e
        self._check_requirements(inferred.assumptions)
        return inferred

    def _trace_first(self) -> jax.stages.Traced:
        """Traces the VJP of the trace that was exported."""
        try:
            return trace_vjp(self._traced, self._shardings())
        except Exception as e:
            if has_no_derivative(self._traced.jaxpr, e):
                # Other exceptions make inference trace the function once more at fixed sizes.
                raise self._make_error(e) from e
            raise

    def _make_error(self, error: Exception) -> GradientError:
        return GradientError(Message(f"{self._name} has no gradient: ", error))

    def _check_requirements(self, assumptions: SizeAssumptions) -> None:
        check_requirements_allowed(self._assumptions, assumptions, self._vjp, self._options)

    def _lower(self, vjp: jax.stages.Traced) -> LoweredModule:
        return lower(trace_with_wide_dtypes(vjp), self._vjp.name, self._options)

    def _build(self, inferred: Inferred[LoweredModule]) -> PortableFunction:
        traced, lowered = inferred.traced, inferred.result
        assumptions = with_reshape_requirements(inferred.assumptions, traced, self._vjp)
        primals = len(self._in_shapes)
        cotangents = traced.jaxpr.in_avals[primals:]
        names = (
            *(f"primal_{i}" for i in range(primals)),
            *(f"cotangent_{i}" for i in range(len(cotangents))),
        )
        shapes = (*self._in_shapes, *map(assumptions.shape_from_jax, cotangents))
        return build_portable_function(
            traced,
            lowered,
            self._vjp.name,
            self._options,
            in_shapes=shapes,
            in_tree=flat_call(len(names)),
            argument_names=names,
            assumptions=assumptions,
            constants=self._constants,
            gradient=VjpExport(
                self._vjp,
                traced,
                shapes,
                assumptions,
                self._options,
                constants=self._constants,
                exported=lowered.exported,
            ).gradient(),
        )


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
