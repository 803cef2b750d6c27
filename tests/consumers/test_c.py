"""The program in C of docs/clients.md, compiled and run as the page says."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts._env import ROOT
from tests.consumers.environments import process_environment
from tests.consumers.harness import NEWEST_TENSORFLOW, Harness, NotAvailableError
from tests.house.snippets import python_program, snippets

pytestmark = [pytest.mark.slow, pytest.mark.consumers, pytest.mark.checkout]

MAX_LINES = 80


def test_the_program_in_c(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("gcc") is None:
        raise NotAvailableError("no gcc on the PATH: the program in C was NOT tested")
    page = (ROOT / "docs" / "clients.md").read_text()
    blocks = list(snippets(page))
    (number,) = (i for i, block in enumerate(blocks) if block.language == "c")
    program, output = blocks[number].text, blocks[number + 1].text
    (build,) = (block.text for block in blocks if block.text.startswith("find="))
    assert program.count("\n") <= MAX_LINES
    (tmp_path / "call.c").write_text(program)
    (tmp_path / "build.sh").write_text(build)
    monkeypatch.chdir(tmp_path)
    exec(compile(python_program(page), "clients.md", "exec"), {"__name__": "page"})
    python = harness.consumer_python(NEWEST_TENSORFLOW)
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    environment = process_environment({"PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"})

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    done = run("bash", "-e", "build.sh")
    assert (done.returncode, done.stderr) == (0, "")
    done = run("./call", "net/1")
    assert (done.returncode, done.stdout) == (0, output), done.stderr
    done = run("./call", "net")
    assert (done.returncode, "load: Could not find SavedModel" in done.stderr) == (1, True)
