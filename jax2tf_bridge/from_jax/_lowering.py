"""Lowers one trace for as many platforms as the target can serve, and says why not the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge._checks import DisabledSafetyCheck
from jax2tf_bridge._errors import (
    BridgeError,
    PlatformError,
    ShapeError,
    UnsupportedByTargetError,
    bullet_list,
)
from jax2tf_bridge._target import PLATFORMS, Target
from jax2tf_bridge.from_jax._callables import Pretraced
from jax2tf_bridge.from_jax._overrides import lowering_overrides
from jax2tf_bridge.from_jax._stablehlo import FoundOperation, StableHloModule
from shape_poly import SymbolicScope

_LOWERING_ERRORS = (TypeError, ValueError, NotImplementedError)

_UNSOLVABLE = "Cannot solve for values of dimension variables"

_ONLY_IN_LAPACK = {
    "eig": "jax.numpy.linalg.eig",
    "schur": "jax.scipy.linalg.schur",
    "hessenberg": "jax.scipy.linalg.hessenberg",
    "geqp3": "a pivoted QR decomposition",
    "tridiagonal": "a reduction to tridiagonal form",
}


@dataclass(frozen=True)
class ExportOptions:
    """What the user asked for, beside the function and its arguments.

    Attributes:
      platforms: None for every one that works.
      constraints: on the dimension variables, as the user wrote them; `scope` holds them.
      infer: whether requirements may be added to them.
      call: the user's call of the bridge, up to polymorphic_constraints, for messages.
    """

    platforms: tuple[str, ...] | None
    disabled_checks: tuple[DisabledSafetyCheck, ...]
    target: Target
    constraints: tuple[str, ...]
    scope: SymbolicScope
    infer: bool
    call: str

    def allowed_custom_calls(self, platforms: Sequence[str]) -> frozenset[str]:
        """The custom calls that the target runs or the user vouches for."""
        vouched = (check.is_custom_call() for check in self.disabled_checks)
        return self.target.custom_calls(platforms) | {name for name in vouched if name}


@dataclass(frozen=True)
class Lowered:
    """A module as JAX lowered it, and the default platforms that it cannot serve."""

    exported: jax_export.Exported
    module: StableHloModule
    dropped_platforms: tuple[tuple[str, str], ...] = ()


def lower(traced: jax.stages.Traced, name: str, options: ExportOptions) -> Lowered:
    """Lowers the trace for the platforms asked for, or for all that work.

    Raises:
      PlatformError: one of the platforms asked for, or every default one, fails.
      UnsupportedByTargetError: as it, where the reason is a custom call.
    """
    platforms = options.platforms or PLATFORMS
    try:
        return _attempt(traced, name, platforms, options)
    except _LOWERING_ERRORS as e:
        if _UNSOLVABLE in str(e):
            raise ShapeError(
                f"The polymorphic_shapes of {name} do not determine its dimension variables: "
                f"{_first_line(e)}"
            ) from e
        together = e
    if len(platforms) == 1:
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
    """For each platform that fails on its own, how."""
    failures: dict[str, Exception] = {}
    for platform in platforms:
        try:
            _attempt(traced, name, (platform,), options)
        except _LOWERING_ERRORS as e:
            failures[platform] = e
    return failures


def _attempt(
    traced: jax.stages.Traced, name: str, platforms: tuple[str, ...], options: ExportOptions
) -> Lowered:
    # The custom calls are checked here, by what the target runs; JAX checks by what it promises
    # to keep stable ("ALL" turns that off from JAX 0.9 on; 0.8 needs the names, one by one).
    disabled = {"ALL"}
    while True:
        checks = [jax_export.DisabledSafetyCheck.custom_call(c) for c in sorted(disabled)]
        try:
            exported = jax_export.export(
                Pretraced(traced),
                platforms=platforms,
                disabled_checks=checks,
                _override_lowering_rules=lowering_overrides(
                    platforms, options.target.stablehlo_versions[0]
                ),
            )()
            break
        except ValueError as e:
            found = re.findall(r"custom_call @\"?([^\s(\"]+)", str(e))
            if "no compatibility guarantees" not in str(e) or not set(found) - disabled:
                raise
            disabled |= set(found)
    module = StableHloModule(exported.mlir_module_serialized)
    if exported.nr_devices == 1:
        module.drop_shardings()
    module.narrow_platform_index()
    module.expand()
    allowed = options.allowed_custom_calls(platforms)
    for call in module.custom_calls():
        if call.name not in allowed:
            raise _unregistered(name, call, platforms, options.target)
    return Lowered(exported, module)


def _unregistered(
    name: str, call: FoundOperation, platforms: Sequence[str], target: Target
) -> UnsupportedByTargetError:
    only_lapack = _ONLY_IN_LAPACK.get(call.primitive or "")
    hint = (
        f"{only_lapack} has no form in StableHLO alone: compute it before or after this function "
        "in TensorFlow"
        if only_lapack
        else "Replace it by JAX operations"
    )
    reason = (
        f"TensorFlow registers no handler for the custom call {call}. {hint}; or, if the runtime "
        "that serves the model registers it, allow it with "
        f"DisabledSafetyCheck.custom_call({call.name!r})."
    )
    return UnsupportedByTargetError(
        f"{name} cannot run on {target.name} ({', '.join(platforms)}): {reason}",
        operation=call.name,
        source=call.source,
        reason=reason,
    )


def _failure(name: str, failures: dict[str, Exception]) -> Exception:
    """The error for a function of which every platform asked for failed, or one did."""
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
    return text.strip().split("\n", 1)[0]


# Keeps JAX from dropping calls while it traces; the module holds nothing of it.
_OF_TRACING = frozenset({"jax2tf_bridge.call_tf._jax_compat.CallTfEffect"})


def effect_names(effects: Sequence[Any]) -> tuple[str, ...]:
    """The effects by module and class, by which jax.export finds them again."""
    names = (f"{type(e).__module__}.{type(e).__qualname__}" for e in effects)
    return tuple(name for name in names if name not in _OF_TRACING)
