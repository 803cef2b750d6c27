"""What will go wrong with the modules of a SavedModel: where they run, and what they hold."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from jax2tf_bridge._utils._lists import some
from jax2tf_bridge.inspecting._contents import ModuleContents, is_linear_algebra
from jax2tf_bridge.inspecting._finding import Finding, in_units, shortened
from jax2tf_bridge.portable._sharding import CALLS_OF_PARTS
from jax2tf_bridge.portable._stablehlo_version import version_text
from jax2tf_bridge.portable._target import TENSORFLOW_RELEASES
from jax2tf_bridge.portable._tensorflow_releases import no_handler_text

_LARGE, _HUGE = 1_000_000, 10_000_000
_SHARDINGS = CALLS_OF_PARTS | {"Sharding", "xla.sdy.FuncResultSharding"}
_NEWEST_RELEASE = list(TENSORFLOW_RELEASES)[-1]
_NEWEST, _NEWEST_CONVENTION = TENSORFLOW_RELEASES[_NEWEST_RELEASE]


def of_modules(modules: Sequence[ModuleContents], path: str) -> Iterator[Finding]:
    """The findings about modules.

    Args:
      modules: of the model.
      path: of the model, for the remedies.
    """
    retarget = f"jax2tf-bridge retarget {shlex.quote(path)} --tensorflow RELEASE"
    for module in modules:
        yield from _broken(module)
    yield from _custom_calls(modules, retarget)
    yield from _versions(modules, retarget)
    yield from _platforms(modules)
    yield from _constants(modules)
    yield from _devices(modules)
    unreached = [m for m in modules if m.order is None]
    if unreached:
        yield Finding(
            "note",
            f"{_these(unreached)} run by no signature and no method that was found.",
            modules=_numbers(unreached),
        )


def _broken(module: ModuleContents) -> Iterator[Finding]:
    number = (module.called.number,)
    if module.unreadable:
        yield Finding(
            "error",
            f"The module of {module.place} cannot be read: {shortened(module.unreadable)}",
            "Copy the model again, or save it again.",
            number,
        )
    if module.mismatch:
        yield Finding(
            "error",
            f"{shortened(module.mismatch)}. TensorFlow does not compare them, and computes with "
            "stray memory.",
            "Save the model again.",
            number,
        )
    if module.narrow:
        yield Finding(
            "error",
            f"The module of {module.place} takes or gives {', '.join(module.narrow)}, which no "
            "TensorFlow hands over rightly: results are wrong.",
            "Export the function again with jax2tf_bridge.export, which passes them as 8-bit "
            "integers.",
            number,
        )
    if module.called.has_tokens:
        yield Finding(
            "warning",
            f"The module of {module.place} has ordered effects, which exist in JAX alone.",
            "Export the function without what has them, as debug prints.",
            number,
        )


def _custom_calls(modules: Sequence[ModuleContents], retarget: str) -> Iterator[Finding]:
    by_calls: dict[tuple[str, ...], list[ModuleContents]] = {}
    for module in modules:
        if module.unhandled:
            by_calls.setdefault(module.unhandled, []).append(module)
    for calls, found in by_calls.items():
        if all(map(is_linear_algebra, calls)):
            remedy = f"{retarget} writes linear algebra as StableHLO."
        else:
            remedy = (
                "Export the function again with jax2tf_bridge.export, if need be without what "
                "made the call."
            )
        yield Finding(
            "error",
            f"{_these(found, 'fail')} to run: "
            f"{no_handler_text([shortened(call, 100) for call in calls])}.",
            remedy,
            _numbers(found),
        )


def _versions(modules: Sequence[ModuleContents], retarget: str) -> Iterator[Finding]:
    by_need: dict[tuple[object, ...], list[ModuleContents]] = {}
    for module in modules:
        called = module.called
        if module.summary is None or module.unhandled or module.narrow:
            continue
        if len(module.releases) < len(TENSORFLOW_RELEASES):
            need = (module.releases, called.stablehlo_version, called.calling_convention_version)
            by_need.setdefault(need, []).append(module)
    for found in by_need.values():
        called, releases = found[0].called, found[0].releases
        version = called.stablehlo_version
        convention = called.calling_convention_version
        if version is None:
            yield Finding(
                "warning",
                f"{_these(found, 'say')} not at which StableHLO version they are written.",
                f"{retarget} writes them at one.",
                _numbers(found),
            )
            continue
        written = f"StableHLO {version_text(version)}, calling convention {convention}"
        if releases:
            text = (
                f"{_these(found)} for TensorFlow {releases[0]} and newer ({written}): running "
                "fails in older ones."
            )
            yield Finding(
                "warning", text, f"{retarget} writes for an older release.", _numbers(found)
            )
            continue
        text = (
            f"{_these(found)} newer ({written}) than what TensorFlow {_NEWEST_RELEASE} reads, the "
            f"newest that is known ({version_text(_NEWEST)} and {_NEWEST_CONVENTION}): running "
            "fails where an operation is newer, and in all older releases."
        )
        yield Finding("error", text, f"{retarget} mends that.", _numbers(found))


def _platforms(modules: Sequence[ModuleContents]) -> Iterator[Finding]:
    by_platforms: dict[tuple[str, ...], list[ModuleContents]] = {}
    for module in modules:
        if module.called.platforms:
            by_platforms.setdefault(module.called.platforms, []).append(module)
    for platforms, found in by_platforms.items():
        unchecked = any(str(c) == "platform" for m in found for c in m.called.disabled_checks)
        how = "is not checked" if unchecked else "fails"
        if "cpu" not in platforms:
            yield Finding(
                "warning",
                f"{_these(found)} for {some(platforms)} and not for the CPU: running there {how}.",
                "Export the function for more platforms; by default the bridge takes all.",
                _numbers(found),
            )
        elif len(platforms) == 1:
            yield Finding(
                "note",
                f"{_these(found)} for the CPU alone: running on a GPU or TPU {how}.",
                "Export the function for more platforms; by default the bridge takes all.",
                _numbers(found),
            )


def _constants(modules: Sequence[ModuleContents]) -> Iterator[Finding]:
    found = [m for m in modules if m.summary is not None and m.summary.constant_bytes >= _LARGE]
    if not found:
        return
    forward = _bytes(m for m in found if not m.order)
    gradients = _bytes(m for m in found if m.order)
    text = f"Arrays of {in_units(forward + gradients)} are constants in the modules"
    if forward and gradients:
        text += f", {in_units(gradients)} of that in gradients, where arrays are there once more"
    text += ": loading and compiling take long and much memory."
    yield Finding(
        "warning" if forward + gradients >= _HUGE else "note",
        text,
        "Save the function with jax2tf_bridge.save, which stores captured arrays once, as "
        "variables; or pass them as arguments.",
        _numbers(found),
    )


def _devices(modules: Sequence[ModuleContents]) -> Iterator[Finding]:
    found = [m for m in modules if m.summary is not None and _is_sharded(m)]
    if found:
        yield Finding(
            "note",
            f"{_these(found, 'hold')} shardings: TensorFlow runs a model on one device, and "
            "fails if they ask for several.",
            "Export the function without shardings, where it fails.",
            _numbers(found),
        )


def _is_sharded(module: ModuleContents) -> bool:
    if module.summary is None:
        return False
    return not _SHARDINGS.isdisjoint(module.summary.custom_calls) or any(
        name.startswith("sdy.") for name in module.summary.operations
    )


def _bytes(modules: Iterable[ModuleContents]) -> int:
    return sum(m.summary.constant_bytes for m in modules if m.summary is not None)


def _numbers(modules: Sequence[ModuleContents]) -> tuple[int, ...]:
    return tuple(m.called.number for m in modules)


def _these(modules: Sequence[ModuleContents], verb: str = "are") -> str:
    """The subject of a sentence, and its verb."""
    if len(modules) > 1:
        return f"{len(modules)} modules {verb}"
    singular = {"are": "is", "fail": "fails", "say": "says", "hold": "holds"}[verb]
    kind = "gradient" if modules[0].order else "module"
    return f"The {kind} {shortened(modules[0].place, 100)} {singular}"
