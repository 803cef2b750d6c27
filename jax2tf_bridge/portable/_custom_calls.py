"""TensorFlow releases that run a module, by its versions and its custom calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from jax2tf_bridge._utils._lists import some
from jax2tf_bridge._utils._once_per_object import once_per_object
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable._module import Module
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck, is_vouched
from jax2tf_bridge.portable._stablehlo_version import Version
from jax2tf_bridge.portable._target import Target
from jax2tf_bridge.portable._tensorflow_releases import TENSORFLOW_RELEASES, tensorflow_releases
from jax2tf_bridge.portable.bytecode import read_module

_EXPANDED_FROM: Mapping[str, Version] = MappingProxyType(
    {
        **dict.fromkeys(("mhlo.topk", "mhlo.erf"), TENSORFLOW_RELEASES["2.17"][0]),
        **{
            f"mhlo.{name}": TENSORFLOW_RELEASES["2.21"][0]
            for name in ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh")
        },
    }
)
"""Stand-ins for operations of the CHLO dialect in archives of JAX up to 0.8, and the StableHLO
version of the first release that is known to expand it.  Measured in 2.15 and 2.17 to 2.22."""

_KERNEL = "tpu_custom_call"
"""A kernel of Pallas: only a TPU runtime as new as its JAX reads it, whatever the TensorFlow."""


class Lowered(Protocol):
    """A module that was lowered for platforms, of a portable function or in a SavedModel."""

    @property
    def platforms(self) -> tuple[str, ...]:
        """By JAX's names."""

    @property
    def disabled_checks(self) -> tuple[DisabledSafetyCheck, ...]:
        """The safety checks that are off."""


def unhandled_calls(module: Lowered, names: Iterable[str], newest: Version) -> tuple[str, ...]:
    """Returns the custom calls that TensorFlow has no handler for.

    Args:
      module: holds them; those that its disabled checks name are taken to have one.
      names: of the custom calls in its module.
      newest: the newest StableHLO version that the TensorFlow reads.
    """
    expanded = {name for name, since in _EXPANDED_FROM.items() if since <= newest}
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


def unhandled_anywhere(module: Lowered, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the custom calls for which no known TensorFlow release has a handler."""
    newest = max(version for version, _ in TENSORFLOW_RELEASES.values())
    return unhandled_calls(module, names, newest)


def releases_that_run(module: Module, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the known releases that read the module, and have handlers for its custom calls.

    Args:
      module: the module.
      names: of the custom calls in its module.
    """
    names = tuple(names)
    if has_kernel(module, names):
        return ()
    return tuple(
        release
        for release in tensorflow_releases(
            module.stablehlo_version, module.calling_convention_version
        )
        if not unhandled_calls(module, names, TENSORFLOW_RELEASES[release][0])
    )


def has_kernel(module: Lowered, names: Iterable[str]) -> bool:
    """Tells modules that only a TPU runs, with a runtime for their kernel of Pallas.

    What was lowered for other platforms too has a branch for these.
    """
    is_vouched_for = is_vouched(_KERNEL, module.disabled_checks)
    return set(module.platforms) == {"tpu"} and _KERNEL in names and not is_vouched_for


@once_per_object
def _known_calls(_: Module) -> list[tuple[str, ...]]:
    return []  # filled when they are known


def mark_calls_handled(module: Module) -> None:
    """Notes that the module was written for a target that handles its custom calls.

    `custom_calls_of` then finds none without reading the module, but for kernels of Pallas.
    """
    known = _known_calls(module)
    if not known and _KERNEL.encode() not in module.data:
        known.append(())


def custom_calls_of(module: Module) -> tuple[str, ...]:
    """Names the custom calls in the module that may have no handler; reads it once.

    None if the module cannot be read.
    """
    known = _known_calls(module)
    if not known:
        try:
            known.append(tuple(read_module(module.data).custom_calls))
        except FileFormatError:
            known.append(())  # to_tf says what is wrong with it
    return known[0]
