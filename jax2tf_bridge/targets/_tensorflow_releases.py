"""Table of TensorFlow releases, with one row per release."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from jax2tf_bridge.bytecode import Version

TENSORFLOW_RELEASES: Mapping[str, tuple[Version, int]] = MappingProxyType(
    {
        "2.15": ((0, 14, 24), 8),
        "2.16": ((0, 17, 7), 9),
        "2.17": ((1, 1, 1), 9),
        "2.18": ((1, 7, 3), 9),
        "2.19": ((1, 9, 1), 9),
        "2.20": ((1, 12, 1), 10),
        "2.21": ((1, 13, 7), 10),
        "2.22": ((1, 20, 0), 10),
    }
)
"""Maps each TF release to the newest StableHLO version and calling convention that it reads.

Measured with `tensorflow.compiler.mlir.stablehlo.stablehlo.get_current_version()` and
`call_module_maximum_supported_version()` of each release; 2.22 is the candidate 2.22.0rc0.
"""


def tensorflow_releases(version: Version, calling_convention: int) -> tuple[str, ...]:
    """Returns the TF releases that read a module of this version and calling convention."""
    return tuple(
        release
        for release, (newest, convention) in TENSORFLOW_RELEASES.items()
        if version <= newest and calling_convention <= convention
    )
