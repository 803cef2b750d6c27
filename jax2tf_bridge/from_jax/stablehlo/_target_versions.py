"""Writes StableHLO modules at a version that the target reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from jax2tf_bridge.bytecode import Version, version_text
from jax2tf_bridge.errors import Argument, Message, UnsupportedByTargetError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.stablehlo._module import LossyError, StableHloModule
from jax2tf_bridge.targets import NO_XLA, TENSORFLOW_RELEASES, Target, check_expressible

_WITHOUT_EFFECTS = 8
_WITH_EFFECTS = 9
_WITH_SHARDY = 10

# StableHLO 1.1.0 introduced batching dimensions in gather and scatter. Measured: the XLA of TF 2.17
# fails on them, so modules that use them are written for TF 2.17 at the version of TF 2.16.
_BATCHING_DIMS = (1, 1, 0)
_BATCHING_DIMS_WORK_SINCE = TENSORFLOW_RELEASES["2.18"][0]
_WITHOUT_BATCHING_DIMS = TENSORFLOW_RELEASES["2.16"][0]

# Measured: TF 2.15 and 2.17 fail to compile additions of 4-bit integers, TF 2.15 also conversions.
_NARROW_INTEGERS = TENSORFLOW_RELEASES["2.19"][0]


class RetargetedModule(NamedTuple):
    """Fields of a portable function's Module, written at a version that the target reads."""

    data: bytes
    stablehlo_version: Version
    calling_convention_version: int


def retarget_module(
    module: StableHloModule, target: Target, *, function_name: str, has_effects: bool
) -> RetargetedModule:
    """Writes a module at the first of the target's StableHLO versions that can express it.

    Raises:
      UnsupportedByTargetError: no version can express it, it needs a newer calling convention, or
        the target has no XLA and TensorFlow has no operations for it. The error names the
        operation and its source line.
    """
    convention = _WITH_EFFECTS if has_effects else _WITHOUT_EFFECTS
    if module.uses_shardy():
        convention = _WITH_SHARDY
    if convention > target.calling_convention:
        raise UnsupportedByTargetError(
            Message(
                f"{function_name} cannot run on {target.name}: it holds "
                f"{'sharding annotations' if convention == _WITH_SHARDY else 'ordered effects'}, "
                f"which need calling convention {convention}, and the target reads "
                f"{target.calling_convention}.",
                _advise_release(convention=convention),
            ),
            operation="calling convention",
            source=None,
        )
    newest = _jax_compat.current_stablehlo_version()
    problem: LossyError | None = None
    if target.xla and module.uses_narrow_integers():
        target = _drop_versions_without_narrow_integers(target, function_name)
    for version in _list_runnable_versions(module, target.stablehlo_versions):
        # An older jaxlib can only write up to its own version, which newer readers accept.
        written = min(version, newest)
        try:
            retargeted = RetargetedModule(module.serialize(written), written, convention)
        except LossyError as e:
            problem = e
            continue
        if not target.xla:
            check_expressible(retargeted.data, target, function_name)
        return retargeted
    assert problem is not None, "a target has at least one version"
    raise _make_unsupported_error(module, problem, target, function_name) from problem


def _list_runnable_versions(
    module: StableHloModule, versions: Sequence[Version]
) -> Sequence[Version]:
    """Returns the versions to write the module at, so that readers of `versions` can run it."""
    if not module.uses_batching_dims():
        return versions
    return [
        _WITHOUT_BATCHING_DIMS if _BATCHING_DIMS <= v < _BATCHING_DIMS_WORK_SINCE else v
        for v in versions
    ]


def _drop_versions_without_narrow_integers(target: Target, function_name: str) -> Target:
    """Drops the versions of releases whose XLA fails on 4-bit integers."""
    versions = tuple(v for v in target.stablehlo_versions if v >= _NARROW_INTEGERS)
    if versions:
        return replace(target, stablehlo_versions=versions)
    raise UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}: it computes with integers of 4 bits or "
            "fewer, on which its XLA fails.",
            _advise_release(versions=[_NARROW_INTEGERS]),
        ),
        operation="4-bit integers",
        source=None,
    )


def _make_unsupported_error(
    module: StableHloModule, problem: LossyError, target: Target, function_name: str
) -> UnsupportedByTargetError:
    operation = problem.operation
    tried = version_text(target.stablehlo_versions[-1])
    help_text = _advise_release(
        versions=_find_version_that_expresses(module, tried=target.stablehlo_versions)
    )
    place = f" (at {operation.source})" if operation.source else ""
    return UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}: {operation.name}{place}, as it is used "
            f"here, cannot be expressed in StableHLO {tried}, the newest that the target reads.",
            help_text,
        ),
        operation=operation.name,
        source=operation.source,
    )


def _find_version_that_expresses(
    module: StableHloModule, *, tried: Collection[Version]
) -> list[Version]:
    newest = _jax_compat.current_stablehlo_version()
    for version, _ in TENSORFLOW_RELEASES.values():
        (written,) = _list_runnable_versions(module, [version])
        if version in tried or written != version or version > newest:
            continue
        try:
            module.serialize(version)
        except LossyError:
            continue
        return [version]
    return []


def _advise_release(*, versions: Collection[Version] | None = None, convention: int = 0) -> Message:
    for release, (version, newest_convention) in TENSORFLOW_RELEASES.items():
        if (versions is None or version in versions) and convention <= newest_convention:
            target = Argument("target", release, f"target=Target.tensorflow({release!r})")
            text = f" The first TensorFlow that can run it is {release}: export with "
            return Message(text, target, " or without ", Argument("target", code="a target"), ".")
    return Message(
        " No TensorFlow release known to this version can run it: write this part of the "
        "function with other operations or dtypes."
    )


def check_one_device(name: str, nr_devices: int, target: Target) -> None:
    """Raises for a function over several devices, if the target has no XLA.

    Raises:
      UnsupportedByTargetError: the function runs on several devices.
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
