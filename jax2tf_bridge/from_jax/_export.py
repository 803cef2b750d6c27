"""export() and eval_polymorphic_shape(): trace a JAX function with open sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

from jax2tf_bridge.errors import Argument, Message, ShapeError
from jax2tf_bridge.from_jax._symbols import dim_to_jax
from jax2tf_bridge.from_jax.arguments import JaxCallable, portable_aval
from jax2tf_bridge.from_jax.lowering import (
    ExportOptions,
    LoweredModule,
    build_portable_function,
    get_out_structure,
    lower,
    make_export_options,
    make_traced_function,
    refuse_host_callbacks,
)
from jax2tf_bridge.from_jax.shapes import (
    AUTO_CONSTRAINTS,
    AUTO_SHAPES,
    CONSTRAINTS,
    SHAPES,
    ArraySpec,
    SizeAssumptions,
    SizeOptions,
    Specs,
    TracedTrial,
    add_reshape_requirements,
    check_requirements_allowed,
    check_sizes_stay_open,
    choose_auto_shapes,
    infer,
    infer_and_lower,
    make_size_options,
    symbolic_specs,
)
from jax2tf_bridge.from_jax.stablehlo import ConstantPool
from jax2tf_bridge.from_jax.trees import rebuild_tree
from jax2tf_bridge.portable import Aval, PolyConstraints, PortableFunction
from jax2tf_bridge.targets import Target
from shape_poly import ContradictionError


def export(
    f: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: PolyConstraints = (),
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Any] = (),
    target: Target | None = None,
    runtime_checks: Literal["drop"] | None = None,
) -> Callable[..., PortableFunction]:
    """Exports a JAX function as StableHLO; TensorFlow is not needed.

    Args:
      f: the function, jitted or not. Arguments and results are pytrees of arrays.
      polymorphic_shapes: None to keep all shapes, one string such as "(b, 28)" for every argument,
        AUTO, or one entry per argument: a string, None, or a prefix of its pytree. "_" copies the
        argument's own size, "..." all remaining ones. Keyword arguments keep their shapes, unless
        this is a dict of entries by argument name, as {"x": "(b, 28)", "mask": "(b,)"}.
      polymorphic_constraints: constraints on the dimension variables, as ["b >= 2"]. AUTO, alone or
        as one of them, adds the constraints that the function needs, and lists them in
        `requirements` of the result.
      platforms: any of "cpu", "cuda", "rocm", "tpu", and platforms of JAX plug-ins; "gpu" means
        cuda and rocm. By default those of the four that work; the result has the reasons why the
        others are missing.
      disabled_checks: a sequence of DisabledSafetyCheck.
      target: the consumer's capabilities; by default `Target.widest()`.
      runtime_checks: "drop" removes checks of values at run time, by equinox.error_if (also in
        Diffrax, Lineax and Optimistix) and checkify.check. By default such a check is an error,
        because TensorFlow cannot raise it.

    Returns:
      A function of the arguments of `f` (arrays or jax.ShapeDtypeStruct) that returns the
      PortableFunction. Captured arrays of 4096 bytes and more become `lifted_constants` beside the
      module; equal arrays are stored once.

    Raises:
      FunctionError: `f` is not callable, or runtime_checks is invalid.
      TargetError: a platform is unknown.
      ShapeError, DTypeError, StructureError: the arguments do not fit polymorphic_shapes.
      InconclusiveShapeError: the function works only for some sizes, which the text names.
      NotExportableError: it calls back to the host, or checks values at run time.
      ShardingError: it uses a mesh of several devices, but JAX lowers it for one.
      PlatformError, UnsupportedByTargetError: the target cannot run it.

    >>> import jax, jax.numpy as jnp
    >>> portable = export(jnp.sin, polymorphic_shapes="(b, 2)")(jnp.ones((3, 2)))
    >>> portable.out_avals[0].shape, portable.module.stablehlo_version
    ((DimExpr('b'), 2), (0, 14, 24))
    """
    # Options are checked first, so that their errors need no arguments.
    function = JaxCallable.of(f, caller="export")
    options = make_export_options(
        platforms,
        polymorphic_constraints,
        disabled_checks,
        target,
        argument="platforms",
        call=call_text(f"export({function.code_name}", polymorphic_shapes),
        runtime_checks=runtime_checks,
    )

    def export_for(*args: Any, **kwargs: Any) -> PortableFunction:
        specs = symbolic_specs(function, args, kwargs, polymorphic_shapes)
        return PreparedExport(function, specs, options).run()

    return export_for


@dataclass(frozen=True)
class PreparedExport:
    """Function with known arguments, which is not traced yet."""

    function: JaxCallable
    specs: Specs
    options: ExportOptions

    def run(self, constants: ConstantPool | None = None) -> PortableFunction:
        """Traces the function, once unless sizes raise questions, and exports it.

        Args:
          constants: receives the large arrays, and shares equal ones; by default they are copied.
        """
        function, specs, options = self.function, self.specs, self.options
        constants = constants or ConstantPool()
        name = function.name
        _check_names(specs, options.sizes)
        if not specs.is_decided:
            specs = choose_auto_shapes(
                specs,
                lambda proposed: _trace_trial(function, proposed, options.sizes),
                infer=options.sizes.infer,
            )
            start, _, _ = options.sizes.call.partition(", polymorphic_shapes=")
            options = options.with_call(f"{start}, polymorphic_shapes={specs.texts()!r}")
        tracing = make_traced_function(function, specs, options.sizes.words)

        def to_module(traced: jax.stages.Traced) -> LoweredModule:
            refuse_host_callbacks(traced, name, options)
            return lower(traced, name, options)

        before = _collect_assumptions(specs, options.sizes, name)
        inferred = infer_and_lower(tracing, before, to_module)
        check_requirements_allowed(before, inferred.assumptions, tracing, options.sizes)
        inferred = add_reshape_requirements(inferred, tracing)
        check_sizes_stay_open(before, inferred.assumptions, tracing)
        in_tree, argument_names = specs.structure()
        return build_portable_function(
            tracing,
            inferred,
            options,
            in_shapes=specs.shapes(),
            in_tree=in_tree,
            argument_names=argument_names,
            constants=constants,
        )

    def inputs(self, first: int) -> tuple[list[str], list[Aval]]:
        """Lists the paths and avals of the leaves of all arguments from index `first`.

        Undecided arguments, left to AUTO, have no aval.
        """
        before = [argument for _, argument in self.specs.arguments()[:first]]
        start = len(jax.tree_util.tree_leaves(before))
        leaves = self.specs.leaves()[start:]
        avals = [
            portable_aval(leaf, leaf.shape if isinstance(leaf, ArraySpec) else ())
            for leaf in leaves
        ]
        return self.specs.paths()[start:], avals


def call_text(start: str, polymorphic_shapes: Any) -> str:
    """Formats the user's call, as "export(f, polymorphic_shapes=...", for messages.

    `start` is the call up to polymorphic_shapes, as "export(f".
    """
    shapes = repr(polymorphic_shapes)
    shown = shapes if len(shapes) <= 200 else "..."
    return f"{start}, polymorphic_shapes={shown}"


def _trace_trial(function: JaxCallable, specs: Specs, options: SizeOptions) -> TracedTrial:
    tracing = make_traced_function(function, specs, options.words)
    inferred = infer(tracing, _collect_assumptions(specs, options, function.name))
    inferred = add_reshape_requirements(inferred, tracing)
    return TracedTrial(inferred.assumptions.requirements, inferred.out_shapes())


def _collect_assumptions(specs: Specs, options: SizeOptions, name: str) -> SizeAssumptions:
    """Collects the user's constraints, and those in the scopes of JAX's dimensions.

    Raises:
      ShapeError: no sizes satisfy all of them.
    """
    try:
        return SizeAssumptions(
            options.scope.with_constraints(*specs.constraints),
            (*options.constraints, *map(str, specs.constraints)),
        )
    except ContradictionError as e:
        also = (" and ", CONSTRAINTS) if options.constraints else ()
        raise ShapeError(
            Message(
                f"The symbolic scopes of {name}'s arguments", *also, f" contradict each other: {e}"
            )
        ) from e


def _check_names(specs: Specs, options: SizeOptions) -> None:
    """Rejects constraints on variables that no argument has and no equality defines."""
    defined = [c.variables() for c in options.scope.constraints if c.operator == "=="]
    unknown = options.scope.variables() - specs.variables()
    if specs.is_decided:
        unknown -= frozenset[str]().union(*defined)
    if not unknown:
        return
    names = ", ".join(sorted(unknown))
    start = Message(
        Argument(CONSTRAINTS.name, list(options.constraints)),
        f" use {names}, which no entry of ",
        SHAPES,
        " names",
    )
    if specs.is_decided:
        known = ", ".join(sorted(specs.variables())) or "none"
        raise ShapeError(Message(start, f". Its variables: {known}."))
    raise ShapeError(
        Message(
            start,
            ": ",
            AUTO_SHAPES,
            " names its variables itself. Write the entry yourself, or pass ",
            AUTO_CONSTRAINTS,
            ".",
        )
    )


def eval_polymorphic_shape(
    fun_jax: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: PolyConstraints = (),
) -> Callable[..., tuple[Any, Any]]:
    """Computes the shapes and dtypes of results for arguments with open sizes.

    Args:
      fun_jax: the function, jitted or not.
      polymorphic_shapes: the open dimensions, as in `export`; not AUTO.
      polymorphic_constraints: as in `export`.

    Returns:
      A function of the arguments of `fun_jax` (arrays, jax.ShapeDtypeStruct, or other objects with
      a shape and a dtype). It returns two pytrees with the structure of the results: one of
      jax.ShapeDtypeStruct with JAX's symbolic dimensions, and one of texts such as "(b, 28)", which
      can be passed on as polymorphic_shapes.

    Raises:
      FunctionError: `fun_jax` is not callable.
      ShapeError, DTypeError, StructureError: the arguments do not fit polymorphic_shapes.
      InconclusiveShapeError: the function works only for some sizes, which the text names.

    >>> import jax.numpy as jnp
    >>> x = jax.ShapeDtypeStruct((3, 4), jnp.float32)
    >>> specs, shapes = eval_polymorphic_shape(jnp.transpose, polymorphic_shapes="(b, 4)")(x)
    >>> shapes
    '(4, b)'
    """
    function = JaxCallable.of(fun_jax, caller="eval_polymorphic_shape")
    call = call_text(f"eval_polymorphic_shape({function.code_name}", polymorphic_shapes)
    options = make_size_options(polymorphic_constraints, call=call)

    def evaluate(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        specs = symbolic_specs(function, args, kwargs, polymorphic_shapes)
        if not specs.is_decided:
            raise ShapeError(
                "eval_polymorphic_shape does not take AUTO, because the sizes that AUTO opens "
                "depend on the export. Write the entries of polymorphic_shapes, or read out_avals "
                "of the portable function that export(f, polymorphic_shapes=AUTO) returns."
            )
        before = _collect_assumptions(specs, options, function.name)
        tracing = make_traced_function(function, specs)
        inferred = add_reshape_requirements(infer(tracing, before), tracing)
        check_requirements_allowed(before, inferred.assumptions, tracing, options)
        tree = get_out_structure(inferred.traced)
        scope = before.new_scope()
        results = [
            jax.ShapeDtypeStruct(tuple(dim_to_jax(d, scope) for d in shape), leaf.dtype)
            for shape, leaf in zip(
                inferred.out_shapes(), inferred.traced.jaxpr.out_avals, strict=True
            )
        ]
        # JAX formats the texts, so that they equal those of jax2tf.
        return rebuild_tree(tree, results), rebuild_tree(tree, [str(r.shape) for r in results])

    return evaluate
