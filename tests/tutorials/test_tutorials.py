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
from tests.consumers.harness import Harness, NotAvailableError, consumer_base
from tests.house.snippets import is_played, snippets
from tests.serving.conftest import runtime as runtime
from tests.serving.server import Runtime, wrap_server

pytestmark = [pytest.mark.slow, pytest.mark.consumers, pytest.mark.checkout]

DOCS = ROOT / "docs"


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
        [str(python), "-m", "tests.tutorials.player", str(DOCS / page)],
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
    pages = [page for page in DOCS.rglob("*.md") if is_played(page.read_text())]
    played = {page.relative_to(DOCS).as_posix() for page in pages}
    assert {name for name in played if f'play("{name}"' in source} == played


def tutorial_python() -> Path:
    """Returns the interpreter of an environment with what several pages install."""
    packages = ("flax", "optax", "scikit-learn", "tokenizers", "pandas", "pyarrow")
    ours = ("jax", "z3-solver>=5.0.0", TENSORFLOW, "google-crc32c", "{plain}")
    return environment("tutorials", consumer_base(), *packages, *ours)


def test_first_model(runtime: Runtime, tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    wrap_server(runtime, commands)
    play("tutorials/first-model.md", tutorial_python(), tmp_path)


def test_two_environments(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "harness")
    try:
        newest = harness.newest_python("newest-jax", "jax")
    except NotAvailableError as e:
        pytest.skip(str(e))
    write_environment(tmp_path / "work" / "jax-env" / "bin", newest)
    write_environment(tmp_path / "work" / "tf-env" / "bin", harness.consumer_python("2.19.1"))
    play("tutorials/two-environments.md", sys.executable, tmp_path)


def test_on_a_phone(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "harness")
    write_environment(tmp_path / "work" / "litert-env" / "bin", harness.litert_python())
    play("tutorials/on-a-phone.md", sys.executable, tmp_path)


def test_tokenisation(tmp_path: Path) -> None:
    play("tokenisation.md", tutorial_python(), tmp_path)


def test_score_a_table(tmp_path: Path) -> None:
    play("tutorials/score-a-table.md", tutorial_python(), tmp_path)


def test_the_script_of_jax2tf_differs_by_one_import() -> None:
    page = (DOCS / "tutorials" / "from-jax2tf.md").read_text()
    before, after = (s.text for s in snippets(page) if "converted = " in s.text)
    before = before.replace("from jax.experimental import jax2tf\n", "").replace('"before"', "PATH")
    after = after.replace("import jax2tf_bridge as jax2tf\n", "").replace('"step-1"', "PATH")
    assert before.split() == after.split()
