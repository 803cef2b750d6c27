"""Which TensorFlow releases run a record: by its versions, and by its module's custom calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from jax2tf_bridge._utils._lists import some
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck, is_vouched
from jax2tf_bridge.portable._stablehlo_version import Version
from jax2tf_bridge.portable._target import TENSORFLOW_RELEASES, Target, tensorflow_releases
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
"""What stands for operations of the CHLO dialect in archives of JAX up to 0.8, and the StableHLO
version of the first release that is known to expand it.  Measured in 2.15 and 2.17 to 2.21."""

_KERNEL = "tpu_custom_call"
"""A kernel of Pallas: only a TPU runtime as new as its JAX reads it, whatever the TensorFlow."""


class Lowered(Protocol):
    """What was lowered for platforms: a record, or a module in a SavedModel."""

    @property
    def platforms(self) -> tuple[str, ...]:
        """By JAX's names."""

    @property
    def disabled_checks(self) -> tuple[DisabledSafetyCheck, ...]:
        """The safety checks that are off."""


class LoweredModule(Lowered, Protocol):
    """What holds its module as well."""

    @property
    def module(self) -> bytes:
        """StableHLO as a portable artifact."""

    @property
    def stablehlo_version(self) -> Version:
        """The version it is written at."""

    @property
    def calling_convention_version(self) -> int:
        """Of XlaCallModule."""

    @property
    def types_checked(self) -> bool:
        """Whether its types and custom calls were judged in this process."""


def unhandled_calls(record: Lowered, names: Iterable[str], newest: Version) -> tuple[str, ...]:
    """The custom calls that TensorFlow has no handler for.

    Args:
      record: whose they are; those that its disabled checks name are taken to have one.
      names: of the custom calls in its module.
      newest: the newest StableHLO version that the TensorFlow reads.
    """
    expanded = {name for name, since in _EXPANDED_FROM.items() if since <= newest}
    handled = Target.widest().custom_calls(record.platforms) | expanded
    return tuple(
        name
        for name in names
        if name not in handled and not is_vouched(name, record.disabled_checks)
    )


def no_handler_text(calls: Sequence[str]) -> str:
    """Says that TensorFlow has no handler for custom calls.

    >>> no_handler_text(["'lapack_ssyevd'"])
    "TensorFlow has no handler for the custom call 'lapack_ssyevd'"
    """
    return f"TensorFlow has no handler for the custom call{'s'[: len(calls) - 1]} {some(calls, 8)}"


def unhandled_anywhere(record: Lowered, names: Iterable[str]) -> tuple[str, ...]:
    """The custom calls for which no known TensorFlow release has a handler."""
    newest = max(version for version, _ in TENSORFLOW_RELEASES.values())
    return unhandled_calls(record, names, newest)


def releases_that_run(record: LoweredModule, names: Iterable[str]) -> tuple[str, ...]:
    """The known releases that read the module, and have handlers for its custom calls.

    Args:
      record: the record.
      names: of the custom calls in its module.
    """
    names = tuple(names)
    if has_kernel(record, names):
        return ()
    return tuple(
        release
        for release in tensorflow_releases(
            record.stablehlo_version, record.calling_convention_version
        )
        if not unhandled_calls(record, names, TENSORFLOW_RELEASES[release][0])
    )


def has_kernel(record: Lowered, names: Iterable[str]) -> bool:
    """Whether only a TPU with a runtime for its kernel of Pallas runs it, and nobody vouches.

    What was lowered for other platforms too has a branch for these.
    """
    is_vouched_for = is_vouched(_KERNEL, record.disabled_checks)
    return set(record.platforms) == {"tpu"} and _KERNEL in names and not is_vouched_for


def custom_calls_of(record: LoweredModule) -> tuple[str, ...]:
    """The names of the custom calls in the module that may have no handler.

    None in one that was exported or retargeted in this process, where they were judged, unless it
    has a kernel.
    """
    if record.types_checked and _KERNEL.encode() not in record.module:
        return ()
    try:
        return tuple(read_module(record.module).custom_calls)
    except FileFormatError:
        return ()  # to_tf says what is wrong with it
