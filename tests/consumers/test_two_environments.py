"""JAX in one environment, TensorFlow in another, and a file between them: by the commands alone.

The newest JAX exports, in an environment that TensorFlow was never in; releases of TensorFlow
that cannot be installed beside it save, each in its own, and a fresh process there loads what was
saved.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts._env import locked
from tests.consumers.environments import process_environment
from tests.consumers.harness import CONSUMER_RELEASES, Harness
from tests.sampling import sampled

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

RELEASES = CONSUMER_RELEASES[:-1]  # the newest can be installed beside the newest JAX

_END = "-- end of a command"
_SEVERAL = f"""
import json, sys
from jax2tf_bridge.cli import main
for words in json.loads(sys.argv[1]):
    if status := main(words):
        sys.exit(f"{{words}} ended with {{status}}")
    print({_END!r})
"""


def _run(harness: Harness, *command: str | Path) -> str:
    """Runs a command in the folder that holds our packages and nothing else."""
    stage = harness.stage()
    done = subprocess.run(
        list(map(str, command)),
        cwd=stage,
        env=process_environment({"PYTHONPATH": str(stage), "JAX_PLATFORMS": "cpu"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _run_commands(
    harness: Harness, python: Path, commands: Sequence[Sequence[str | Path]]
) -> list[str]:
    """Runs the first command in a process of its own, and the others in one; returns the outputs.

    The others share a process because each would import JAX or TensorFlow again.
    """
    first, *others = [list(map(str, words)) for words in commands]
    printed = _run(harness, python, "-c", _SEVERAL, json.dumps(others))
    outputs = [_run(harness, python, "-m", "jax2tf_bridge", *first), *printed.split(f"{_END}\n")]
    assert outputs.pop() == ""
    assert len(outputs) == len(commands)
    return outputs


def _exported(harness: Harness) -> Path:
    """Makes the folder with JAX's answers and the .jaxfn file of each program, once."""
    folder = harness.folder / "commands"
    with locked(harness.folder / "commands.lock"):
        if (folder / "complete").exists():
            return folder
        folder.mkdir(exist_ok=True)
        python = harness.newest_python("newest-jax", "jax")
        _run(harness, python, "-m", "tests.consumers.commands_jax_side", folder)
        commands = []
        for facts in _programs(folder):
            words = json.loads(facts.read_text())["words"]
            file = facts.with_suffix(".jaxfn")
            harness.say(f"jax2tf-bridge export {' '.join(words)} -o {file.name}")
            commands.append(["export", *words, "-o", file])
        _run_commands(harness, python, commands)
        (folder / "complete").touch()
    return folder


def _programs(folder: Path) -> Sequence[Path]:
    """Lists the files of facts about each program; those of its calls have a number."""
    return sorted(p for p in folder.glob("*.json") if not re.search(r"-\d+$", p.stem))


def _names(signature: str) -> dict[str, list[str]]:
    """Reads the names of inputs and outputs, in order, from what `jax2tf-bridge save` printed."""
    inputs, outputs = signature.split("serving_default(")[1].split(" -> ")
    return {
        "inputs": re.findall(r"(\w+): ", inputs),
        "outputs": re.findall(r"(\w+): ", outputs),
    }


@pytest.mark.parametrize("release", sampled(RELEASES, every=len(RELEASES)))
def test_values_and_gradients(harness: Harness, release: str, tmp_path: Path) -> None:
    folder = _exported(harness)
    python = harness.consumer_python(release)
    programs = _programs(folder)
    assert len(programs) >= 5
    commands = [("save", p.with_suffix(".jaxfn"), "-o", tmp_path / p.stem) for p in programs]
    outputs = _run_commands(harness, python, commands)
    for facts, printed in zip(programs, outputs, strict=True):
        (tmp_path / facts.name).write_text(json.dumps(_names(printed)))
    consumer = "tests.consumers.commands_tensorflow_side"
    tensorflow, *found = _run(harness, python, "-m", consumer, folder, tmp_path).splitlines()
    assert tensorflow == release
    assert not found, "\n".join(found)
