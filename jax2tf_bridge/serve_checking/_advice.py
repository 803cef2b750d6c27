"""Advises on signatures whose modules are not for a TensorFlow release."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from jax2tf_bridge.inspecting import releases_text
from jax2tf_bridge.portable import TENSORFLOW_RELEASES, version_text
from jax2tf_bridge.storage import AnyPath


def retarget_advice(
    directory: AnyPath, installed: str, description: Mapping[str, Any], signature: str
) -> str | None:
    """Advises on a signature whose modules are not for a release; None if they are.

    Args:
      directory: the SavedModel.
      installed: the release, as "2.17.1".
      description: what `describe_saved_model` says.
      signature: its name.
    """
    release = ".".join(installed.split(".")[:2])
    if release not in TENSORFLOW_RELEASES:
        return None
    entries = [each for each in description["signatures"] if each["name"] == signature]
    numbers = {used["module"] for entry in entries for used in entry["modules"]}
    modules = [m for m in description["modules"] if m["number"] in numbers]
    failing = [m for m in modules if release not in m["tensorflow"]]
    if not failing:
        return None
    command = f"jax2tf-bridge retarget {shlex.quote(str(directory))} --tensorflow {release}"
    newest = max((m["stablehlo"] or "" for m in failing), key=_version)
    read = TENSORFLOW_RELEASES[release][0]
    if _version(newest) > read:
        why = f"needs StableHLO {newest}, and TensorFlow {release} reads up to {version_text(read)}"
    else:
        releases = [r for r in TENSORFLOW_RELEASES if all(r in m["tensorflow"] for m in failing)]
        why = f"runs on {releases_text(releases)}"
    return f"{why}: {command} writes it for that release"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
