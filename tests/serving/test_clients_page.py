"""The programs in Go and Java of docs/clients.md, which call a real TensorFlow Serving."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts._env import ROOT
from tests.house.snippets import python_program, snippets
from tests.serving.server import Runtime, Server, read_instructions, serving

pytestmark = [pytest.mark.slow, pytest.mark.consumers, pytest.mark.checkout]

PAGE = ROOT / "docs" / "clients.md"


@pytest.fixture(scope="module")
def server(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the model of the page."""
    folder = tmp_path_factory.mktemp("clients")
    page: dict[str, Any] = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(python_program(PAGE.read_text()), "clients.md", "exec"), page)
        text = str(page["saved"].serving)  # its path is relative to the folder
    with serving(runtime, read_instructions(text), folder) as running:
        yield running


def run(language: str, name: str, command: list[str], port: int, folder: Path) -> tuple[str, str]:
    """Runs a program of the page; returns what it prints, and what the page says."""
    blocks = list(snippets(PAGE.read_text()))
    (number,) = (i for i, block in enumerate(blocks) if block.language == language)
    program = folder / name
    program.write_text(blocks[number].text.replace("localhost:8501", f"localhost:{port}"))
    words = [*command, str(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, blocks[number + 1].text


@pytest.mark.skipif(shutil.which("go") is None, reason="no go: the page's client was NOT run")
def test_go(server: Server, tmp_path: Path) -> None:
    printed, shown = run("go", "call.go", ["go", "run"], server.rest_port, tmp_path)
    assert printed == shown


@pytest.mark.skipif(shutil.which("java") is None, reason="no java: the page's client was NOT run")
def test_java(server: Server, tmp_path: Path) -> None:
    printed, shown = run("java", "Call.java", ["java"], server.rest_port, tmp_path)
    answer, expected = json.loads(printed)["outputs"], json.loads(shown)["outputs"]
    np.testing.assert_allclose(answer, expected, rtol=1e-5)
