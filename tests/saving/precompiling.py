"""Precompiles in the process of a test, where another one is not the point: it compiles nothing."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

# Private: its process is run in this one.
from jax2tf_bridge.saving.serving import _warm_up


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Runs here what `precompile` starts; gives the environments that it starts it with."""
    environments = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[:3] == [sys.executable, "-m", _warm_up.__name__]
        environments.append(options["env"])
        error = _warm_up._main(*command[3:])
        return subprocess.CompletedProcess(command, 0 if error is None else 1, "", error or "")

    monkeypatch.setattr(_warm_up, "subprocess", SimpleNamespace(run=run))
    return environments
