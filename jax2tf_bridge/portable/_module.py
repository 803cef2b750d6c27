"""Module: serialized StableHLO, its disabled safety checks, and the releases that run it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jax2tf_bridge._operations import CUSTOM_CALLS
from jax2tf_bridge._utils import join_names, once_per_object
from jax2tf_bridge.bytecode import Version, read_summary
from jax2tf_bridge.errors import FileFormatError, FunctionError
from jax2tf_bridge.targets import TENSORFLOW_RELEASES, Target, find_releases

_CUSTOM_CALL_PREFIX = "custom_call:"
_SHARDINGS = "shardings"
_DEBUG_EFFECTS = "debug_effects"


@dataclass(frozen=True)
class DisabledSafetyCheck:
    """A disabled safety check, with the same text as jax.export.DisabledSafetyCheck.

    >>> DisabledSafetyCheck.custom_call("my_kernel").is_custom_call()
    'my_kernel'
    >>> str(DisabledSafetyCheck.platform())
    'platform'
    """

    directive: str

    @classmethod
    def platform(cls) -> DisabledSafetyCheck:
        """Allows the module to run on platforms that it was not lowered for."""
        return cls("platform")

    @classmethod
    def custom_call(cls, target_name: str) -> DisabledSafetyCheck:
        """Allows a custom call that is not known to be stable or registered.

        "ALL" allows every custom call.
        """
        return cls(f"{_CUSTOM_CALL_PREFIX}{target_name}")

    @classmethod
    def shardings(cls) -> DisabledSafetyCheck:
        """Allows TensorFlow to run a sharded function on one device, ignoring its shardings.

        The results are the same. JAX has no such check, and its files drop it.
        """
        return cls(_SHARDINGS)

    @classmethod
    def debug_effects(cls) -> DisabledSafetyCheck:
        """Drops calls of jax.debug (print, callback, breakpoint) from an export.

        They do not affect the results. JAX has no such check, and its files drop it.
        """
        return cls(_DEBUG_EFFECTS)

    def is_custom_call(self) -> str | None:
        """Returns the target of the custom call that this check allows, or None."""
        name = self.directive.removeprefix(_CUSTOM_CALL_PREFIX)
        return name if name != self.directive and name else None

    def __str__(self) -> str:
        return self.directive


def as_safety_checks(checks: Sequence[object]) -> tuple[DisabledSafetyCheck, ...]:
    """Converts checks, including those of jax.export, to DisabledSafetyCheck.

    Raises:
      FunctionError: `checks` is not a sequence of checks.
    """
    example = "[DisabledSafetyCheck.custom_call('my_kernel')]"
    if not isinstance(checks, Sequence) or isinstance(checks, str):
        raise FunctionError(
            f"The disabled checks must be a list, as {example}. Got: {checks!r} of type "
            f"{type(checks).__name__}"
        )
    for i, check in enumerate(checks):
        # Compared by name, because JAX has a class of this name and may not be installed.
        names = [kind.__name__ for kind in type(check).__mro__]
        if DisabledSafetyCheck.__name__ not in names:
            raise FunctionError(
                f"The disabled check {i} must be a DisabledSafetyCheck, as in {example}. Got: "
                f"{check!r} of type {type(check).__name__}"
            )
    return tuple(DisabledSafetyCheck(str(check)) for check in checks)


def drop_own_checks(checks: Iterable[DisabledSafetyCheck]) -> tuple[DisabledSafetyCheck, ...]:
    """Returns the checks that JAX and TensorFlow know."""
    return tuple(c for c in checks if c.directive not in (_SHARDINGS, _DEBUG_EFFECTS))


# LAPACK calls of jaxlib up to 0.5.0, which newer releases do not register.
_RETIRED_CALL = re.compile(r"(?:lapack|blas)_[sdcz][a-z]+\d?")

_EVERY_CALL = "ALL"

NOT_STRICT = (DisabledSafetyCheck.platform(), DisabledSafetyCheck.custom_call(_EVERY_CALL))
"""Checks that strict_checks=False disables in older JAX releases."""


def is_vouched(call: str, checks: Iterable[DisabledSafetyCheck]) -> bool:
    """Returns whether a disabled check vouches that the runtime has a custom call.

    `custom_call("ALL")` vouches for every call. LAPACK calls that jaxlib has dropped are never
    vouched for: JAX's own files disable the check for them, but no runtime has them.

    >>> checks = [DisabledSafetyCheck.custom_call(name) for name in ("lapack_sgehrd", "mine")]
    >>> [is_vouched(call, checks) for call in ("mine", "other", "lapack_sgehrd")]
    [True, False, False]
    """
    names = {check.is_custom_call() for check in checks}
    return not names.isdisjoint((call, _EVERY_CALL)) and not _RETIRED_CALL.fullmatch(call)


@dataclass(frozen=True)
class Module:
    """A StableHLO module as a portable artifact, and how to call it.

    Attributes:
      data: the portable artifact.
      stablehlo_version: the StableHLO version of the artifact.
      calling_convention_version: the calling convention of XlaCallModule
        (https://docs.jax.dev/en/latest/export/export.html#calling-convention-versions).
      kept_arguments: sorted indices of the function's flat arguments that main takes.
      platforms: the platforms that it was lowered for, by JAX's names; the platform index refers
        to this order.
      uses_shape_polymorphism: whether its shapes must be refined before compilation.
      disabled_checks: the disabled safety checks.
      nr_devices: the number of devices that it was lowered for.
    """

    data: bytes = field(repr=False)
    stablehlo_version: Version
    calling_convention_version: int
    kept_arguments: tuple[int, ...]
    platforms: tuple[str, ...]
    uses_shape_polymorphism: bool = False
    disabled_checks: tuple[DisabledSafetyCheck, ...] = ()
    nr_devices: int = 1

    def __hash__(self) -> int:
        # Only the length of the data is hashed, because hashing megabytes takes long.
        return hash((len(self.data), self.stablehlo_version, self.kept_arguments, self.platforms))


CALL_TF_TARGET = "tf.call_tf_function"
"""Target of the custom call of a graph; TensorFlow compiles the graph with the module."""


@dataclass(frozen=True)
class GraphFunction:
    """A function of flat tensors as a TensorFlow graph.

    Attributes:
      name: the name of the TensorFlow function, for people.
      graph: a serialized, self-contained GraphDef. Its placeholders are x0, x1, ... and its results
        y0, y1, ...; the names of the functions that it calls are derived from their contents.
    """

    name: str
    graph: bytes = field(repr=False)
    _cache: dict[str, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False, hash=False
    )

    def get_or_make(self, make: Callable[[GraphFunction], Any]) -> Any:
        """Returns `make(self)`, cached for the lifetime of this object; pickles drop the cache."""
        cached = self._cache.get("function")
        # No lock is needed: if two threads call `make`, setdefault keeps the first result.
        return self._cache.setdefault("function", make(self)) if cached is None else cached

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphFunction, (self.name, self.graph)


_KERNEL_CALL = "tpu_custom_call"
"""Custom call of a Pallas kernel. Only TPU runtimes as new as its JAX can run it."""

_NEWEST_STABLEHLO = max(version for version, _ in TENSORFLOW_RELEASES.values())


class ModuleForPlatforms(Protocol):
    """A `Module`, or a module in a SavedModel, whose StableHLO version may be unknown (None)."""

    @property
    def platforms(self) -> tuple[str, ...]: ...

    @property
    def disabled_checks(self) -> tuple[DisabledSafetyCheck, ...]: ...

    @property
    def stablehlo_version(self) -> Version | None: ...

    @property
    def calling_convention_version(self) -> int: ...


def find_unhandled_calls(
    module: ModuleForPlatforms, calls: Iterable[str], newest: Version = _NEWEST_STABLEHLO
) -> tuple[str, ...]:
    """Returns the custom calls that TensorFlow has no handler for.

    Args:
      module: the module. Calls that its disabled checks name are assumed to have a handler.
      calls: the targets of its custom calls.
      newest: the newest StableHLO version that TensorFlow reads; by default that of the newest
        known release.
    """
    expanded_calls = {
        row.target
        for row in CUSTOM_CALLS.values()
        if row.expanded_since and TENSORFLOW_RELEASES[row.expanded_since][0] <= newest
    }
    handled_calls = Target.widest().handled_calls(module.platforms) | expanded_calls
    return tuple(
        call
        for call in calls
        if call not in handled_calls and not is_vouched(call, module.disabled_checks)
    )


def no_handler_text(calls: Sequence[str]) -> str:
    """Says that TensorFlow has no handler for custom calls.

    >>> no_handler_text(["'lapack_ssyevd'"])
    "TensorFlow has no handler for the custom call 'lapack_ssyevd'"
    """
    noun = "custom call" if len(calls) == 1 else "custom calls"
    return f"TensorFlow has no handler for the {noun} {join_names(calls, 8)}"


def find_releases_for(module: ModuleForPlatforms, calls: Collection[str]) -> tuple[str, ...]:
    """Returns the known releases that read the module and have handlers for its custom calls.

    Args:
      module: the module.
      calls: the targets of its custom calls.
    """
    version = module.stablehlo_version
    if version is None or needs_tpu_runtime(module, calls):
        return ()
    return tuple(
        release
        for release in find_releases(version, module.calling_convention_version)
        if not find_unhandled_calls(module, calls, TENSORFLOW_RELEASES[release][0])
    )


def needs_tpu_runtime(module: ModuleForPlatforms, calls: Collection[str]) -> bool:
    """Returns whether a module runs only on TPUs, with a runtime for its Pallas kernels.

    Modules that were lowered for other platforms too have a branch without kernels.
    """
    is_kernel_vouched = is_vouched(_KERNEL_CALL, module.disabled_checks)
    return set(module.platforms) == {"tpu"} and _KERNEL_CALL in calls and not is_kernel_vouched


@once_per_object
def _get_cell(_: Module) -> list[tuple[str, ...]]:
    return []  # find_calls_to_check or mark_calls_handled appends one item


def mark_calls_handled(module: Module) -> None:
    """Records that the module was written for a target that handles its custom calls.

    `find_calls_to_check` then returns () without reading the module, unless it has Pallas kernels.
    """
    cell = _get_cell(module)
    if not cell and _KERNEL_CALL.encode() not in module.data:
        cell.append(())


def find_calls_to_check(module: Module) -> tuple[str, ...]:
    """Returns the custom calls of the module that may have no handler; reads the module once.

    Returns () if the module cannot be read.
    """
    cell = _get_cell(module)
    if not cell:
        try:
            cell.append(tuple(read_summary(module.data).custom_calls))
        except FileFormatError:
            cell.append(())  # to_tf reports the error
    return cell[0]
