"""export(): from a JAX function and its arguments' shapes to a PortableFunction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax

from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.errors import Argument, Message, ShapeError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._avals import portable_aval
from jax2tf_bridge.from_jax._callables import JaxCallable
from jax2tf_bridge.from_jax._trees import tree_spec
from jax2tf_bridge.from_jax.lowering._boundary import widened
from jax2tf_bridge.from_jax.lowering._effects import refuse_host_callbacks
from jax2tf_bridge.from_jax.lowering._freeze import freeze
from jax2tf_bridge.from_jax.lowering._lowering import ExportOptions, Lowered, lower
from jax2tf_bridge.from_jax.lowering._tracing import Tracer
from jax2tf_bridge.from_jax.lowering._vjp import lazy_vjp
from jax2tf_bridge.from_jax.shapes._argument_specs import ArraySpec
from jax2tf_bridge.from_jax.shapes._granted import granted, leaving_sizes_open
from jax2tf_bridge.from_jax.shapes._implied import with_implied
from jax2tf_bridge.from_jax.shapes._inference import Subject, infer
from jax2tf_bridge.from_jax.shapes._knowledge import Knowledge
from jax2tf_bridge.from_jax.shapes._proposal import Trial, propose
from jax2tf_bridge.from_jax.shapes._size_words import AUTO_SHAPES, CONSTRAINTS, INFER, SHAPES
from jax2tf_bridge.from_jax.shapes._specs import Specs, scope_of, symbolic_specs
from jax2tf_bridge.from_jax.stablehlo._lifting import ConstantPool
from jax2tf_bridge.portable._portable_function import Aval, PortableFunction
from jax2tf_bridge.portable._safety_checks import canonical_checks
from jax2tf_bridge.portable._target import Target, as_target, canonical_platforms
from shape_poly import ContradictionError


def export(
    f: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: Sequence[str] | Literal["infer"] = (),
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Any] = (),
    target: Target | None = None,
) -> Callable[..., PortableFunction]:
    """Freezes a JAX function as StableHLO; TensorFlow is not needed for it.

    Args:
      f: the function, jitted or not. Arguments and results are pytrees of arrays.
      polymorphic_shapes: None (all shapes as given), a string as "(b, 28)" for every argument,
        AUTO, or one entry an argument: a string, None, or a prefix of its pytree. "_" takes the
        argument's own size, "..." its remaining ones. Keyword arguments keep their shapes, unless
        it is a dict of entries by the names of arguments, as {"x": "(b, 28)", "mask": "(b,)"}.
      polymorphic_constraints: what holds for the dimension variables, as ["b >= 2"]; or "infer",
        also among others: what the function needs is added, and listed in the record's
        `requirements`.
      platforms: of "cpu", "cuda", "rocm", "tpu" and what plug-ins registered with JAX; "gpu" is
        cuda and rocm. By default all of the four that work; the record says why one does not.
      disabled_checks: of DisabledSafetyCheck.
      target: what the consumer can run; by default `Target.widest()`.

    Returns:
      A function that takes the arguments of `f` (arrays or jax.ShapeDtypeStruct) and gives the
      PortableFunction. Arrays of 4096 bytes and more that `f` captured lie beside its module, as
      `lifted_constants`, those of equal content once.

    Raises:
      FunctionError: `f` is not callable.
      TargetError: no such platform.
      ShapeError, DTypeError, StructureError: the arguments do not fit polymorphic_shapes.
      InconclusiveShapeError: the function only works for some of the sizes; it says for which.
      NotExportableError: it calls back to the host.
      ShardingError: it speaks of several devices, and JAX lowers it for one.
      PlatformError, UnsupportedByTargetError: the target cannot run it.

    >>> import jax, jax.numpy as jnp
    >>> record = export(jnp.sin, polymorphic_shapes="(b, 2)")(jnp.ones((3, 2)))
    >>> record.out_avals[0].shape, record.stablehlo_version
    ((DimExpr('b'), 2), (0, 14, 24))
    """
    # What is wrong with these is said before there are arguments.
    function, options = _function_and_options(
        f, polymorphic_shapes, polymorphic_constraints, platforms, disabled_checks, target
    )

    def export_for(*args: Any, **kwargs: Any) -> PortableFunction:
        specs = symbolic_specs(function, args, kwargs, polymorphic_shapes)
        return PreparedExport(function, specs, options).run()

    return export_for


@dataclass(frozen=True)
class PreparedExport:
    """A function whose arguments are known by name and shape, and which is not traced yet."""

    function: JaxCallable
    specs: Specs
    options: ExportOptions

    @staticmethod
    def of(
        f: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        polymorphic_shapes: Any,
        polymorphic_constraints: Sequence[str] | Literal["infer"],
        platforms: Sequence[str] | None,
        disabled_checks: Sequence[Any],
        target: Target | None,
    ) -> PreparedExport:
        """As `export(f, ...)(*args, **kwargs)` begins, with the same errors."""
        function, options = _function_and_options(
            f, polymorphic_shapes, polymorphic_constraints, platforms, disabled_checks, target
        )
        specs = symbolic_specs(function, args, kwargs, polymorphic_shapes)
        return PreparedExport(function, specs, options)

    def run(self) -> PortableFunction:
        """Exports the function."""
        return export_specs(self.function, self.specs, self.options)

    def inputs(self, first: int) -> tuple[list[str], list[Aval]]:
        """The paths and avals of the leaves of all arguments from number `first` on.

        Those whose sizes AUTO has to decide have none.
        """
        positional, _ = self.specs.dynamic
        start = len(jax.tree_util.tree_leaves(positional[:first]))
        leaves = self.specs.leaves()[start:]
        avals = [
            portable_aval(leaf, leaf.shape if isinstance(leaf, ArraySpec) else ())
            for leaf in leaves
        ]
        return self.specs.paths()[start:], avals


def _function_and_options(
    f: Callable[..., Any],
    polymorphic_shapes: Any,
    polymorphic_constraints: Sequence[str] | Literal["infer"],
    platforms: Sequence[str] | None,
    disabled_checks: Sequence[Any],
    target: Target | None,
) -> tuple[JaxCallable, ExportOptions]:
    function = JaxCallable.of(f, caller="export")
    options = export_options(
        platforms,
        polymorphic_constraints,
        disabled_checks,
        target,
        argument="platforms",
        call=call_text("export", function, polymorphic_shapes),
    )
    return function, options


def call_text(caller: str, function: JaxCallable, polymorphic_shapes: Any) -> str:
    """How the user called the bridge, as "export(f, polymorphic_shapes=...", for messages."""
    shapes = repr(polymorphic_shapes)
    shown = shapes if len(shapes) <= 200 else "..."
    return f"{caller}({function.code_name}, polymorphic_shapes={shown}"


def export_options(
    platforms: Sequence[str] | None,
    constraints: Sequence[str] | Literal["infer"],
    disabled_checks: Sequence[Any],
    target: Target | None,
    *,
    argument: str,
    call: str,
) -> ExportOptions:
    """The options of an export, checked.

    Args:
      platforms: as in `export`, as are the next three.
      constraints: polymorphic_constraints.
      disabled_checks: of DisabledSafetyCheck.
      target: what the consumer can run.
      argument: the user's name for platforms.
      call: how the user called the bridge, for messages.
    """
    if constraints == "infer":
        constraints = ["infer"]
    one = isinstance(constraints, str)
    if (
        not isinstance(constraints, Sequence)
        or one
        or not all(isinstance(c, str) for c in constraints)
    ):
        meant = did_you_mean(str(constraints), ["infer"], quoted=True) if one else ""
        raise ShapeError(
            "polymorphic_constraints must be 'infer' or a sequence of strings, as ['b >= 2']. "
            f"Got: {constraints!r}{meant}"
        )
    written = tuple(c for c in constraints if c != "infer")
    return ExportOptions(
        canonical_platforms(platforms, _jax_compat.known_platforms(), argument=argument),
        canonical_checks(disabled_checks),
        as_target(target),
        written,
        scope=scope_of(written),
        infer=len(written) < len(constraints),
        call=call,
    )


def export_specs(
    function: JaxCallable,
    specs: Specs,
    options: ExportOptions,
    constants: ConstantPool | None = None,
) -> PortableFunction:
    """Traces the function at `specs`, once unless its sizes raise questions, and exports it.

    Its large arrays are lifted; those of equal content are shared with whatever else was lifted
    into `constants`.
    """
    constants = ConstantPool() if constants is None else constants
    name = function.name
    _check_names(specs, options)
    if not specs.decided:
        specs = propose(
            specs, lambda proposed: _trial(function, proposed, options), infer=options.infer
        )
        asked, _, _ = options.call.partition(", polymorphic_shapes=")
        options = replace(options, call=f"{asked}, polymorphic_shapes={specs.texts()!r}")
    tracing = Tracer(function, specs)

    def attempt(knowledge: Knowledge) -> tuple[jax.stages.Traced, Lowered]:
        traced = tracing.under(knowledge)
        refuse_host_callbacks(traced, name, without_debug_effects=options.without_debug_effects)
        return traced, lower(widened(traced), name, options)

    given = known_before(specs, options, name)
    subject = Subject(
        name, specs.variables(), tracing.at, specs.example(), function.source, options.words
    )
    inferred = infer(attempt, given, subject)
    traced, lowered = inferred.value
    knowledge = granted(given, inferred.knowledge, subject, options)
    knowledge = leaving_sizes_open(given, with_implied(knowledge, traced, name), subject)
    constraints = (*options.constraints, *map(str, specs.constraints))
    positional, keyword = specs.dynamic
    dynamic = [a for i, a in enumerate(positional) if i not in specs.static_args]
    names = function.argument_names(len(positional))
    in_shapes = specs.shapes()
    return freeze(
        traced,
        lowered,
        name,
        options,
        in_shapes=in_shapes,
        in_tree=tree_spec((tuple(dynamic), keyword)),
        argument_names=tuple(n for i, n in enumerate(names) if i not in specs.static_args),
        constraints=constraints,
        knowledge=knowledge,
        constants=constants,
        lazy_vjp=lazy_vjp(
            tracing,
            traced,
            in_shapes,
            knowledge,
            subject,
            options,
            constraints=constraints,
            constants=constants,
            exported=lowered.exported,
        ),
    )


def _trial(function: JaxCallable, specs: Specs, options: ExportOptions) -> Trial:
    """What comes of tracing the function at its specs, without lowering it."""
    tracing = Tracer(function, specs)
    given = known_before(specs, options, function.name)
    subject = Subject(
        function.name,
        specs.variables(),
        tracing.at,
        specs.example(),
        function.source,
        options.words,
    )
    inferred = infer(tracing.under, given, subject)
    knowledge = with_implied(inferred.knowledge, inferred.value, function.name)
    results = [knowledge.shape_from_jax(aval) for aval in inferred.value.jaxpr.out_avals]
    return Trial(knowledge.requirements, results)


def known_before(specs: Specs, options: ExportOptions, name: str) -> Knowledge:
    """What the user says of the sizes: by constraints, and by the scopes of JAX's dimensions.

    Raises:
      ShapeError: no sizes satisfy all of it.
    """
    try:
        return Knowledge(options.scope.with_constraints(*specs.constraints))
    except ContradictionError as e:
        also = (" and ", CONSTRAINTS) if options.constraints else ()
        raise ShapeError(
            Message(
                f"The symbolic scopes of {name}'s arguments", *also, f" do not go together: {e}"
            )
        ) from e


def _check_names(specs: Specs, options: ExportOptions) -> None:
    """Raises where constraints speak of what no argument has, and no equality defines."""
    defined = [c.variables() for c in options.scope.constraints if c.operator == "=="]
    unknown = options.scope.variables() - specs.variables()
    if specs.decided:
        unknown -= frozenset[str]().union(*defined)
    if not unknown:
        return
    names = ", ".join(sorted(unknown))
    given = Message(
        Argument(CONSTRAINTS.name, list(options.constraints)),
        f" speak of {names}, which no entry of ",
        SHAPES,
        " names",
    )
    if specs.decided:
        known = ", ".join(sorted(specs.variables())) or "none"
        raise ShapeError(Message(given, f". The variables there: {known}."))
    raise ShapeError(
        Message(
            given,
            ": ",
            AUTO_SHAPES,
            " names its variables itself. Write the entry yourself, or pass ",
            INFER,
            ".",
        )
    )
