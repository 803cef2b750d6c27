"""Options of an export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import Argument, FunctionError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.shapes import (
    POLYMORPHIC,
    SizeOptions,
    SizeWords,
    make_size_options,
)
from jax2tf_bridge.portable import (
    DisabledSafetyCheck,
    PolyConstraints,
    as_safety_checks,
    is_vouched,
)
from jax2tf_bridge.targets import Target, as_target, canonicalize_platforms

DROP = "drop"
"""Value of `runtime_checks` that leaves out runtime checks of values."""

DROP_CHECKS = Argument("runtime_checks", DROP)
"""The option that leaves out runtime checks, for messages."""


@dataclass(frozen=True)
class ExportOptions:
    """Validated options of an export, without the function and its arguments.

    Attributes:
      platforms: the requested platforms; None for all that work.
      sizes: the options for open sizes.
      drops_checks: whether runtime checks of values are left out.
    """

    platforms: tuple[str, ...] | None
    disabled_checks: tuple[DisabledSafetyCheck, ...]
    target: Target
    sizes: SizeOptions = field(default_factory=SizeOptions)
    drops_checks: bool = False

    @property
    def drops_debug_calls(self) -> bool:
        """Returns whether debugging calls are left out."""
        return DisabledSafetyCheck.debug_effects() in self.disabled_checks

    def allows_custom_call(self, call: str, platforms: Sequence[str]) -> bool:
        """Returns whether the target can run a custom call, or the user vouches for it."""
        return call in self.target.handled_calls(platforms) or is_vouched(
            call, self.disabled_checks
        )

    def with_call(self, call: str) -> ExportOptions:
        """Replaces the start of the user's call, for messages."""
        return replace(self, sizes=replace(self.sizes, call=call))


def make_export_options(
    platforms: Sequence[str] | None,
    constraints: PolyConstraints,
    disabled_checks: Sequence[Any],
    target: Target | None,
    *,
    argument: str,
    call: str,
    words: SizeWords = POLYMORPHIC,
    runtime_checks: str | None = None,
) -> ExportOptions:
    """Checks options, which are those of `export`.

    Messages use `argument`, the caller's name for platforms. `call` and `words` are those of
    `make_size_options`.

    Raises:
      ShapeError: the constraints cannot be read.
      FunctionError: runtime_checks is neither None nor "drop".
      TargetError: a platform is unknown.
    """
    if runtime_checks not in (None, DROP):
        meant = did_you_mean(str(runtime_checks), [DROP], quoted=True)
        raise FunctionError(
            f"runtime_checks must be {DROP!r}, which leaves out checks of values, or None. Got: "
            f"{runtime_checks!r}{meant}"
        )
    sizes = make_size_options(constraints, call=call, words=words)
    return ExportOptions(
        canonicalize_platforms(platforms, _jax_compat.list_known_platforms(), argument=argument),
        as_safety_checks(disabled_checks),
        as_target(target),
        sizes,
        drops_checks=runtime_checks == DROP,
    )
