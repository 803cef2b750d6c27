"""Asks the installed TensorFlow, through private names, which modules it reads."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge._utils import SeamName
from jax2tf_bridge.bytecode import Version

_MAX_CONVENTION = SeamName(
    "tensorflow.compiler.tf2xla.python.xla",
    "call_module_maximum_supported_version",
    "2.15 to 2.22",
    "calling convention 8 is assumed",
)
_CURRENT_VERSION = SeamName(
    "tensorflow.compiler.mlir.stablehlo.stablehlo",
    "get_current_version",
    "2.15 to 2.22",
    "StableHLO 0.14.24 is assumed",
)
SEAM: Sequence[SeamName] = (_MAX_CONVENTION, _CURRENT_VERSION)


def ask_versions() -> tuple[Version, int]:
    """Asks the installed TF for its StableHLO version and newest calling convention."""
    current, convention = _CURRENT_VERSION.get(), _MAX_CONVENTION.get()
    version = current() if current is not None else "0.14.24"
    major, minor, patch = (int(part) for part in version.split("."))
    return (major, minor, patch), int(convention()) if convention is not None else 8
