"""Builds a portable function from a lowered function."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jax2tf_bridge.from_jax._shardings import read_shardings
from jax2tf_bridge.from_jax.arguments import portable_aval
from jax2tf_bridge.from_jax.lowering._differentiable import has_jax_gradient_in_tensorflow
from jax2tf_bridge.from_jax.lowering._flat_functions import out_structure
from jax2tf_bridge.from_jax.lowering._lowering import LoweredModule, effect_names
from jax2tf_bridge.from_jax.shapes import ExportOptions, SizeAssumptions
from jax2tf_bridge.from_jax.stablehlo import ConstantPool, retarget_module
from jax2tf_bridge.from_jax.trees import spec_of_structure
from jax2tf_bridge.portable import (
    Gradient,
    Module,
    PortableFunction,
    TreeSpec,
    check_types,
    mark_types_checked,
)
from shape_poly import Dim, is_symbolic_dim


def build_portable_function(
    traced: jax.stages.Traced,
    lowered: LoweredModule,
    name: str,
    options: ExportOptions,
    *,
    in_shapes: Sequence[tuple[Dim, ...]],
    in_tree: TreeSpec,
    argument_names: tuple[str, ...],
    assumptions: SizeAssumptions,
    constants: ConstantPool,
    gradient: Gradient,
) -> PortableFunction:
    """Builds a portable function from a lowered trace, at the target's StableHLO version.

    Args:
      traced: the trace.
      lowered: the lowered trace.
      name: the name of the function.
      options: the options of the export.
      in_shapes: the shapes of the flat arguments, with the dimensions as the user wrote them;
        constraints may have rewritten them in the trace.
      in_tree: the structure of (args, kwargs).
      argument_names: one name for each positional argument.
      assumptions: the assumptions about sizes that it was traced under.
      constants: the large arrays of the function and its VJPs; those in this module become
        arguments of the module.
      gradient: the gradient of the function.

    Raises:
      UnsupportedByTargetError: no StableHLO version of the target expresses the module, or the
        target has no XLA and TensorFlow has no operation for one of the module's operations.
      ModuleError: the module's types are not those of the trace.
      NotExportableError: the function has an effect that cannot be recreated.
    """
    exported = lowered.exported
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
    out_avals = tuple(
        portable_aval(aval, assumptions.shape_from_jax(aval)) for aval in traced.jaxpr.out_avals
    )
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
        retargeted.module,
        retargeted.stablehlo_version,
        retargeted.calling_convention_version,
        kept_arguments=kept_indices,
        platforms=tuple(exported.platforms),
        uses_shape_polymorphism=any(
            is_symbolic_dim(d) for aval in traced_avals for d in aval.shape
        ),
        disabled_checks=options.disabled_checks,
        nr_devices=exported.nr_devices,
    )
    is_native = not options.target.xla and has_jax_gradient_in_tensorflow(traced.jaxpr)
    function = PortableFunction(
        name=name,
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=spec_of_structure(out_structure(traced), traced.jaxpr.out_avals),
        out_avals=out_avals,
        argument_names=argument_names,
        module=module,
        dropped_platforms=lowered.dropped_platforms,
        constraints=assumptions.constraints,
        requirements=assumptions.requirement_texts(),
        ordered_effects=effect_names(exported.ordered_effects, name),
        unordered_effects=effect_names(
            exported.unordered_effects,
            name,
            without_debug=options.without_debug_effects,
            runtime_checks=options.runtime_checks,
        ),
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        target=options.target,
        producer=f"JAX {jax.__version__}",
        lifted_constants=lifted,
        graph_functions=lowered.graph_functions,
        gradient=gradient,
        tensorflow_differentiates=is_native,
        uses_global_constants=exported.uses_global_constants,
    )
    mark_types_checked(function)
    return function
