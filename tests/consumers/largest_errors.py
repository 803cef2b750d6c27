"""Largest errors of what one process compares, for tables."""

from __future__ import annotations

_errors: dict[str, float] = {}


def note_error(compared: str, error: float) -> None:
    """Notes an error of what is compared; the largest one counts."""
    _errors[compared] = max(error, _errors.get(compared, 0.0))


def taken_errors() -> dict[str, float]:
    """Returns the errors since the last time."""
    found = dict(_errors)
    _errors.clear()
    return found
