"""The VJP of an exported function, traced and lowered when it is asked for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import jax
from jax import export as jax_export

from jax2tf_bridge.errors import GradientError, InconclusiveShapeError, ShardingError
from jax2tf_bridge.from_jax._shardings import vjp_shardings
from jax2tf_bridge.from_jax.lowering._boundary import trace_vjp, widened
from jax2tf_bridge.from_jax.lowering._effects import refuse_host_callbacks
from jax2tf_bridge.from_jax.lowering._freeze import freeze
from jax2tf_bridge.from_jax.lowering._lowering import ExportOptions, Lowered, lower
from jax2tf_bridge.from_jax.lowering._tracing import Tracing, VjpTracer
from jax2tf_bridge.from_jax.shapes._granted import granted
from jax2tf_bridge.from_jax.shapes._implied import with_implied
from jax2tf_bridge.from_jax.shapes._inference import Inferred, Subject, infer
from jax2tf_bridge.from_jax.shapes._knowledge import Knowledge
from jax2tf_bridge.from_jax.stablehlo._lifting import ConstantPool
from jax2tf_bridge.portable._portable_function import (
    Gradient,
    GradientOnDemand,
    PortableFunction,
)
from jax2tf_bridge.portable._tree_spec import flat_call
from shape_poly import Dim

T = TypeVar("T")


def gradient_on_demand(
    tracing: Tracing,
    traced: jax.stages.Traced,
    in_shapes: Sequence[tuple[Dim, ...]],
    knowledge: Knowledge,
    subject: Subject,
    options: ExportOptions,
    *,
    constraints: tuple[str, ...],
    constants: ConstantPool,
    exported: jax_export.Exported,
) -> Gradient:
    """The VJP of a function that was exported already.

    Its trace may raise questions about sizes that the function's own did not: then the function is
    traced again under what answers them, and the VJP's record has requirements of its own.

    Args:
      tracing: traces the function again.
      traced: its trace, as it was exported.
      in_shapes: the shapes of its flat arguments, as the user wrote them.
      knowledge: under which it was exported.
      subject: what it is, for inference.
      options: of its export.
      constraints: on its dimension variables, as the user wrote them.
      constants: the large arrays of the function, which the VJP may hold as well.
      exported: of the function; only how it is spread over devices is looked at.
    """
    # The gradient may be asked for where JAX is configured otherwise.
    x64 = bool(jax.config.read("jax_enable_x64"))
    name, vjp_name = subject.name, f"the gradient of {subject.name}"
    # Its module may be large, and what is asked later lives as long as the record.
    bare = replace(exported, mlir_module_serialized=b"", _get_vjp=None)
    spread = functools.cache(lambda: vjp_shardings(traced, bare, name))
    again = VjpTracer(tracing, spread)
    vjp_subject = replace(subject, name=vjp_name, trace_at=again.at)

    @_once
    def traced_vjp() -> Inferred[jax.stages.Traced]:
        attempt = _first_as_it_is(lambda: trace_vjp(traced, spread()), again.under)
        try:
            with jax.enable_x64(x64):
                inferred = infer(attempt, knowledge, vjp_subject)
            refuse_host_callbacks(
                inferred.value, vjp_name, without_debug_effects=options.without_debug_effects
            )
        except (InconclusiveShapeError, ShardingError):
            raise
        except Exception as e:
            raise GradientError(f"{name} has no gradient: {e}") from e
        granted(knowledge, inferred.knowledge, vjp_subject, options)
        return inferred

    def lowered_vjp(vjp: jax.stages.Traced) -> tuple[jax.stages.Traced, Lowered]:
        return vjp, lower(widened(vjp), vjp_name, options)

    def make() -> PortableFunction:
        begun = traced_vjp()
        attempt = _first_as_it_is(
            lambda: lowered_vjp(begun.value), lambda known: lowered_vjp(again.under(known))
        )
        with jax.enable_x64(x64):
            inferred = infer(attempt, begun.knowledge, vjp_subject)
            known = granted(knowledge, inferred.knowledge, vjp_subject, options)
            return frozen(*inferred.value, known)

    def frozen(vjp: jax.stages.Traced, lowered: Lowered, known: Knowledge) -> PortableFunction:
        known = with_implied(known, vjp, vjp_name)
        primals, cotangents = len(in_shapes), len(vjp.jaxpr.in_avals) - len(in_shapes)
        names = (
            *(f"primal_{i}" for i in range(primals)),
            *(f"cotangent_{i}" for i in range(cotangents)),
        )
        shapes = (*in_shapes, *map(known.shape_from_jax, vjp.jaxpr.in_avals[primals:]))
        return freeze(
            vjp,
            lowered,
            vjp_name,
            options,
            in_shapes=shapes,
            in_tree=flat_call(len(names)),
            argument_names=names,
            constraints=constraints,
            knowledge=known,
            constants=constants,
            gradient=gradient_on_demand(
                again,
                vjp,
                shapes,
                known,
                vjp_subject,
                options,
                constraints=constraints,
                constants=constants,
                exported=lowered.exported,
            ),
        )

    return GradientOnDemand(make, check=lambda: _nothing(traced_vjp()))


def _first_as_it_is(
    first: Callable[[], T], later: Callable[[Knowledge], T]
) -> Callable[[Knowledge], T]:
    """What there is already, at the first call; at later ones, made anew with what is known."""
    calls = itertools.count()
    return lambda knowledge: first() if next(calls) == 0 else later(knowledge)


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


def _nothing(_: object) -> None:
    return None
