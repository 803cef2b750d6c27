"""placeholder until the rules land"""

from typing import Any


def lowering_overrides(
    platforms: tuple[str, ...], stablehlo_version: tuple[int, int, int]
) -> tuple[tuple[Any, Any], ...]:
    return ()
