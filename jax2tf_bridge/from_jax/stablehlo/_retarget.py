"""Writes a module for its target, at the first version that loses nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from jax2tf_bridge.errors import Argument, Message, UnsupportedByTargetError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.stablehlo._module import LossyError, StableHloModule
from jax2tf_bridge.portable._stablehlo_version import Version, version_text
from jax2tf_bridge.portable._target import TENSORFLOW_RELEASES, Target

_WITHOUT_EFFECTS = 8
_WITH_EFFECTS = 9
_WITH_SHARDY = 10

# StableHLO has batching dimensions in gather and scatter since then. Measured: the XLA of TF 2.17
# fails on them, so a module that has them is written for it as for TF 2.16, which has none.
_BATCHING_DIMS = (1, 1, 0)
_BATCHING_DIMS_RUN = TENSORFLOW_RELEASES["2.18"][0]
_WITHOUT_BATCHING_DIMS = TENSORFLOW_RELEASES["2.16"][0]

# Measured: TF 2.15 and 2.17 fail to compile additions of them, TF 2.15 conversions too.
_NARROW_INTEGERS = TENSORFLOW_RELEASES["2.19"][0]


@dataclass(frozen=True)
class Retargeted:
    """A module as the target reads it."""

    module: bytes
    stablehlo_version: Version
    calling_convention_version: int


def retarget(
    module: StableHloModule, target: Target, *, function_name: str, has_effects: bool
) -> Retargeted:
    """`module` at the first of the target's StableHLO versions that can express it.

    Raises:
      UnsupportedByTargetError: none of the versions can express it, or it needs a newer calling
        convention; the operation and its source line are named.
    """
    convention = _calling_convention(module, has_effects)
    if convention > target.calling_convention:
        raise UnsupportedByTargetError(
            Message(
                f"{function_name} cannot run on {target.name}: it holds "
                f"{'sharding annotations' if convention == _WITH_SHARDY else 'ordered effects'}, "
                f"which need calling convention {convention}, and the target reads "
                f"{target.calling_convention}.",
                _first_release_that(convention=convention),
            ),
            operation="calling convention",
            source=None,
        )
    newest = _jax_compat.current_stablehlo_version()
    problem: LossyError | None = None
    if module.uses_narrow_integers():
        target = _for_narrow_integers(target, function_name)
    for version in _versions(module, target.stablehlo_versions):
        # An older jaxlib writes at most its own version, which newer readers accept.
        written = min(version, newest)
        try:
            return Retargeted(module.serialize(written), written, convention)
        except LossyError as e:
            problem = e
    assert problem is not None, "a target has at least one version"
    raise _unsupported(module, problem, target, function_name) from problem


def _versions(module: StableHloModule, versions: Sequence[Version]) -> Sequence[Version]:
    """The versions to write the module at, so that readers of `versions` can also run it."""
    if not module.uses_batching_dims():
        return versions
    return [
        _WITHOUT_BATCHING_DIMS if _BATCHING_DIMS <= v < _BATCHING_DIMS_RUN else v for v in versions
    ]


def _for_narrow_integers(target: Target, function_name: str) -> Target:
    """The target without the versions of releases whose XLA fails on 4-bit integers."""
    versions = tuple(v for v in target.stablehlo_versions if v >= _NARROW_INTEGERS)
    if versions:
        return replace(target, stablehlo_versions=versions)
    raise UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}: it computes with integers of 4 bits or "
            "fewer, which the XLA in it cannot.",
            _first_release_that(versions=[_NARROW_INTEGERS]),
        ),
        operation="4-bit integers",
        source=None,
    )


def _calling_convention(module: StableHloModule, has_effects: bool) -> int:
    if module.uses_shardy():
        return _WITH_SHARDY
    return _WITH_EFFECTS if has_effects else _WITHOUT_EFFECTS


def _unsupported(
    module: StableHloModule, problem: LossyError, target: Target, function_name: str
) -> UnsupportedByTargetError:
    operation = problem.operation
    tried = version_text(target.stablehlo_versions[-1])
    help_text = _first_release_that(
        versions=_versions_that_express(module, tried=target.stablehlo_versions)
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


def _versions_that_express(module: StableHloModule, *, tried: Collection[Version]) -> list[Version]:
    newest = _jax_compat.current_stablehlo_version()
    for version, _ in TENSORFLOW_RELEASES.values():
        (written,) = _versions(module, [version])
        if version in tried or written != version or version > newest:
            continue
        try:
            module.serialize(version)
        except LossyError:
            continue
        return [version]
    return []


def _first_release_that(
    *, versions: Collection[Version] | None = None, convention: int = 0
) -> Message:
    for release, (version, newest_convention) in TENSORFLOW_RELEASES.items():
        if (versions is None or version in versions) and convention <= newest_convention:
            target = Argument("target", release, f"target=Target.tensorflow({release!r})")
            text = f" The first TensorFlow that can run it is {release}: export with "
            return Message(text, target, " or without ", Argument("target", code="a target"), ".")
    return Message(
        " No TensorFlow release known to this version can run it: write this part of the "
        "function with other operations or dtypes."
    )
