"""Private names of JAX that the tracing side uses, and what stands for them where it is public.

Each private name is looked up when it is needed, so that a JAX release without it still works
as `SEAM` says.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.mlir as portable_artifacts
from jax import export as jax_export
from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters.mlir import make_ir_context

from jax2tf_bridge._utils import SeamName
from jax2tf_bridge.targets import PLATFORMS

try:
    from jax.errors import InconclusiveDimensionOperation
except ImportError:  # JAX 0.8
    from jax.core import InconclusiveDimensionOperation  # type: ignore[attr-defined,no-redef]

__all__ = [
    "SEAM",
    "InconclusiveDimensionOperation",
    "configuration",
    "current_stablehlo_version",
    "deserialize_module",
    "inside_transformation",
    "ir",
    "jit_shardings",
    "known_platforms",
    "make_ir_context",
    "module_bytecode",
    "run_passes",
    "serialize_module",
    "source_of_equation",
    "static_arguments",
    "with_vjp_made_by",
]

_TRACE_STATE = SeamName(
    "jax._src.core",
    "trace_state_clean",
    "0.8 to 0.12",
    "convert inside a JAX transformation is not refused with a message of ours",
)
_TRACE_CONTEXT = SeamName(
    "jax._src.config",
    "trace_context",
    "0.8 to 0.12",
    "of JAX's configuration only the public flags that change types and precision are compared",
)
_KNOWN_PLATFORMS = SeamName(
    "jax._src.xla_bridge",
    "known_platforms",
    "0.8 to 0.12",
    "platforms of plug-ins are refused as unknown",
)
_SUMMARIZE = SeamName(
    "jax._src.source_info_util",
    "summarize",
    "0.8 to 0.12",
    "messages about a primitive name no source line",
)

SEAM: Sequence[SeamName] = (_TRACE_STATE, _TRACE_CONTEXT, _KNOWN_PLATFORMS, _SUMMARIZE)

_JIT_INFO = "_jit_info"
"""An attribute of jitted functions, in 0.8 to 0.12; without it static arguments are not seen."""

_GET_VJP = "_get_vjp"
"""A field of jax.export.Exported, in 0.8 to 0.12; without it VJPs are made before they are asked
for."""

_PARAMS = "_params"
"""An attribute of jax.stages.Traced, in 0.8 to 0.12; without it a sharded function with 4-bit
integers as arguments loses its shardings, and in 0.8 and 0.9 a gradient takes the first devices."""


def inside_transformation() -> bool:
    """Returns whether a JAX transformation (jit, grad, vmap) is tracing in this thread."""
    clean = _TRACE_STATE.get()
    return clean is not None and not clean()


def configuration() -> Any:
    """Returns a hashable value that changes with what of JAX's configuration changes a trace."""
    trace_context: Callable[[], Any] | None = _TRACE_CONTEXT.get()
    if trace_context is not None:
        return trace_context()
    config: Any = jax.config
    return (
        config.jax_enable_x64,
        config.jax_default_matmul_precision,
        config.jax_numpy_dtype_promotion,
    )


def known_platforms() -> tuple[str, ...]:
    """Lists the platforms: the built-in ones first, then those of plug-ins."""
    registered: Callable[[], set[str]] | None = _KNOWN_PLATFORMS.get()
    others = sorted(registered() - {*PLATFORMS, "gpu"}) if registered is not None else []
    return (*PLATFORMS, *others)


def static_arguments(function: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Returns the positions and names of the static arguments of a jitted function."""
    info = getattr(function, _JIT_INFO, None)
    numbers = getattr(info, "static_argnums", None) or ()
    names = getattr(info, "static_argnames", None) or ()
    return frozenset(numbers), frozenset(names)


def jit_shardings(traced: Any) -> dict[str, Any]:
    """Returns the shardings of the jit that was traced, flat, as arguments of another jit."""
    params = getattr(traced, _PARAMS, {})
    return {k: params[k] for k in ("in_shardings", "out_shardings") if k in params}


def source_of_equation(equation: Any) -> str | None:
    """Finds the user's line that made an equation, as "file:line (function)", if known."""
    summarize: Callable[[Any], str] | None = _SUMMARIZE.get()
    source = getattr(equation, "source_info", None)
    return summarize(source) if summarize is not None and source is not None else None


def with_vjp_made_by(
    exported: jax_export.Exported, make: Callable[[], jax_export.Exported]
) -> jax_export.Exported | None:
    """Gives `exported` a VJP that is made when it is asked for; None where that cannot be."""
    if _GET_VJP not in {field.name for field in dataclasses.fields(exported)}:
        return None
    made: dict[str, Any] = {_GET_VJP: lambda _: make()}
    return dataclasses.replace(exported, **made)


def current_stablehlo_version() -> tuple[int, int, int]:
    """Returns the StableHLO version of the installed jaxlib."""
    major, minor, patch = (int(p) for p in stablehlo.get_current_version().split("."))
    return major, minor, patch


def deserialize_module(artifact: bytes) -> Any:
    """Reads the ir.Module of a portable artifact, in the current MLIR context."""
    module = portable_artifacts.deserialize_portable_artifact(artifact)
    # JAX 0.8 gives the module's text.
    return module if isinstance(module, ir.Module) else ir.Module.parse(module)


def serialize_module(module: Any, version: str) -> bytes:
    """Writes a portable artifact at the StableHLO `version`; Shardy attributes are kept."""
    try:
        result = portable_artifacts.serialize_portable_artifact(module, version, False)
    except TypeError:
        # JAX 0.8 takes the module as bytecode.
        bytecode = module_bytecode(module)
        result = portable_artifacts.serialize_portable_artifact(bytecode, version, False)
    return bytes(result)


def module_bytecode(module: Any) -> bytes:
    """Writes `module` as MLIR bytecode, for this process only: it has no stable version."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(file=buffer)
    return buffer.getvalue()


def run_passes(module: Any, pipeline: str) -> None:
    """Runs an MLIR pass pipeline over `module` in place; StableHLO's passes are known."""
    stablehlo.register_stablehlo_passes()
    passmanager.PassManager.parse(pipeline).run(module.operation)
