"""Private names of JAX for tracing, with public replacements if there are any.

Each private name is looked up on use, so that a JAX release without it works as described in
`SEAM`.

`AnsweringScope` answers questions about sizes while JAX traces. Two functions of JAX are replaced
for that until the process ends, because JAX looks them up in their modules. The replacement calls
the original, and asks the scope if that raises.
"""

from __future__ import annotations

import dataclasses
import io
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.mlir as portable_artifacts
from jax import export as jax_export
from jax.extend.mlir import ir as ir
from jax.extend.mlir import passmanager
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters.mlir import make_ir_context as make_ir_context

from jax2tf_bridge._utils import SeamName
from jax2tf_bridge.targets import PLATFORMS

try:
    from jax.errors import InconclusiveDimensionOperation as InconclusiveDimensionOperation
except ImportError:  # JAX 0.8
    from jax.core import (  # type: ignore[attr-defined,no-redef]
        InconclusiveDimensionOperation as InconclusiveDimensionOperation,
    )

_RELEASES = "0.8 to 0.12"
_TRACE_STATE = SeamName(
    "jax._src.core",
    "trace_state_clean",
    _RELEASES,
    "convert inside a JAX transformation is not refused with a message of ours",
)
_TRACE_CONTEXT = SeamName(
    "jax._src.config",
    "trace_context",
    _RELEASES,
    "only the public flags of JAX's configuration that change types and precision are compared",
)
_KNOWN_PLATFORMS = SeamName(
    "jax._src.xla_bridge",
    "known_platforms",
    _RELEASES,
    "platforms of plug-ins are refused as unknown",
)
_SUMMARIZE = SeamName(
    "jax._src.source_info_util",
    "summarize",
    _RELEASES,
    "messages about a primitive name no source line",
)


_IN_ROUNDS = "{} stop the trace even if the answer is proven, and the function is traced again"
_DECISIONS = (
    SeamName(
        "jax._src.export.shape_poly",
        "_geq_decision",
        _RELEASES,
        _IN_ROUNDS.format("comparisons by size"),
    ),
    SeamName(
        "jax._src.core",
        "divide_shape_sizes",
        _RELEASES,
        _IN_ROUNDS.format("reshapes with a size that JAX computes"),
    ),
)

SEAM: Sequence[SeamName] = (
    *(_TRACE_STATE, _TRACE_CONTEXT, _KNOWN_PLATFORMS, _SUMMARIZE),
    *_DECISIONS,
)

_JIT_INFO = "_jit_info"
"""Attribute of jitted functions in 0.8 to 0.12; without it static arguments are not detected."""

_EQUATION = "eqn"
"""Local variable of the function in 0.8 to 0.12 that lowers a jaxpr; without it an error in a
function that JAX jits itself names the line of the user's function, not that of the call."""

_GET_VJP = "_get_vjp"
"""Field of jax.export.Exported in 0.8 to 0.12; without it VJPs are not made on demand."""

_PARAMS = "_params"
"""Attribute of jax.stages.Traced in 0.8 to 0.12; without it a sharded function with 4-bit integer
arguments loses its shardings, and in 0.8 and 0.9 a gradient uses the first devices."""


def is_inside_transformation() -> bool:
    """Returns whether a JAX transformation (jit, grad, vmap) is tracing in this thread."""
    clean = _TRACE_STATE.get()
    return clean is not None and not clean()


def configuration() -> Any:
    """Returns a hashable value of the configuration that affects traces."""
    trace_context: Callable[[], Any] | None = _TRACE_CONTEXT.get()
    if trace_context is not None:
        return trace_context()
    config: Any = jax.config
    return (
        config.jax_enable_x64,
        config.jax_default_matmul_precision,
        config.jax_numpy_dtype_promotion,
    )


def list_known_platforms() -> tuple[str, ...]:
    """Lists the platforms: first the built-in ones, then those of plug-ins."""
    registered: Callable[[], set[str]] | None = _KNOWN_PLATFORMS.get()
    others = sorted(registered() - {*PLATFORMS, "gpu"}) if registered is not None else []
    return (*PLATFORMS, *others)


def read_static_arguments(function: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Returns the positions and names of the static arguments of a jitted function."""
    info = getattr(function, _JIT_INFO, None)
    numbers = getattr(info, "static_argnums", None) or ()
    names = getattr(info, "static_argnames", None) or ()
    return frozenset(numbers), frozenset(names)


def read_jit_shardings(traced: Any) -> dict[str, Any]:
    """Returns the flat shardings of a traced jit, for use as arguments of another jit."""
    params = getattr(traced, _PARAMS, {})
    return {k: params[k] for k in ("in_shardings", "out_shardings") if k in params}


def find_source_of_equation(equation: Any) -> str | None:
    """Finds the line outside of JAX that made an equation, as "file:line (function)", if known."""
    summarize: Callable[[Any], str] | None = _SUMMARIZE.get()
    source = getattr(equation, "source_info", None)
    line = summarize(source) if summarize is not None and source is not None else "unknown"
    return None if line == "unknown" else line


def iter_equations_of_frames(error: BaseException) -> Iterator[Any]:
    """Yields the equations that JAX was working on when an error was raised, outermost first."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        equation = frame.f_locals.get(_EQUATION)
        if hasattr(equation, "source_info") and hasattr(equation, "params"):
            yield equation


def attach_vjp(
    exported: jax_export.Exported, make: Callable[[], jax_export.Exported]
) -> jax_export.Exported | None:
    """Gives `exported` a VJP that is made on demand; returns None if that is not possible."""
    if _GET_VJP not in {field.name for field in dataclasses.fields(exported)}:
        return None
    field: dict[str, Any] = {_GET_VJP: lambda _: make()}
    return dataclasses.replace(exported, **field)


def get_stablehlo_version() -> tuple[int, int, int]:
    """Returns the StableHLO version of the installed jaxlib."""
    major, minor, patch = (int(p) for p in stablehlo.get_current_version().split("."))
    return major, minor, patch


def deserialize_module(artifact: bytes) -> Any:
    """Reads the ir.Module of a portable artifact, in the current MLIR context."""
    module = portable_artifacts.deserialize_portable_artifact(artifact)
    # JAX 0.8 returns the module's text.
    return module if isinstance(module, ir.Module) else ir.Module.parse(module)


def serialize_module(module: Any, version: str = "", *, mixed: bool = False) -> bytes:
    """Writes a portable artifact at the StableHLO `version`; Shardy attributes are kept.

    By default the version is that of the installed jaxlib. A mixed artifact may also hold Shardy
    operations.
    """
    version = version or stablehlo.get_current_version()
    try:
        result = portable_artifacts.serialize_portable_artifact(module, version, mixed)
    except TypeError:
        # JAX 0.8 accepts the module as bytecode.
        bytecode = write_bytecode(module)
        result = portable_artifacts.serialize_portable_artifact(bytecode, version, mixed)
    return bytes(result)


def write_bytecode(module: Any) -> bytes:
    """Writes `module` as MLIR bytecode, which is unstable and only for this process."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(file=buffer)
    return buffer.getvalue()


def run_mlir_passes(module: Any, pipeline: str) -> None:
    """Runs an MLIR pass pipeline over `module` in place; StableHLO's passes are available."""
    stablehlo.register_stablehlo_passes()
    passmanager.PassManager.parse(pipeline).run(module.operation)


Answer = Callable[[Exception], Iterable[Sequence[str]]]
"""Receives JAX's error; returns sets of constraints. JAX retries with the first that it accepts."""


class AnsweringScope(jax_export.SymbolicScope):
    """JAX's symbolic scope, extended by answers to questions about its sizes until it is closed.

    Sizes of other scopes are not affected.
    """

    def __init__(self, constraints: Sequence[str], answer: Answer) -> None:
        self._bridge_answer: Answer | None = answer
        self._bridge_constraints = tuple(constraints)
        self._bridge_asked = frozenset(name.name for name in _DECISIONS if name.wrap(_Decision))
        super().__init__(constraints)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as JAX's scope, which can be read without the bridge."""
        return jax_export.SymbolicScope, (self._bridge_constraints,)

    def close(self) -> None:
        """Leaves further questions unanswered."""
        self._bridge_answer = None

    def take_answer(self, asked: str, error: Exception) -> bool:
        """Adds constraints that answer JAX's `error`, if there are any."""
        if self._bridge_answer is None or asked not in self._bridge_asked:
            return False
        return any(map(self._try_constraints, self._bridge_answer(error)))

    def _try_constraints(self, constraints: Sequence[str]) -> bool:
        # In place, because the existing sizes belong to this object.
        try:
            super().__init__(constraints)
        except Exception:  # JAX rejects constraints with errors of many types
            super().__init__(self._bridge_constraints)
            return False
        self._bridge_constraints = tuple(constraints)
        return True


@dataclasses.dataclass(frozen=True)
class _Decision:
    """Replacement of JAX's function that decides about sizes; asks an AnsweringScope."""

    name: str
    original: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return self.original(*args, **kwargs)
            except InconclusiveDimensionOperation as e:
                scope = _find_scope((*args, *kwargs.values()))
                if not isinstance(scope, AnsweringScope) or not scope.take_answer(self.name, e):
                    raise


def _find_scope(args: Sequence[Any]) -> jax_export.SymbolicScope | None:
    sizes = [size for arg in args for size in (arg if isinstance(arg, (tuple, list)) else (arg,))]
    return next((size.scope for size in sizes if jax_export.is_symbolic_dim(size)), None)
