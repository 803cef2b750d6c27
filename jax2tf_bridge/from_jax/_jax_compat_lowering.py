"""Private names of JAX for lowering: rules, constants, and modules that JAX has lowered.

Each name is looked up on use, and a release without one works as described in `SEAM`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import signature
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

_RELEASES = "0.8 to 0.12"
_MLIR = "jax._src.interpreters.mlir"
_NO_RULES = (
    "JAX's own lowering rules are used for all: linear algebra that they lower to custom calls "
    "cannot be exported, and older StableHLO versions cannot be chosen for gathers"
)
_NO_CUSTOM_CALLS = "eigh of a small matrix is lowered like that of a large one"
_PLATFORMS = SeamName(_MLIR, "_platforms_for_eqn", _RELEASES, _NO_RULES)
_PER_PLATFORM = SeamName(_MLIR, "lower_per_platform", _RELEASES, _NO_RULES)
_RULES = SeamName(_MLIR, "_lowerings", _RELEASES, _NO_RULES)
_PLATFORM_RULES = SeamName(_MLIR, "_platform_specific_lowerings", _RELEASES, _NO_RULES)
_CUSTOM_CALL = SeamName(_MLIR, "custom_call", _RELEASES, _NO_CUSTOM_CALLS)
_DYNAMIC_SHAPE = SeamName(_MLIR, "eval_dynamic_shape_as_tensor", _RELEASES, _NO_CUSTOM_CALLS)
_CONSTANTS = SeamName(
    _MLIR,
    "_constant_handlers",
    _RELEASES,
    "large arrays that a function captures are written into the module and read from it again, "
    "which takes several times their memory",
)
_CONVENTION = SeamName(
    "jax._src.config",
    "jax_export_calling_convention_version",
    _RELEASES,
    "every export fails if JAX's flag of this name requests a version that JAX cannot write",
)
_READ = "modules are written as portable artifacts by JAX and read again by the bridge"
_EXPORT = SeamName("jax._src.export._export", "_export_lowered", _RELEASES, _READ)
_WRITE = SeamName("jax._src.export._export", "_module_to_bytecode", _RELEASES, _READ)
_CONTEXT = SeamName(_MLIR, "make_ir_context", _RELEASES, _READ)

SEAM: Sequence[SeamName] = (
    # The first step of qr; jax.lax.linalg has only the whole decomposition.
    SeamName(
        "jax._src.lax.linalg",
        "geqrf_p",
        _RELEASES,
        "every qr remains a custom call, which is refused",
    ),
    SeamName(
        "jax._src.lax.linalg",
        "geqp3_p",
        _RELEASES,
        "every qr with pivoting remains a custom call, which is refused",
    ),
    # jax.lax has functions for the other primitives.
    SeamName(
        "jax._src.lax.lax",
        "ragged_dot_general_p",
        _RELEASES,
        "ragged contractions remain CHLO operations, which JAX 0.8 refuses for GPU and TPU, and "
        "later releases for open batch sizes",
    ),
    SeamName(
        "jax._src.lax.parallel",
        "reduce_scatter_p",
        _RELEASES,
        "over a mesh axis of size 1, psum_scatter and the gradient of all_gather fail for open "
        "sizes",
    ),
    SeamName(
        "jax._src.lax.lax",
        "composite_p",
        _RELEASES,
        "JAX before 0.12 refuses composites in an export for several platforms",
    ),
    SeamName(
        "jax._src.callback",
        "pure_callback_p",
        _RELEASES,
        "callbacks to Python inside primitives of libraries are refused with JAX's message, and "
        "checks of values there cannot be dropped",
    ),
    SeamName(
        "jax._src.callback",
        "io_callback_p",
        _RELEASES,
        "callbacks to Python inside primitives of libraries are refused with JAX's message",
    ),
    *(_PLATFORMS, _PER_PLATFORM, _RULES, _PLATFORM_RULES),
    *(_CUSTOM_CALL, _DYNAMIC_SHAPE, _CONSTANTS, _CONVENTION, _EXPORT, _WRITE, _CONTEXT),
)


def can_override_rules() -> bool:
    """Returns whether JAX has what every rule of the bridge needs."""
    needed = (_PLATFORMS, _PER_PLATFORM, _RULES, _PLATFORM_RULES)
    return all(name.get() is not None for name in needed)


def find_primitive(name: str) -> Any:
    """Returns a primitive of this seam, such as "geqrf_p"; None if this JAX lacks it."""
    return next(entry.get() for entry in SEAM if entry.name == name)


def can_make_custom_calls() -> bool:
    """Returns whether `lower_to_custom_call` works."""
    return _CUSTOM_CALL.get() is not None and _DYNAMIC_SHAPE.get() is not None


def lower_fun(function: Callable[..., Any]) -> Rule:
    """Makes a lowering rule that traces `function`, written in jax.lax, and lowers its equations.

    `function` returns an array, or a list or tuple of them. The overrides of the export apply to
    these equations too.
    """

    @functools.wraps(function)
    def run(*args: Any, **params: Any) -> Sequence[Any]:
        # The user's strictness about promotion does not apply to our code.
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            results = function(*args, **params)
        return results if isinstance(results, (list, tuple)) else [results]

    rule: Rule = mlir.lower_fun(run, multiple_results=True)
    return rule


def list_platforms(ctx: Any) -> tuple[str, ...]:
    """Lists the platforms of an equation; a platform-dependent branch has only one."""
    return tuple(_PLATFORMS.get()(ctx))


def find_jax_rule(primitive: Any, platform: str) -> Rule | None:
    """Returns JAX's rule for `primitive` on `platform`, or None."""
    entry = _PLATFORM_RULES.get()[platform].get(primitive)
    if entry is None:
        entry = _RULES.get().get(primitive)
    return None if entry is None else entry.rule


def lower_by_platform(
    primitive: Any, rules: Mapping[str, Rule], ctx: Any, *args: Any, **params: Any
) -> Sequence[Any]:
    """Lowers one equation with `rules` by platform; other platforms use JAX's own rules.

    Platforms with the same rule share a branch; without other platforms there is no branch.

    Raises:
      NotImplementedError: a platform has no rule, neither in `rules` nor in JAX.
    """
    chosen = {p: rules.get(p) or find_jax_rule(primitive, p) for p in list_platforms(ctx)}
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


def make_platform_rule(primitive: Any, rule: Rule, platforms: Iterable[str]) -> Rule:
    """Makes a lowering rule that applies `rule` on some platforms, and JAX's own on others."""
    return functools.partial(lower_by_platform, primitive, dict.fromkeys(platforms, rule))


def lower_to_custom_call(
    ctx: Any, target: str, *operands: Any, backend_config: str = ""
) -> Sequence[Any]:
    """Emits the custom call `target` with the results of the equation.

    XLA must expand the target on every platform. Results of symbolic shape get their shapes as
    operands, as jax.export requires.
    """
    avals = ctx.avals_out
    static = all(isinstance(d, int) for aval in avals for d in aval.shape)
    shapes = None if static else [_DYNAMIC_SHAPE.get()(ctx, aval.shape) for aval in avals]
    to_type: Callable[..., Any] = mlir.aval_to_ir_type
    # From JAX 0.9 on the first parameter is the module context.
    context = (ctx.module_context,) if len(signature(to_type).parameters) == 2 else ()
    op = _CUSTOM_CALL.get()(
        target,
        result_types=[to_type(*context, aval) for aval in avals],
        operands=list(operands),
        backend_config=backend_config,
        api_version=1,
        result_shapes=shapes,
    )
    return list(op.results)


def find_common_rule(primitive: Any) -> Rule:
    """Returns JAX's rule for `primitive` on the platforms that have no specific rule."""
    rule: Rule = _RULES.get()[primitive].rule
    return rule


@contextmanager
def take_constants(take: TakeConstant) -> Iterator[None]:
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
    """Handler of constants; calls the function of `take_constants` first, then JAX's handler."""

    jax_handler: Callable[..., Any]

    def __call__(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        take = _TAKE.get()
        taken = None if take is None else take(value)
        return self.jax_handler(value, *args, **kwargs) if taken is None else taken


@contextmanager
def newest_calling_convention() -> Iterator[None]:
    """Makes JAX export with its newest calling convention; the bridge lowers it afterwards."""
    version = _CONVENTION.get()
    if version is None:
        yield
        return
    with version(jax_export.maximum_supported_calling_convention_version):
        yield


# Taking a module before JAX serializes it saves reading it again. JAX's functions are replaced
# until the process ends. The replacements behave like the originals unless a module is taken in
# their context.


@dataclass
class TakenModule:
    """Slot for the ir.Module of a trace that is being exported.

    Attributes:
      traced: the trace.
      module: the module; None until JAX has made it, or if it is not available.
      context: the MLIR context of the module, which JAX would otherwise leave.
    """

    traced: jax.stages.Traced
    module: Any = None
    context: Any = None
    _write: Callable[[], bytes] | None = None

    def artifact(self) -> bytes:
        """Returns the portable artifact that JAX would have written, if the module is available."""
        assert self._write is not None
        return self._write()


_WAITING: ContextVar[TakenModule | None] = ContextVar("jax2tf_bridge_waiting", default=None)
_LOWERED: ContextVar[TakenModule | None] = ContextVar("jax2tf_bridge_lowered", default=None)


@contextmanager
def take_module(traced: jax.stages.Traced) -> Iterator[TakenModule]:
    """Takes the module of `traced` if the block exports it; the Exported then has no bytes."""
    taken = TakenModule(traced)
    installed = [_EXPORT.wrap(_Export), _WRITE.wrap(_Write), _CONTEXT.wrap(_MakeContext)]
    token = _WAITING.set(taken if all(installed) else None)
    try:
        yield taken
    finally:
        _WAITING.reset(token)


@dataclass(frozen=True)
class _Export:
    """Replacement of JAX's function that makes an Exported of a lowered trace."""

    name: str
    original: Callable[..., Any]

    def __call__(self, lowered: Any, jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        taken = _WAITING.get()
        # A lowering rule of the user may start another export.
        if taken is None or jaxpr is not taken.traced.jaxpr:
            return self.original(lowered, jaxpr, *args, **kwargs)
        taken.context = lowered.compiler_ir("stablehlo").context
        token = _LOWERED.set(taken)
        try:
            return self.original(lowered, jaxpr, *args, **kwargs)
        finally:
            _LOWERED.reset(token)


@dataclass(frozen=True)
class _Write:
    """Replacement of JAX's function that serializes a module, which is its last step."""

    name: str
    original: Callable[..., bytes]

    def __call__(self, module: Any, *args: Any, **kwargs: Any) -> bytes:
        taken = _LOWERED.get()
        if taken is None:
            return self.original(module, *args, **kwargs)
        taken.module = module
        taken._write = lambda: self.original(module, *args, **kwargs)
        return b""


@dataclass(frozen=True)
class _MakeContext:
    """Replacement of JAX's function that makes an MLIR context; JAX then copies the module there.

    Returns the context of the module itself if the module is taken.
    """

    name: str
    original: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        taken = _LOWERED.get()
        return self.original(*args, **kwargs) if taken is None else taken.context
