"""StableHLO versions."""

from __future__ import annotations

from typing import TypeAlias

Version: TypeAlias = tuple[int, int, int]
"""A StableHLO version: (major, minor, patch)."""


def version_text(version: Version) -> str:
    """Writes `version` as StableHLO does.

    >>> version_text((0, 14, 24))
    '0.14.24'
    """
    return ".".join(str(part) for part in version)
