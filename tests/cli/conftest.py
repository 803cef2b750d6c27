"""Runs the command in this process, in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

import jax2tf_bridge

# Private: modules are printed in this process, where another process is not the point.
from jax2tf_bridge.cli import _inspect, main

FINDS_PACKAGES = {"PYTHONPATH": str(Path(jax2tf_bridge.__file__).parents[1])}
"""The variable with which another process finds the packages under test, from any folder."""


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command that ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Returns the one line of an error, without its prefix."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("jax2tf-bridge: error: "), self.err
        return self.err.removeprefix("jax2tf-bridge: error: ").removesuffix("\n")


Run = Callable[..., Ended]
Ok = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command with these words in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run_command(*words: str | Path) -> Ended:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return run_command


@pytest.fixture
def ok(run: Run) -> Ok:
    """Runs a command that must work without a word on stderr, and gives what it printed."""

    def run_command(*words: str | Path) -> str:
        ended = run(*words)
        assert (ended.code, ended.err) == (0, ""), ended
        return ended.out

    return run_command


@pytest.fixture
def prints_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has JAX print modules in this process, where another one is not the point."""
    from jax2tf_bridge.from_jax.stablehlo import write_texts

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        assert command[:3] == [sys.executable, "-c", _inspect._PROGRAM]
        folder, longest = command[3:]
        write_texts(Path(folder), int(longest))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(_inspect, "subprocess", SimpleNamespace(**vars(subprocess) | {"run": run}))


@pytest.fixture(scope="session")
def exported_cube(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Exports a function with its gradient, and gives what the file holds."""
    file = tmp_path_factory.mktemp("exported") / "cube.jaxfn"
    words = ["export", "tests.cli.models:cube", "--args", "f32[n]", "-o", str(file)]
    assert main(words) == 0
    return file.read_bytes()


@pytest.fixture
def cube(run: Run, exported_cube: bytes) -> str:
    """Writes its file into the folder of `run`, and gives the name."""
    Path("cube.jaxfn").write_bytes(exported_cube)
    return "cube.jaxfn"
