"""Builds portable functions, whose VJPs are traced and lowered on demand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import jax

from jax2tf_bridge.errors import GradientError, InconclusiveShapeError, Message, ShardingError
from jax2tf_bridge.from_jax._shardings import make_vjp_shardings, read_shardings
from jax2tf_bridge.from_jax.arguments import portable_aval
from jax2tf_bridge.from_jax.lowering._differentiable import (
    has_jax_gradient_in_tensorflow,
    has_no_derivative,
    is_surely_differentiable,
)
from jax2tf_bridge.from_jax.lowering._effects import name_effects, refuse_host_callbacks
from jax2tf_bridge.from_jax.lowering._lowering import LoweredModule, lower
from jax2tf_bridge.from_jax.lowering._options import ExportOptions
from jax2tf_bridge.from_jax.lowering._tracing import get_out_structure, trace_vjp
from jax2tf_bridge.from_jax.shapes import (
    InferredTrace,
    SizeAssumptions,
    TracedFunction,
    add_reshape_requirements,
    check_requirements_allowed,
    infer,
    infer_and_lower,
)
from jax2tf_bridge.from_jax.stablehlo import ConstantPool, retarget_module
from jax2tf_bridge.from_jax.trees import describe_structure
from jax2tf_bridge.portable import (
    GradientOnDemand,
    Module,
    PortableFunction,
    TreeSpec,
    check_types,
    flat_call,
    mark_types_checked,
)
from shape_poly import Dim, is_symbolic_dim

T = TypeVar("T")


def build_portable_function(
    function: TracedFunction,
    inferred: InferredTrace[LoweredModule],
    options: ExportOptions,
    *,
    in_shapes: Sequence[tuple[Dim, ...]],
    in_tree: TreeSpec,
    argument_names: tuple[str, ...],
    constants: ConstantPool,
) -> PortableFunction:
    """Builds a portable function from a lowered trace, at the target's StableHLO version.

    Its VJP is exported on demand. `in_shapes` has the dimensions as the user wrote them;
    constraints may have rewritten them in the trace. `in_tree` is the structure of (args, kwargs).
    `constants` receives the large arrays of the function and its VJPs. Those of this module become
    its arguments.

    Raises:
      UnsupportedByTargetError: no StableHLO version of the target expresses the module, or the
        target has no XLA and TensorFlow has no operation for one of the module's operations.
      ModuleError: the module's types are not those of the trace.
      NotExportableError: the function has an effect that cannot be recreated.
    """
    traced, lowered, assumptions = inferred.traced, inferred.result, inferred.assumptions
    name, exported = function.name, lowered.exported
    lifted = tuple(
        lowered.module.lift_constants(
            constants.intern, taken=lowered.captured, share=constants.share
        )
    )
    retargeted = retarget_module(
        lowered.module,
        options.target,
        function_name=name,
        has_effects=bool(exported.ordered_effects),
    )
    in_shardings, out_shardings = read_shardings(exported)
    in_avals = tuple(
        portable_aval(aval, shape)
        for aval, shape in zip(traced.jaxpr.in_avals, in_shapes, strict=True)
    )
    out_avals = tuple(map(portable_aval, traced.jaxpr.out_avals, inferred.out_shapes()))
    kept_indices = tuple(exported.module_kept_var_idx)
    traced_avals = [portable_aval(traced.jaxpr.in_avals[i]) for i in kept_indices]
    check_types(
        name,
        [*traced_avals, *(constant.aval for constant in lifted)],
        out_avals,
        *lowered.module.main_types(),
        has_platform_index=len(exported.platforms) > 1,
    )
    module = Module(
        *retargeted,
        kept_arguments=kept_indices,
        platforms=tuple(exported.platforms),
        uses_shape_polymorphism=any(
            is_symbolic_dim(d) for aval in traced_avals for d in aval.shape
        ),
        disabled_checks=options.disabled_checks,
        nr_devices=exported.nr_devices,
    )
    vjp = _VjpExport(function, inferred, options, in_shapes=in_shapes, constants=constants)
    portable = PortableFunction(
        name=name,
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=describe_structure(get_out_structure(traced), traced.jaxpr.out_avals),
        out_avals=out_avals,
        argument_names=argument_names,
        module=module,
        dropped_platforms=lowered.dropped_platforms,
        constraints=assumptions.constraints,
        requirements=assumptions.requirement_texts(),
        ordered_effects=name_effects(exported.ordered_effects, name, options),
        unordered_effects=name_effects(exported.unordered_effects, name, options),
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        target=options.target,
        producer=f"JAX {jax.__version__}",
        lifted_constants=lifted,
        graph_functions=lowered.graph_functions,
        gradient=GradientOnDemand(vjp.export, check=vjp.check),
        tensorflow_differentiates=not options.target.xla
        and has_jax_gradient_in_tensorflow(traced.jaxpr),
        uses_global_constants=exported.uses_global_constants,
    )
    mark_types_checked(portable)
    return portable


class _VjpExport:
    """Traces and lowers the VJP of an exported function.

    Tracing the VJP may raise questions about sizes that tracing the function did not. Then the
    function is traced again under assumptions that answer them, and the VJP gets requirements of
    its own.
    """

    def __init__(
        self,
        function: TracedFunction,
        inferred: InferredTrace[LoweredModule],
        options: ExportOptions,
        *,
        in_shapes: Sequence[tuple[Dim, ...]],
        constants: ConstantPool,
    ) -> None:
        """Stores what the VJP's export needs; traces nothing yet.

        `function` made the trace, and can trace again. `in_shapes` has the dimensions as the user
        wrote them. The VJP may use the function's `constants`.
        """
        self._name, self._in_shapes, self._constants = function.name, in_shapes, constants
        self._assumptions, self._options = inferred.assumptions, options
        self._traced = traced = inferred.traced
        # JAX may be configured differently when the gradient is exported.
        self._x64 = bool(jax.config.read("jax_enable_x64"))
        # This object lives as long as the portable function, so it must not hold the module, which
        # may be large. Only the shardings and devices are read.
        bare = replace(inferred.result.exported, mlir_module_serialized=b"", _get_vjp=None)
        self._shardings = functools.cache(lambda: make_vjp_shardings(traced, bare, function.name))
        self._vjp = replace(
            function,
            name=f"the gradient of {function.name}",
            trace=lambda *known: trace_vjp(function.trace(*known), self._shardings()),
            trace_at=lambda sizes: trace_vjp(function.trace_at(sizes), self._shardings()),
            is_gradient=True,
            row_wise=(),
        )
        self._infer_once = _cache_outcome(self._infer)

    def check(self) -> None:
        """Raises if the function has no gradient; traces the VJP only if this is not obvious."""
        if not is_surely_differentiable(self._traced.jaxpr):
            self._infer_once()

    def export(self) -> PortableFunction:
        """Returns the VJP; raises an error if the function has none."""
        traceable = self._infer_once()
        with jax.enable_x64(self._x64):
            inferred = infer_and_lower(
                self._vjp, traceable.assumptions, self._lower, first=lambda: traceable.traced
            )
            self._check_requirements(inferred.assumptions)
            return self._build(inferred)

    def _infer(self) -> InferredTrace[None]:
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
        check_requirements_allowed(self._assumptions, assumptions, self._vjp, self._options.sizes)

    def _lower(self, vjp: jax.stages.Traced) -> LoweredModule:
        return lower(vjp, self._vjp.name, self._options)

    def _build(self, inferred: InferredTrace[LoweredModule]) -> PortableFunction:
        inferred = add_reshape_requirements(inferred, self._vjp)
        primals = len(self._in_shapes)
        cotangents = inferred.traced.jaxpr.in_avals[primals:]
        names = (
            *(f"primal_{i}" for i in range(primals)),
            *(f"cotangent_{i}" for i in range(len(cotangents))),
        )
        shapes = (*self._in_shapes, *map(inferred.assumptions.shape_from_jax, cotangents))
        return build_portable_function(
            self._vjp,
            inferred,
            self._options,
            in_shapes=shapes,
            in_tree=flat_call(len(names)),
            argument_names=names,
            constants=self._constants,
        )


def _cache_outcome(make: Callable[[], T]) -> Callable[[], T]:
    """Returns a function that calls `make` once, and then repeats its result or exception."""

    @functools.cache
    def outcome() -> Callable[[], T]:
        try:
            result = make()
        except Exception as e:
            failure, trace = e, e.__traceback__

            def raise_again() -> T:
                # The traceback would grow at each raise.
                raise failure.with_traceback(trace)

            return raise_again
        return lambda: result

    return lambda: outcome()()
