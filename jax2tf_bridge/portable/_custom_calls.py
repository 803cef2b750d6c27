"""Finds the TensorFlow releases that run a module, by its versions and custom calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from jax2tf_bridge._operations import CUSTOM_CALLS
from jax2tf_bridge._utils import once_per_object, some
from jax2tf_bridge.bytecode import Version, read_summary
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable._module import DisabledSafetyCheck, Module, is_vouched
from jax2tf_bridge.targets import TENSORFLOW_RELEASES, Target, find_releases

_KERNEL = "tpu_custom_call"
"""A Pallas kernel. Only TPU runtimes as new as its JAX read it, regardless of TensorFlow."""


class ModuleForPlatforms(Protocol):
    """A module that was lowered for some platforms; of a portable function or a SavedModel."""

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms, by JAX's names."""

    @property
    def disabled_checks(self) -> tuple[DisabledSafetyCheck, ...]:
        """The disabled safety checks."""

    @property
    def stablehlo_version(self) -> Version | None:
        """The StableHLO version; None if unknown."""

    @property
    def calling_convention_version(self) -> int:
        """The calling convention of XlaCallModule."""


def unhandled_calls(
    module: ModuleForPlatforms, names: Iterable[str], newest: Version
) -> tuple[str, ...]:
    """Returns the custom calls that TensorFlow has no handler for.

    Args:
      module: the module; custom calls that its disabled checks name are assumed to have a handler.
      names: the targets of its custom calls.
      newest: the newest StableHLO version that this TensorFlow reads.
    """
    expanded = {
        row.target
        for row in CUSTOM_CALLS.values()
        if row.expanded_since and TENSORFLOW_RELEASES[row.expanded_since][0] <= newest
    }
    handled = Target.widest().custom_calls(module.platforms) | expanded
    return tuple(
        name
        for name in names
        if name not in handled and not is_vouched(name, module.disabled_checks)
    )


def no_handler_text(calls: Sequence[str]) -> str:
    """Says that TensorFlow has no handler for custom calls.

    >>> no_handler_text(["'lapack_ssyevd'"])
    "TensorFlow has no handler for the custom call 'lapack_ssyevd'"
    """
    return f"TensorFlow has no handler for the custom call{'s'[: len(calls) - 1]} {some(calls, 8)}"


def unhandled_anywhere(module: ModuleForPlatforms, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the custom calls for which no known TensorFlow release has a handler."""
    newest = max(version for version, _ in TENSORFLOW_RELEASES.values())
    return unhandled_calls(module, names, newest)


def releases_that_run(module: ModuleForPlatforms, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the known releases that read the module and have handlers for its custom calls.

    Args:
      module: the module.
      names: the targets of its custom calls.
    """
    names, version = tuple(names), module.stablehlo_version
    if version is None or has_kernel(module, names):
        return ()
    return tuple(
        release
        for release in find_releases(version, module.calling_convention_version)
        if not unhandled_calls(module, names, TENSORFLOW_RELEASES[release][0])
    )


def has_kernel(module: ModuleForPlatforms, names: Iterable[str]) -> bool:
    """Returns whether a module runs only on TPUs, with a runtime for its Pallas kernels.

    Modules that were lowered for other platforms too have a branch without kernels.
    """
    is_vouched_for = is_vouched(_KERNEL, module.disabled_checks)
    return set(module.platforms) == {"tpu"} and _KERNEL in names and not is_vouched_for


@once_per_object
def _list_known_calls(_: Module) -> list[tuple[str, ...]]:
    return []  # custom_calls_of or mark_calls_handled appends the targets


def mark_calls_handled(module: Module) -> None:
    """Records that the module was written for a target that handles its custom calls.

    `custom_calls_of` then returns () without reading the module, unless it has Pallas kernels.
    """
    known = _list_known_calls(module)
    if not known and _KERNEL.encode() not in module.data:
        known.append(())


def custom_calls_of(module: Module) -> tuple[str, ...]:
    """Returns the custom calls of the module that may have no handler; reads the module once.

    Returns () if the module cannot be read.
    """
    known = _list_known_calls(module)
    if not known:
        try:
            known.append(tuple(read_summary(module.data).custom_calls))
        except FileFormatError:
            known.append(())  # to_tf reports the error
    return known[0]
