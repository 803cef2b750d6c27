"""Lowers one trace for all platforms that work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import export as jax_export
from jax.extend.core import Primitive

from jax2tf_bridge.errors import (
    BridgeError,
    Message,
    NotExportableError,
    PlatformError,
    ShapeError,
    ShardingError,
    UnsupportedByTargetError,
    format_bullets,
)
from jax2tf_bridge.from_jax._jax_compat_lowering import (
    TakenModule,
    newest_calling_convention,
    take_constants,
    take_module,
)
from jax2tf_bridge.from_jax.lowering._calls import make_graph_call_rules, take_graph_functions
from jax2tf_bridge.from_jax.lowering._effects import make_callback_rules
from jax2tf_bridge.from_jax.lowering._options import ExportOptions
from jax2tf_bridge.from_jax.lowering._rules import make_lowering_overrides
from jax2tf_bridge.from_jax.lowering._tracing import trace_with_wide_dtypes
from jax2tf_bridge.from_jax.source_lines import (
    format_place,
    iter_equation_paths,
    user_line_of_equation,
)
from jax2tf_bridge.from_jax.stablehlo import (
    PLACEHOLDER_TARGET,
    ModuleOperation,
    StableHloModule,
    TakenArrays,
    check_one_device,
)
from jax2tf_bridge.portable import GraphFunction, no_handler_text
from jax2tf_bridge.targets import NO_XLA, PLATFORMS, Target

_UNSOLVABLE = "Cannot solve for values of dimension variables"


@dataclass(frozen=True)
class LoweredModule:
    """A lowered module, the functions it calls, and the default platforms it cannot run on.

    Attributes:
      exported: JAX's result; it has no module, or one without the captured arrays.
      module: the module, rewritten for the target.
      captured: large arrays that must be passed to the module.
      graph_functions: the TensorFlow graphs that the module calls.
      dropped_platforms: (platform, reason) pairs.
    """

    exported: jax_export.Exported
    module: StableHloModule
    captured: TakenArrays
    graph_functions: tuple[GraphFunction, ...] = ()
    dropped_platforms: tuple[tuple[str, str], ...] = ()


def lower(traced: jax.stages.Traced, name: str, options: ExportOptions) -> LoweredModule:
    """Lowers the trace for the requested platforms, or for all that work.

    Without XLA, a module cannot choose a platform at run time. It is lowered for the CPU, whose
    rules are closest to plain StableHLO, or for the first requested platform if the CPU is not
    requested.

    Raises:
      PlatformError: one of the requested platforms, or every default one, fails.
      UnsupportedByTargetError: like PlatformError, but the reason is a custom call.
      ShardingError: JAX lowered a function of several devices for one device.
    """
    traced = trace_with_wide_dtypes(traced)
    platforms = options.platforms or PLATFORMS
    if not options.target.xla:
        platforms = ("cpu",) if "cpu" in platforms else platforms[:1]
    try:
        return _lower_for_platforms(traced, name, platforms, options)
    except Exception as e:  # of many types; _is_platform_specific selects
        if isinstance(e, (ShardingError, NotExportableError)) or not _is_platform_specific(e):
            raise
        if _UNSOLVABLE in str(e):
            raise ShapeError(
                f"The shapes of {name}'s arguments do not determine its dimension variables: "
                f"{_get_reason(e)}"
            ) from e
        joint_error = e
    if len(platforms) == 1:
        if not options.target.xla:
            _refuse_kernels(traced, name, options.target, joint_error)
        raise _make_error(name, {platforms[0]: joint_error}) from joint_error
    failures = _find_failures(traced, name, platforms, options)
    if not failures:
        reason = _get_reason(joint_error)
        raise PlatformError(
            f"{name} can be lowered for each of {', '.join(platforms)}, but not for all of them "
            f"in one module: {reason}. Export it for each platform on its own.",
            reasons=dict.fromkeys(platforms, reason),
        ) from joint_error
    if options.platforms is not None or len(failures) == len(platforms):
        raise _make_error(name, failures) from next(iter(failures.values()))
    working = tuple(p for p in platforms if p not in failures)
    dropped = tuple((p, _get_reason(e)) for p, e in failures.items())
    return replace(_lower_for_platforms(traced, name, working, options), dropped_platforms=dropped)


def _find_failures(
    traced: jax.stages.Traced, name: str, platforms: Sequence[str], options: ExportOptions
) -> dict[str, Exception]:
    """Lowers for each platform alone, and returns the errors by platform."""
    failures: dict[str, Exception] = {}
    for platform in platforms:
        try:
            _lower_for_platforms(traced, name, (platform,), options)
        except Exception as e:
            if not _is_platform_specific(e):
                raise
            failures[platform] = e
    return failures


def _is_platform_specific(error: Exception) -> bool:
    """Returns whether lowering may work for another platform after this error."""
    if isinstance(error, BridgeError):
        return isinstance(error, (TypeError, ValueError, NotImplementedError))
    # Other errors (KeyError, RecursionError, InconclusiveDimensionOperation) are questions about
    # sizes, which inference answers.
    return isinstance(
        error, (TypeError, ValueError, NotImplementedError, RuntimeError)
    ) and not isinstance(error, RecursionError)


def _lower_for_platforms(
    traced: jax.stages.Traced, name: str, platforms: tuple[str, ...], options: ExportOptions
) -> LoweredModule:
    # Custom calls are checked here, against those that the target runs. JAX checks them against its
    # own stability guarantees: "ALL" turns that off since JAX 0.9, but 0.8 needs each name.
    disabled = {"ALL", PLACEHOLDER_TARGET}
    captured = TakenArrays()
    rules = (
        *make_lowering_overrides(
            platforms, options.target.stablehlo_versions[0], xla=options.target.xla
        ),
        *make_graph_call_rules(),
        *make_callback_rules(traced, name, options),
        # JAX caches results by rules. A cached result would lack the captured arrays, so this new
        # primitive makes the rules unique.
        (Primitive("jax2tf_bridge_lowering"), lambda *_: []),
    )
    while True:
        checks = [jax_export.DisabledSafetyCheck.custom_call(c) for c in sorted(disabled)]
        try:
            with (
                newest_calling_convention(),
                take_constants(captured.take),
                take_module(traced) as taken,
            ):
                exported = jax_export.export(
                    AlreadyTraced(traced),
                    platforms=platforms,
                    disabled_checks=checks,
                    _override_lowering_rules=rules,
                )()
            break
        except ValueError as e:
            names = re.findall(r"custom_call @\"?([^\s(\"]+)", str(e))
            if "no compatibility guarantees" not in str(e) or not set(names) - disabled:
                raise
            disabled |= set(names)
    module = _finish_module(exported, taken)
    if exported.nr_devices == 1:
        module.reduce_to_one_device(name)
    module.narrow_platform_index()
    graph_functions = take_graph_functions(module)
    if options.target.xla:
        module.expand()
        module.keep_nan()
        for call in module.describe_custom_calls():
            if not options.allows_custom_call(call.name, platforms):
                raise _make_custom_call_error(name, call, platforms, options.target)
    else:
        # Composites stay. Operations that TensorFlow lacks are reported when the module is written.
        check_one_device(name, exported.nr_devices, options.target)
    return LoweredModule(exported, module, captured, graph_functions)


def _finish_module(exported: jax_export.Exported, taken: TakenModule) -> StableHloModule:
    """Returns JAX's module, or its serialized form if only JAX can apply the final rewrites."""
    if taken.module is not None:
        module = StableHloModule(taken.module)
        module.simplify()
        if module.finalize():
            return module
        artifact = taken.artifact()
    else:
        artifact = bytes(exported.mlir_module_serialized)
    module = StableHloModule.read(artifact)
    module.simplify()
    return module


class AlreadyTraced:
    """jax.stages.Wrapped of an existing trace, which avoids a second trace."""

    def __init__(self, traced: jax.stages.Traced) -> None:
        self._traced = traced

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises, because it can only be lowered."""
        raise NotImplementedError

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Returns the trace, whatever the arguments."""
        return self._traced

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers the trace for JAX's default platform."""
        lowered: jax.stages.Lowered = self._traced.lower()
        return lowered

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and dtypes of the results."""
        return self._traced.out_info


def _refuse_kernels(traced: jax.stages.Traced, name: str, target: Target, cause: Exception) -> None:
    """Raises if the function has a Pallas kernel, as the likely cause of a failed lowering."""
    for path in iter_equation_paths(traced.jaxpr.jaxpr):
        if path[-1].primitive.name == "pallas_call" and not path[-1].params.get("interpret"):
            source = user_line_of_equation(path)
            raise UnsupportedByTargetError(
                Message(
                    f"{name} cannot run on {target.name}, where it has to become TensorFlow's own "
                    "operations: they cannot express the Pallas kernel"
                    f"{format_place(source)}. Replace it by JAX operations, call it "
                    "with interpret=True, or export the function for TPUs without ",
                    NO_XLA,
                    ".",
                ),
                operation="pallas_call",
                source=source,
            ) from cause


def _make_custom_call_error(
    name: str, call: ModuleOperation, platforms: Sequence[str], target: Target
) -> UnsupportedByTargetError:
    replacement = "it by JAX operations"
    if call.primitive == "pallas_call":
        replacement = "the Pallas kernel by JAX operations, or call it with interpret=True"
    reason = (
        f"{no_handler_text([str(call)])}. Replace {replacement}; or, if the runtime that serves "
        "the model has one, allow it with "
        f"DisabledSafetyCheck.custom_call({call.name!r})."
    )
    return UnsupportedByTargetError(
        f"{name} cannot run on {target.name} ({', '.join(platforms)}): {reason}",
        operation=call.name,
        source=call.source,
        reason=reason,
    )


def _make_error(name: str, failures: dict[str, Exception]) -> Exception:
    if len(failures) == 1:
        ((platform, error),) = failures.items()
        if isinstance(error, BridgeError):
            return error
        return PlatformError(
            f"{name} cannot be lowered for {platform}: {_get_reason(error)}",
            reasons={platform: _get_reason(error)},
        )
    reasons = {platform: _get_reason(e) for platform, e in failures.items()}
    platforms_by_reason: dict[str, list[str]] = {}
    for platform, reason in reasons.items():
        platforms_by_reason.setdefault(reason, []).append(platform)
    text = f"{name} cannot be exported for {', '.join(reasons)}:" + format_bullets(
        [f"{', '.join(p)}: {reason}" for reason, p in platforms_by_reason.items()]
    )
    first = next((e for e in failures.values() if isinstance(e, UnsupportedByTargetError)), None)
    if first is not None:
        return UnsupportedByTargetError(
            text, operation=first.operation, source=first.source, reason=text
        )
    return PlatformError(text, reasons=reasons)


def _get_reason(error: Exception) -> str:
    text = error.reason if isinstance(error, UnsupportedByTargetError) else str(error)
    return text.strip().split("\n", 1)[0] or type(error).__name__
