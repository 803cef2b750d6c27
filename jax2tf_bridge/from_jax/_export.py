"""export(): from a JAX function and its arguments' shapes to a PortableFunction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax2tf_bridge._checks import canonical_checks
from jax2tf_bridge._errors import GradientError, ShapeError, ShardingError, TargetError
from jax2tf_bridge._module_types import check_types
from jax2tf_bridge._portable import LazyVjp, PortableFunction
from jax2tf_bridge._pytree import LEAF, TreeSpec
from jax2tf_bridge._target import Target, canonical_platforms
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._avals import portable_aval
from jax2tf_bridge.from_jax._boundary import trace_vjp, widened
from jax2tf_bridge.from_jax._callables import JaxCallable
from jax2tf_bridge.from_jax._effects import refuse_host_callbacks
from jax2tf_bridge.from_jax._lowering import ExportOptions, effect_names, lower
from jax2tf_bridge.from_jax._retarget import retarget
from jax2tf_bridge.from_jax._specs import Specs, symbolic_specs
from jax2tf_bridge.from_jax._trees import tree_spec


def export(
    f: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Any] = (),
    target: Target | None = None,
) -> Callable[..., PortableFunction]:
    """Freezes a JAX function as StableHLO; TensorFlow is not needed for it.

    Args:
      f: the function, jitted or not. Arguments and results are pytrees of arrays.
      polymorphic_shapes: None (all shapes as given), a string as "(b, 28)" for every argument,
        or one entry an argument: a string, None, or a prefix of its pytree. "_" takes the
        argument's own size, "..." its remaining ones. Keyword arguments keep their shapes.
      polymorphic_constraints: what holds for the dimension variables, as "b >= 2".
      platforms: of "cpu", "cuda", "rocm", "tpu" and what plug-ins registered with JAX; "gpu" is
        cuda and rocm. By default all of the four that work; the record says why one does not.
      disabled_checks: of DisabledSafetyCheck.
      target: what the consumer can run; by default `Target.widest()`.

    Returns:
      A function that takes the arguments of `f` (arrays or jax.ShapeDtypeStruct) and gives the
      PortableFunction.

    Raises:
      FunctionError: `f` is not callable.
      TargetError: no such platform.
      ShapeError, DTypeError, StructureError: the arguments do not fit polymorphic_shapes.
      NotExportableError: it calls back to the host.
      PlatformError, UnsupportedByTargetError: the target cannot run it.

    >>> import jax, jax.numpy as jnp
    >>> record = export(jnp.sin, polymorphic_shapes="(b, 2)")(jnp.ones((3, 2)))
    >>> record.out_avals[0].shape, record.stablehlo_version
    ((DimExpr('b'), 2), (0, 14, 24))
    """
    function = JaxCallable.of(f, caller="export")
    options = export_options(
        platforms, polymorphic_constraints, disabled_checks, target, argument="platforms"
    )

    def export_for(*args: Any, **kwargs: Any) -> PortableFunction:
        specs = symbolic_specs(function, args, kwargs, polymorphic_shapes, options.constraints)
        return export_specs(function, specs, options)

    return export_for


def export_options(
    platforms: Sequence[str] | None,
    constraints: Sequence[str],
    disabled_checks: Sequence[Any],
    target: Target | None,
    *,
    argument: str,
) -> ExportOptions:
    """The options of an export, checked. `argument` is the user's name for platforms."""
    if target is not None and not isinstance(target, Target):
        raise TargetError(
            f"target must be a Target, as Target.tensorflow('2.17') or Target.installed(). "
            f"Got: {target!r}"
        )
    if isinstance(constraints, str):
        raise ShapeError(
            f"polymorphic_constraints must be a sequence of strings: [{constraints!r}]. "
            f"Got: {constraints!r}"
        )
    return ExportOptions(
        canonical_platforms(platforms, _jax_compat.known_platforms(), argument=argument),
        canonical_checks(disabled_checks),
        target or Target.widest(),
        tuple(constraints),
    )


def export_specs(function: JaxCallable, specs: Specs, options: ExportOptions) -> PortableFunction:
    """Traces the function once, at `specs`, and exports the trace."""
    traced = function.jitted.trace(*specs.args, **specs.kwargs)
    dynamic = [a for i, a in enumerate(specs.args) if not function.is_static(i)]
    names = function.argument_names(len(specs.args))
    kwargs = {k: v for k, v in specs.kwargs.items() if k not in function.static_argnames}
    return _export_traced(
        traced,
        function.name,
        options,
        in_tree=tree_spec((tuple(dynamic), kwargs)),
        argument_names=tuple(n for i, n in enumerate(names) if not function.is_static(i)),
    )


def _export_traced(
    traced: jax.stages.Traced,
    name: str,
    options: ExportOptions,
    *,
    in_tree: TreeSpec,
    argument_names: tuple[str, ...],
) -> PortableFunction:
    refuse_host_callbacks(traced, name)
    lowered = lower(widened(traced), name, options)
    exported = lowered.exported
    retargeted = retarget(
        lowered.module,
        options.target,
        function_name=name,
        has_effects=bool(exported.ordered_effects),
    )
    in_shardings, out_shardings = _shardings(exported)
    in_avals = tuple(portable_aval(a) for a in traced.jaxpr.in_avals)
    out_avals = tuple(portable_aval(a) for a in traced.jaxpr.out_avals)
    kept = [in_avals[i] for i in exported.module_kept_var_idx]
    check_types(name, kept, out_avals, *lowered.module.main_types())
    return PortableFunction(
        name=name,
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=tree_spec(traced.out_info),
        out_avals=out_avals,
        argument_names=argument_names,
        module=retargeted.module,
        stablehlo_version=retargeted.stablehlo_version,
        calling_convention_version=retargeted.calling_convention_version,
        module_kept_var_idx=tuple(exported.module_kept_var_idx),
        platforms=tuple(exported.platforms),
        dropped_platforms=lowered.dropped_platforms,
        uses_shape_polymorphism=any(not isinstance(d, int) for a in in_avals for d in a.shape),
        constraints=options.constraints,
        disabled_checks=options.disabled_checks,
        ordered_effects=effect_names(exported.ordered_effects),
        unordered_effects=effect_names(exported.unordered_effects),
        nr_devices=exported.nr_devices,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        target=options.target,
        producer=f"JAX {jax.__version__}",
        lazy_vjp=_lazy_vjp(traced, name, options, exported),
        types_checked=True,
    )


def _lazy_vjp(
    traced: jax.stages.Traced, name: str, options: ExportOptions, exported: Any
) -> LazyVjp:
    # The gradient may be asked for where JAX is configured otherwise.
    x64 = bool(jax.config.read("jax_enable_x64"))

    @functools.cache
    def trace() -> jax.stages.Traced:
        try:
            with jax.enable_x64(x64):
                return trace_vjp(traced)
        except Exception as e:
            raise GradientError(f"{name} has no gradient: {e}") from e

    def make() -> PortableFunction:
        with jax.enable_x64(x64):
            return _export_vjp(traced, trace, name, options, exported)

    def check() -> None:
        trace()

    return LazyVjp(make, check=check)


def _export_vjp(
    traced: jax.stages.Traced,
    trace: Callable[[], jax.stages.Traced],
    name: str,
    options: ExportOptions,
    exported: Any,
) -> PortableFunction:
    if exported.nr_devices > 1:
        raise ShardingError(
            f"{name} is sharded over {exported.nr_devices} devices: its gradient cannot be "
            "exported yet. Convert it with with_gradient=False."
        )
    arity = len(traced.jaxpr.in_avals)
    cotangents = len(traced.jaxpr.out_avals)
    names = tuple(
        [f"primal_{i}" for i in range(arity)] + [f"cotangent_{i}" for i in range(cotangents)]
    )
    in_tree = TreeSpec(
        "tuple",
        children=(TreeSpec("tuple", children=(LEAF,) * len(names)), TreeSpec("dict")),
    )
    return _export_traced(
        trace(), f"the gradient of {name}", options, in_tree=in_tree, argument_names=names
    )


def _shardings(exported: Any) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    nothing = (None,) * len(exported.in_avals), (None,) * len(exported.out_avals)
    if exported.nr_devices == 1:
        return nothing
    if any(exported.in_shardings_hlo) or any(exported.out_shardings_hlo):
        # Until March 2026 JAX kept them as XLA's.
        ins, outs = exported.in_shardings_hlo, exported.out_shardings_hlo
    else:
        abstract_mesh = None
        ins = exported.in_shardings_jax(abstract_mesh)
        outs = exported.out_shardings_jax(abstract_mesh)
    return tuple(map(_sharding_text, ins)), tuple(map(_sharding_text, outs))


def _sharding_text(sharding: Any) -> str | None:
    text = str(getattr(sharding, "spec", sharding))
    replicated = getattr(sharding, "is_fully_replicated", text == "{replicated}")
    return None if sharding is None or replicated else text
