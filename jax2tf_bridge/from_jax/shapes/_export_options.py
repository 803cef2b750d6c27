"""Options of an export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax2tf_bridge.from_jax.shapes._traced_function import POLYMORPHIC, SizeWords
from jax2tf_bridge.portable import DisabledSafetyCheck, Target, is_vouched
from shape_poly import SymbolicScope


@dataclass(frozen=True)
class ExportOptions:
    """Validated options of an export, without the function and its arguments.

    Attributes:
      platforms: the requested platforms; None for all that work.
      constraints: the user's constraints on the dimension variables; `scope` holds them.
      infer: whether requirements may be added to the constraints.
      call: start of the user's call, up to the constraints, for messages.
      words: the user's notation for sizes and constraints, for messages.
      runtime_checks: "drop" to leave out runtime checks, else None.
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
        """Returns whether debugging calls are left out."""
        return DisabledSafetyCheck.debug_effects() in self.disabled_checks

    def allows_custom_call(self, call: str, platforms: Sequence[str]) -> bool:
        """Returns whether the target can run a custom call, or the user vouches for it."""
        return call in self.target.custom_calls(platforms) or is_vouched(call, self.disabled_checks)
