"""The tutorials of docs/tutorials: each runs from top to bottom and prints what it shows."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jax2tf_bridge.serve_checking import find_free_ports
from scripts._env import ROOT, TENSORFLOW
from tests.consumers.environments import environment, process_environment
from tests.consumers.harness import Harness, consumer_base
from tests.house.snippets import is_played
from tests.serving.conftest import runtime as runtime
from tests.serving.server import Runtime, wrap_server

pytestmark = [pytest.mark.slow, pytest.mark.consumers, pytest.mark.checkout]

TUTORIALS = ROOT / "docs" / "tutorials"


def write_command(path: Path, *words: str | Path) -> None:
    """Writes a script that runs a command with our packages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = shlex.join(map(str, words))
    path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {command} "$@"\n')
    path.chmod(0o755)


def write_environment(folder: Path, python: Path | str) -> None:
    """Writes the commands of an environment that has our packages."""
    write_command(folder / "python", python)
    write_command(folder / "jax2tf-bridge", python, "-m", "jax2tf_bridge")


def play(page: str, python: Path | str, folder: Path) -> None:
    """Runs a tutorial in a folder, with an environment's interpreter."""
    commands, work = folder / "bin", folder / "work"
    write_environment(commands, python)
    work.mkdir(exist_ok=True)
    inherited = process_environment()
    variables = {
        "PATH": f"{commands}:{inherited['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
        "TUTORIAL_PORTS": " ".join(map(str, find_free_ports(2))),
    }
    done = subprocess.run(
        [str(python), "-m", "tests.tutorials.player", str(TUTORIALS / page)],
        cwd=work,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)


def test_every_tutorial_with_commands_is_played() -> None:
    source = Path(__file__).read_text()
    played = {page.name for page in TUTORIALS.glob("*.md") if is_played(page.read_text())}
    assert {name for name in played if f'play("{name}"' in source} == played


def test_first_model(runtime: Runtime, tmp_path: Path) -> None:
    packages = ("flax", "optax", "scikit-learn", "jax", "z3-solver>=5.0.0", TENSORFLOW)
    python = environment("tutorials", consumer_base(), *packages, "google-crc32c", "{plain}")
    commands = tmp_path / "bin"
    commands.mkdir()
    wrap_server(runtime, commands)
    play("first-model.md", python, tmp_path)


def test_two_environments(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "harness")
    write_environment(
        tmp_path / "work" / "jax-env" / "bin", harness.newest_python("newest-jax", "jax")
    )
    write_environment(tmp_path / "work" / "tf-env" / "bin", harness.consumer_python("2.19.1"))
    play("two-environments.md", sys.executable, tmp_path)


def test_on_a_phone(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "harness")
    write_environment(tmp_path / "work" / "litert-env" / "bin", harness.litert_python())
    play("on-a-phone.md", sys.executable, tmp_path)
