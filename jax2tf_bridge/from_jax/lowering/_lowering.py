"""Lowers one trace for as many platforms as the target can serve, and says why not the others."""

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
    bullet_list,
)
from jax2tf_bridge.from_jax._jax_compat import source_of_equation
from jax2tf_bridge.from_jax._jax_compat_lowering import constants_taken, newest_calling_convention
from jax2tf_bridge.from_jax._jax_compat_modules import TakenModule, module_taken
from jax2tf_bridge.from_jax.arguments._callables import AlreadyTraced
from jax2tf_bridge.from_jax.lowering._effects import (
    callback_rules,
    debug_rules,
    equations,
    is_effect_left_out,
)
from jax2tf_bridge.from_jax.lowering._rules import lowering_overrides
from jax2tf_bridge.from_jax.shapes._traced_function import POLYMORPHIC, SizeWords
from jax2tf_bridge.from_jax.stablehlo._graph_calls import graph_call_rules, take_graph_functions
from jax2tf_bridge.from_jax.stablehlo._module import FoundOperation, StableHloModule
from jax2tf_bridge.from_jax.stablehlo._taken_arrays import CONSTANT, TakenArrays
from jax2tf_bridge.portable._custom_calls import no_handler_text
from jax2tf_bridge.portable._graph_function import GraphFunction
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck, is_vouched
from jax2tf_bridge.portable._target import NO_XLA, PLATFORMS, Target
from shape_poly import SymbolicScope

_UNSOLVABLE = "Cannot solve for values of dimension variables"


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export, checked; all but the function and its arguments.

    Attributes:
      platforms: None for every one that works.
      constraints: on the dimension variables, as the user wrote them; `scope` holds them.
      infer: whether requirements may be added to them.
      call: the user's call that takes constraints, up to them, for messages.
      words: how the user writes sizes and constraints, for messages.
      runtime_checks: "drop" to leave out checks of values, else None.
    """

    platforms: tuple[str, ...] | None
    disabled_checks: tuple[DisabledSafetyCheck, ...]
    target: Target
    constraints: tuple[str, ...]
    scope: SymbolicScope
    infer: bool
    call: str
    words: SizeWords = POLYMORPHIC
    runtime_checks: str | None = None

    @property
    def without_debug_effects(self) -> bool:
        """Tells whether calls for debugging are left out."""
        return DisabledSafetyCheck.debug_effects() in self.disabled_checks

    def allows_custom_call(self, call: str, platforms: Sequence[str]) -> bool:
        """Tells whether the target runs a custom call or the user vouches for it."""
        return call in self.target.custom_calls(platforms) or is_vouched(call, self.disabled_checks)


@dataclass(frozen=True)
class Lowered:
    """A module as JAX lowered it, what it calls, and the default platforms it cannot serve.

    Attributes:
      exported: what JAX gave; it has no module, or one without the captured arrays.
      module: as it is made fit for the target.
      captured: large arrays that the module has to get.
      graph_functions: what it calls.
      dropped_platforms: with the reason for each.
    """

    exported: jax_export.Exported
    module: StableHloModule
    captured: TakenArrays
    graph_functions: tuple[GraphFunction, ...] = ()
    dropped_platforms: tuple[tuple[str, str], ...] = ()


def lower(traced: jax.stages.Traced, name: str, options: ExportOptions) -> Lowered:
    """Lowers the trace for the platforms asked for, or for all that work.

    Without XLA there is no choice of a platform when it runs: it is lowered for the CPU, which is
    nearest to plain StableHLO, or if that is not asked for, for the first one.

    Raises:
      PlatformError: one of the platforms asked for, or every default one, fails.
      UnsupportedByTargetError: as it, where the reason is a custom call.
      ShardingError: JAX lowered for one device what takes more.
    """
    platforms = options.platforms or PLATFORMS
    if not options.target.xla:
        platforms = ("cpu",) if "cpu" in platforms else platforms[:1]
    try:
        return _attempt(traced, name, platforms, options)
    except Exception as e:  # of types that _is_of_a_platform lists
        if isinstance(e, (ShardingError, NotExportableError)) or not _is_of_a_platform(e):
            raise
        if _UNSOLVABLE in str(e):
            raise ShapeError(
                f"The shapes of {name}'s arguments do not determine its dimension variables: "
                f"{_first_line(e)}"
            ) from e
        together = e
    if len(platforms) == 1:
        if not options.target.xla:
            _refuse_kernels(traced, name, options.target, together)
        raise _failure(name, {platforms[0]: together}) from together
    failures = _failures(traced, name, platforms, options)
    if not failures:
        raise PlatformError(
            f"{name} can be lowered for each of {', '.join(platforms)}, but not for all of them "
            f"in one module: {_first_line(together)}. Export it for each platform on its own.",
            reasons=dict.fromkeys(platforms, _first_line(together)),
        ) from together
    if options.platforms is not None or len(failures) == len(platforms):
        raise _failure(name, failures) from next(iter(failures.values()))
    working = tuple(p for p in platforms if p not in failures)
    dropped = tuple((p, _first_line(e)) for p, e in failures.items())
    return replace(_attempt(traced, name, working, options), dropped_platforms=dropped)


def _failures(
    traced: jax.stages.Traced, name: str, platforms: Sequence[str], options: ExportOptions
) -> dict[str, Exception]:
    """Lowers for each platform alone, and returns the error of each that fails."""
    failures: dict[str, Exception] = {}
    for platform in platforms:
        try:
            _attempt(traced, name, (platform,), options)
        except Exception as e:
            if not _is_of_a_platform(e):
                raise
            failures[platform] = e
    return failures


def _is_of_a_platform(error: Exception) -> bool:
    """Tells errors after which lowering may work for another platform."""
    if isinstance(error, BridgeError):
        return isinstance(error, (TypeError, ValueError, NotImplementedError))
    # Others (KeyError, RecursionError, InconclusiveDimensionOperation) ask for sizes, which
    # inference answers.
    return isinstance(
        error, (TypeError, ValueError, NotImplementedError, RuntimeError)
    ) and not isinstance(error, RecursionError)


def _attempt(
    traced: jax.stages.Traced, name: str, platforms: tuple[str, ...], options: ExportOptions
) -> Lowered:
    # The custom calls are checked here, by what the target runs; JAX checks by what it promises
    # to keep stable ("ALL" turns that off from JAX 0.9 on; 0.8 needs the names, one by one).
    disabled = {"ALL", CONSTANT}
    captured = TakenArrays()
    rules = (
        *lowering_overrides(
            platforms, options.target.stablehlo_versions[0], xla=options.target.xla
        ),
        *graph_call_rules(),
        *(debug_rules(traced) if options.without_debug_effects else ()),
        *callback_rules(traced, name, runtime_checks=options.runtime_checks),
        # JAX keeps what it lowered with the same rules, and would give it out without the arrays.
        (Primitive("jax2tf_bridge_lowering"), _never_used),
    )
    while True:
        checks = [jax_export.DisabledSafetyCheck.custom_call(c) for c in sorted(disabled)]
        try:
            with (
                newest_calling_convention(),
                constants_taken(captured.take),
                module_taken(traced) as taken,
            ):
                exported = jax_export.export(
                    AlreadyTraced(traced),
                    platforms=platforms,
                    disabled_checks=checks,
                    _override_lowering_rules=rules,
                )()
            break
        except ValueError as e:
            found = re.findall(r"custom_call @\"?([^\s(\"]+)", str(e))
            if "no compatibility guarantees" not in str(e) or not set(found) - disabled:
                raise
            disabled |= set(found)
    module = _module_of(exported, taken)
    if exported.nr_devices == 1:
        module.reduce_to_one_device(name)
    module.narrow_platform_index()
    graph_functions = take_graph_functions(module)
    if not options.target.xla:
        # Composites stay whole. What has no form is found where the module is written.
        check_one_device(name, exported.nr_devices, options.target)
        return Lowered(exported, module, captured, graph_functions)
    module.expand()
    module.keep_nan()
    for call in module.custom_calls():
        if not options.allows_custom_call(call.name, platforms):
            raise _unregistered(name, call, platforms, options.target)
    return Lowered(exported, module, captured, graph_functions)


def _module_of(exported: jax_export.Exported, taken: TakenModule) -> StableHloModule:
    """Takes the module as JAX lowered it; where only JAX can make it final, as JAX writes it."""
    if taken.module is not None:
        module = StableHloModule(taken.module)
        module.simplify()
        if module.becomes_final():
            return module
        artifact = taken.written()
    else:
        artifact = bytes(exported.mlir_module_serialized)
    module = StableHloModule.read(artifact)
    module.simplify()
    return module


def _never_used(*_: Any, **__: Any) -> Any:
    raise AssertionError("this primitive is in no function")


def _refuse_kernels(traced: jax.stages.Traced, name: str, target: Target, cause: Exception) -> None:
    """Raises for a kernel of Pallas, if there is one, where lowering has failed."""
    for equation in equations(traced.jaxpr.jaxpr):
        if equation.primitive.name == "pallas_call" and not equation.params.get("interpret"):
            source = source_of_equation(equation)
            raise UnsupportedByTargetError(
                Message(
                    f"{name} cannot run on {target.name}, where it has to become TensorFlow's own "
                    f"operations: the Pallas kernel{f' at {source}' if source else ''} has no form "
                    "in them. Replace it by JAX operations, call it with interpret=True, or export "
                    "the function for TPUs without ",
                    NO_XLA,
                    ".",
                ),
                operation="pallas_call",
                source=source,
            ) from cause


def check_one_device(name: str, nr_devices: int, target: Target) -> None:
    """Raises for a function over several devices, where the target has no XLA.

    Raises:
      UnsupportedByTargetError: it is one.
    """
    if nr_devices == 1:
        return
    raise UnsupportedByTargetError(
        Message(
            f"{name} cannot run on {target.name}: it is spread over {nr_devices} devices, and "
            "TensorFlow's own operations run on one. Export it for one device, or without ",
            NO_XLA,
            ".",
        ),
        operation="devices",
        source=None,
    )


def _unregistered(
    name: str, call: FoundOperation, platforms: Sequence[str], target: Target
) -> UnsupportedByTargetError:
    instead = "it by JAX operations"
    if call.primitive == "pallas_call":
        instead = "the Pallas kernel by JAX operations, or call it with interpret=True"
    reason = (
        f"{no_handler_text([str(call)])}. Replace {instead}; or, if the runtime that serves the "
        "model has one, allow it with "
        f"DisabledSafetyCheck.custom_call({call.name!r})."
    )
    return UnsupportedByTargetError(
        f"{name} cannot run on {target.name} ({', '.join(platforms)}): {reason}",
        operation=call.name,
        source=call.source,
        reason=reason,
    )


def _failure(name: str, failures: dict[str, Exception]) -> Exception:
    """Makes the error for a function of which every platform asked for failed, or one did."""
    if len(failures) == 1:
        ((platform, only),) = failures.items()
        if isinstance(only, BridgeError):
            return only
        return PlatformError(
            f"{name} cannot be lowered for {platform}: {_first_line(only)}",
            reasons={platform: _first_line(only)},
        )
    reasons = {platform: _first_line(e) for platform, e in failures.items()}
    platforms_by_reason: dict[str, list[str]] = {}
    for platform, reason in reasons.items():
        platforms_by_reason.setdefault(reason, []).append(platform)
    text = f"{name} cannot be exported for {', '.join(reasons)}:" + bullet_list(
        [f"{', '.join(p)}: {reason}" for reason, p in platforms_by_reason.items()]
    )
    first = next((e for e in failures.values() if isinstance(e, UnsupportedByTargetError)), None)
    if first is not None:
        return UnsupportedByTargetError(
            text, operation=first.operation, source=first.source, reason=text
        )
    return PlatformError(text, reasons=reasons)


def _first_line(error: Exception) -> str:
    text = error.reason if isinstance(error, UnsupportedByTargetError) else str(error)
    return text.strip().split("\n", 1)[0] or type(error).__name__


# Keeps JAX from dropping calls while it traces; the module holds nothing of it.
_OF_TRACING = frozenset(
    f"jax2tf_bridge.call_tf._jax_compat.{name}" for name in ("CallTfEffect", "StatefulCallTfEffect")
)


def effect_names(
    effects: Sequence[Any],
    function: str,
    *,
    without_debug: bool = False,
    runtime_checks: str | None = None,
) -> tuple[str, ...]:
    """Names the effects by module and class, by which jax.export makes them anew.

    Args:
      effects: of a function.
      function: its name.
      without_debug: whether that of calls for debugging is left out.
      runtime_checks: "drop" where that of checks of values is.

    Raises:
      NotExportableError: one cannot be made anew, so that nobody could call the function.
    """
    names = []
    for effect in effects:
        kind = type(effect)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in _OF_TRACING or is_effect_left_out(
            name, without_debug=without_debug, runtime_checks=runtime_checks
        ):
            continue
        if not _is_made_anew(effect):
            raise NotExportableError(
                f"{function} has the effect {name}, which cannot be made again where the function "
                f"is read: {kind.__name__}() has to make an equal one. Give the class a "
                "constructor without arguments, and __eq__ and __hash__."
            )
        names.append(name)
    return tuple(names)


def _is_made_anew(effect: Any) -> bool:
    try:
        made = type(effect)()
        return bool(made == effect and hash(made) == hash(effect))
    except Exception:  # of any type: its class is the user's
        return False
