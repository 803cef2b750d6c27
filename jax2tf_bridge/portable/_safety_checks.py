"""Safety checks that a user may switch off, by the names that JAX and TF share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jax2tf_bridge.errors import FunctionError

_CUSTOM_CALL = "custom_call:"
_SHARDINGS = "shardings"
_DEBUG_EFFECTS = "debug_effects"


@dataclass(frozen=True)
class DisabledSafetyCheck:
    """A safety check to skip; equal in text to jax.export.DisabledSafetyCheck.

    >>> DisabledSafetyCheck.custom_call("my_kernel").is_custom_call()
    'my_kernel'
    >>> str(DisabledSafetyCheck.platform())
    'platform'
    """

    directive: str

    @classmethod
    def platform(cls) -> DisabledSafetyCheck:
        """Lets the module run on another platform than it was lowered for."""
        return cls("platform")

    @classmethod
    def custom_call(cls, target_name: str) -> DisabledSafetyCheck:
        """Lets the module hold a custom call that is not known to be stable or registered.

        "ALL" stands for every one.
        """
        return cls(f"{_CUSTOM_CALL}{target_name}")

    @classmethod
    def shardings(cls) -> DisabledSafetyCheck:
        """Lets TensorFlow run a sharded function as a whole on one device, where it ignores them.

        The values are the same. JAX knows no such check, and its files drop it.
        """
        return cls(_SHARDINGS)

    @classmethod
    def debug_effects(cls) -> DisabledSafetyCheck:
        """Leaves calls of jax.debug (print, callback, breakpoint) out of an export.

        They give the function no values. JAX knows no such check, and its files drop it.
        """
        return cls(_DEBUG_EFFECTS)

    def is_custom_call(self) -> str | None:
        """Returns the name of the custom call that this allows, or None."""
        name = self.directive.removeprefix(_CUSTOM_CALL)
        return name if name != self.directive and name else None

    def __str__(self) -> str:
        return self.directive


def canonical_checks(checks: Sequence[object]) -> tuple[DisabledSafetyCheck, ...]:
    """`checks` as ours; jax.export's own are taken by their text.

    Raises:
      FunctionError: they are no sequence of checks.
    """
    example = "[DisabledSafetyCheck.custom_call('my_kernel')]"
    if not isinstance(checks, Sequence) or isinstance(checks, str):
        raise FunctionError(
            f"The disabled checks must be a list, as {example}. Got: {checks!r} of type "
            f"{type(checks).__name__}"
        )
    for i, check in enumerate(checks):
        if type(check).__name__ != DisabledSafetyCheck.__name__:  # JAX has its own of that name
            raise FunctionError(
                f"The disabled check {i} must be a DisabledSafetyCheck, as in {example}. Got: "
                f"{check!r} of type {type(check).__name__}"
            )
    return tuple(DisabledSafetyCheck(str(check)) for check in checks)


def shared_checks(checks: Iterable[DisabledSafetyCheck]) -> tuple[DisabledSafetyCheck, ...]:
    """Selects those that JAX and TensorFlow know too."""
    return tuple(c for c in checks if c.directive not in (_SHARDINGS, _DEBUG_EFFECTS))


# Of the form that jaxlib registers no longer, up to 0.5.0.
_RETIRED = re.compile(r"(?:lapack|blas)_[sdcz][a-z]+\d?")


_EVERY_CALL = "ALL"

NOT_STRICT = (DisabledSafetyCheck.platform(), DisabledSafetyCheck.custom_call(_EVERY_CALL))
"""Checks that older releases of JAX disabled with strict_checks=False."""


def is_vouched(call: str, checks: Iterable[DisabledSafetyCheck]) -> bool:
    """Tells whether the user says that the runtime has a custom call.

    `custom_call("ALL")` says it of every one. Files of JAX's have such checks where JAX would not
    promise to keep a call of LAPACK; those that jaxlib has dropped since are in no runtime, whoever
    disabled the check.

    >>> checks = [DisabledSafetyCheck.custom_call(name) for name in ("lapack_sgehrd", "mine")]
    >>> [is_vouched(call, checks) for call in ("mine", "other", "lapack_sgehrd")]
    [True, False, False]
    """
    names = {check.is_custom_call() for check in checks}
    return not names.isdisjoint((call, _EVERY_CALL)) and not _RETIRED.fullmatch(call)
