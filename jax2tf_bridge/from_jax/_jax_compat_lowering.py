"""Private names of JAX for the bridge's lowering rules.

Each name is looked up on use, and a release without one works as described in `SEAM`.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
from jax import export as jax_export
from jax.interpreters import mlir

from jax2tf_bridge._utils import SeamName

# Receives an array that JAX lowers as a constant; returns its value in the module, or None.
TakeConstant = Callable[[Any], Any]

_TAKE: ContextVar[TakeConstant | None] = ContextVar("jax2tf_bridge_take_constant", default=None)
_ARRAYS = frozenset({"ndarray", "ArrayImpl", "TypedNdArray"})

# A lowering rule receives the context, the operands' values and the primitive's parameters.
Rule = Callable[..., Sequence[Any]]

_NO_RULES = (
    "JAX's own lowering rules are used for all: linear algebra that they lower to custom calls "
    "cannot be exported, and older StableHLO versions cannot be chosen for gathers"
)
_GEQRF = SeamName(
    "jax._src.lax.linalg", "geqrf_p", "0.8 to 0.12", "every qr stays a call that is refused"
)
_GEQP3 = SeamName(
    "jax._src.lax.linalg",
    "geqp3_p",
    "0.8 to 0.12",
    "a qr with pivoting stays a call that is refused",
)
_RAGGED = SeamName(
    "jax._src.lax.lax",
    "ragged_dot_general_p",
    "0.8 to 0.12",
    "ragged contractions stay operations of CHLO: refused for GPU and TPU by JAX 0.8, and in open "
    "batches by later ones",
)
_REDUCE_SCATTER = SeamName(
    "jax._src.lax.parallel",
    "reduce_scatter_p",
    "0.8 to 0.12",
    "over an axis of one device, psum_scatter and the gradient of all_gather fail at open sizes",
)
_COMPOSITE = SeamName(
    "jax._src.lax.lax",
    "composite_p",
    "0.8 to 0.12",
    "before 0.12, composites are refused for several platforms at once",
)
_PURE_CALLBACK = SeamName(
    "jax._src.callback",
    "pure_callback_p",
    "0.8 to 0.12",
    "calls back to Python within primitives of libraries are refused in JAX's words, and checks of "
    "values there cannot be left out",
)
_IO_CALLBACK = SeamName(
    "jax._src.callback",
    "io_callback_p",
    "0.8 to 0.12",
    "calls back to Python within primitives of libraries are refused in JAX's words",
)
_PLATFORMS = SeamName("jax._src.interpreters.mlir", "_platforms_for_eqn", "0.8 to 0.12", _NO_RULES)
_PER_PLATFORM = SeamName(
    "jax._src.interpreters.mlir", "lower_per_platform", "0.8 to 0.12", _NO_RULES
)
_RULES = SeamName("jax._src.interpreters.mlir", "_lowerings", "0.8 to 0.12", _NO_RULES)
_PLATFORM_RULES = SeamName(
    "jax._src.interpreters.mlir", "_platform_specific_lowerings", "0.8 to 0.12", _NO_RULES
)
_CUSTOM_CALL = SeamName(
    "jax._src.interpreters.mlir",
    "custom_call",
    "0.8 to 0.12",
    "eigh of a small matrix is lowered as that of larger ones",
)
_DYNAMIC_SHAPE = SeamName(
    "jax._src.interpreters.mlir",
    "eval_dynamic_shape_as_tensor",
    "0.8 to 0.12",
    _CUSTOM_CALL.without,
)

_CONSTANTS = SeamName(
    "jax._src.interpreters.mlir",
    "_constant_handlers",
    "0.8 to 0.12",
    "large arrays that a function captures are written into the module and read from it again, "
    "which takes several times their memory",
)
_CONVENTION = SeamName(
    "jax._src.config",
    "jax_export_calling_convention_version",
    "0.8 to 0.12",
    "every export fails where JAX's flag of this name asks for a version that JAX does not write",
)

SEAM: Sequence[SeamName] = (
    _GEQRF,
    _GEQP3,
    _RAGGED,
    _REDUCE_SCATTER,
    _COMPOSITE,
    _PURE_CALLBACK,
    _IO_CALLBACK,
    _PLATFORMS,
    _PER_PLATFORM,
    _RULES,
    _PLATFORM_RULES,
    _CUSTOM_CALL,
    _DYNAMIC_SHAPE,
    _CONSTANTS,
    _CONVENTION,
)

# Half of qr, which jax.lax.linalg has as one.
geqrf_p: Any = _GEQRF.get()

# Half of qr with pivoting.
geqp3_p: Any = _GEQP3.get()

# In jax.lax only as functions.
ragged_dot_general_p: Any = _RAGGED.get()

# The primitive behind psum_scatter.
reduce_scatter_p: Any = _REDUCE_SCATTER.get()

# In jax.lax only as a function.
composite_p: Any = _COMPOSITE.get()

# From 0.9 on the first parameter is the module context.
_AVAL_TO_IR_TAKES_CONTEXT = len(inspect.signature(mlir.aval_to_ir_type).parameters) == 2


def rules_possible() -> bool:
    """Checks that JAX has what every rule of the bridge needs."""
    needed = (_PLATFORMS, _PER_PLATFORM, _RULES, _PLATFORM_RULES)
    return all(name.get() is not None for name in needed)


def callback_primitives() -> tuple[Any, ...]:
    """Lists JAX's primitives that call back to Python and return values."""
    primitives = (_PURE_CALLBACK.get(), _IO_CALLBACK.get())
    return tuple(p for p in primitives if p is not None)


def has_primitive(name: str) -> bool:
    """Checks that this JAX has a primitive of this seam, as "geqrf_p"."""
    return any(each.name == name and each.get() is not None for each in SEAM)


def custom_calls_possible() -> bool:
    """Checks that `custom_call` can make rules."""
    return _CUSTOM_CALL.get() is not None and _DYNAMIC_SHAPE.get() is not None


def lower_fun(function: Callable[..., Any], *, multiple_results: bool = True) -> Rule:
    """Makes a lowering rule that traces `function`, written in jax.lax, and lowers its equations.

    The overrides of the export apply to these equations too.
    """

    @functools.wraps(function)
    def traced(*args: Any, **params: Any) -> Any:
        # The user's strictness about promotion does not apply to our code.
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **params)

    rule: Rule = mlir.lower_fun(traced, multiple_results=multiple_results)
    return rule


def platforms_of(ctx: Any) -> tuple[str, ...]:
    """Lists the platforms that an equation is lowered for; one in a platform-dependent branch."""
    return tuple(_PLATFORMS.get()(ctx))


def jax_rule(primitive: Any, platform: str) -> Rule | None:
    """Returns JAX's rule for `primitive` on `platform`, or None."""
    entry = _PLATFORM_RULES.get()[platform].get(primitive)
    if entry is None:
        entry = _RULES.get().get(primitive)
    return None if entry is None else entry.rule


def lower_by_platform(
    ctx: Any, primitive: Any, rules: Mapping[str, Rule], *args: Any, **params: Any
) -> Sequence[Any]:
    """Lowers one equation with `rules` by platform; other platforms use JAX's own rules.

    Platforms with the same rule share a branch; without other platforms there is no branch.

    Raises:
      NotImplementedError: a platform has no rule, neither in `rules` nor in JAX.
    """
    chosen = {p: rules.get(p) or jax_rule(primitive, p) for p in platforms_of(ctx)}
    known = {p: rule for p, rule in chosen.items() if rule is not None}
    if len(known) < len(chosen):
        specific, default = known, None  # JAX's error names the remaining platforms
    else:
        counts = Counter(id(rule) for rule in known.values())
        default = max(known.values(), key=lambda rule: counts[id(rule)])
        specific = {p: rule for p, rule in known.items() if rule is not default}
    outputs: Sequence[Any] = _PER_PLATFORM.get()(
        ctx, str(primitive), specific, default, frozenset(), *args, **params
    )
    return outputs


def by_platform(primitive: Any, rules: Mapping[str, Rule]) -> Rule:
    """Makes a lowering rule that calls `lower_by_platform`."""
    return functools.partial(_lower_by_platform_rule, primitive, dict(rules))


def _lower_by_platform_rule(
    primitive: Any, rules: Mapping[str, Rule], ctx: Any, *args: Any, **params: Any
) -> Sequence[Any]:
    return lower_by_platform(ctx, primitive, rules, *args, **params)


def custom_call(target: str, backend_config: str = "") -> Rule:
    """Makes a rule that emits the custom call `target` with the equation's operands and results.

    XLA must expand the target on every platform. Results of symbolic shape get their shapes as
    operands, as jax.export requires.
    """

    def rule(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        del params
        avals = ctx.avals_out
        static = all(isinstance(d, int) for aval in avals for d in aval.shape)
        op = _CUSTOM_CALL.get()(
            target,
            result_types=[_ir_type(ctx, aval) for aval in avals],
            operands=list(operands),
            backend_config=backend_config,
            api_version=1,
            result_shapes=None
            if static
            else [_DYNAMIC_SHAPE.get()(ctx, aval.shape) for aval in avals],
        )
        return list(op.results)

    return rule


def _ir_type(ctx: Any, aval: Any) -> Any:
    convert: Callable[..., Any] = mlir.aval_to_ir_type
    if _AVAL_TO_IR_TAKES_CONTEXT:
        return convert(ctx.module_context, aval)
    return convert(aval)


def common_rule(primitive: Any) -> Rule:
    """Returns JAX's rule for `primitive` on every platform without a rule of its own."""
    rule: Rule = _RULES.get()[primitive].rule
    return rule


@contextmanager
def constants_taken(take: TakeConstant) -> Iterator[None]:
    """Makes JAX call `take` first for each array that it lowers as a constant in this context.

    JAX's own handlers are unchanged elsewhere.
    """
    handlers = _CONSTANTS.get()
    if handlers is None:
        yield
        return
    for kind, handler in list(handlers.items()):
        if kind.__name__ in _ARRAYS and not isinstance(handler, _ConstantHandler):
            handlers[kind] = _ConstantHandler(handler)
    token = _TAKE.set(take)
    try:
        yield
    finally:
        _TAKE.reset(token)


@dataclass(frozen=True)
class _ConstantHandler:
    """Handler of constants of a type, which calls the function of `constants_taken`, then JAX's."""

    plain: Callable[..., Any]

    def __call__(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        take = _TAKE.get()
        taken = None if take is None else take(value)
        return self.plain(value, *args, **kwargs) if taken is None else taken


@contextmanager
def newest_calling_convention() -> Iterator[None]:
    """Makes JAX export with its newest calling convention; the bridge lowers it afterwards."""
    version = _CONVENTION.get()
    if version is None:
        yield
        return
    with version(jax_export.maximum_supported_calling_convention_version):
        yield
