"""Asks the installed TensorFlow, through private names, which modules it reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jax2tf_bridge._utils import SeamName
from jax2tf_bridge.bytecode import Version
from jax2tf_bridge.errors import MissingDependencyError
from jax2tf_bridge.targets._tensorflow_releases import TENSORFLOW_RELEASES

_FINAL_RELEASE = re.compile(r"(\d+\.\d+)\.\d+")

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


def installed_versions() -> tuple[str, Version, int]:
    """Returns the installed TF's release, StableHLO version and newest calling convention.

    Releases in the table are not asked, because loading the library that answers takes 4 ms.

    Raises:
      MissingDependencyError: TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ModuleNotFoundError as e:
        if e.name != "tensorflow":
            raise
        raise MissingDependencyError("TensorFlow", "tensorflow-cpu", "Target.installed()") from e
    release = str(tf.__version__)
    final = _FINAL_RELEASE.fullmatch(release)
    known = TENSORFLOW_RELEASES.get(final[1]) if final is not None else None
    return release, *(known or ask_versions())


def ask_versions() -> tuple[Version, int]:
    """Asks the installed TF for its StableHLO version and newest calling convention."""
    current, convention = _CURRENT_VERSION.get(), _MAX_CONVENTION.get()
    version = current() if current is not None else "0.14.24"
    major, minor, patch = (int(part) for part in version.split("."))
    return (major, minor, patch), int(convention()) if convention is not None else 8
