"""The programs of docs/scoring-many-rows.md in Ray Data, Spark and Beam, whose workers die once."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax2tf_bridge import RowScorer
from scripts._env import TENSORFLOW
from tests.consumers.conftest import harness as harness
from tests.consumers.environments import environment, process_environment
from tests.consumers.harness import Harness, NotAvailableError, consumer_base
from tests.house.imports import ROOT
from tests.house.snippets import IN_ENGINES, python_program, snippets

pytestmark = [pytest.mark.slow, pytest.mark.checkout]

PAGE = ROOT / "docs" / "scoring-many-rows.md"
ENGINES = (
    f"{TENSORFLOW}==2.21.0",
    "apache-beam==2.77.0",
    "pyspark==4.3.0",
    "ray[data]==2.60.0",
    "pandas==2.3.3",
    "pyarrow==25.0.1",
)
COUNT = 400


@pytest.fixture(scope="module")
def python(harness: Harness) -> Path:
    """Returns the interpreter of an environment with the engines and without JAX."""
    try:
        return environment("engines", consumer_base(), *ENGINES, "{plain}", say=harness.say)
    except NotAvailableError as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the page's models and programs, and the rows."""
    folder = tmp_path_factory.mktemp("engines")
    text = PAGE.read_text()
    before = Path.cwd()
    os.chdir(folder)
    try:
        exec(compile(python_program(text), str(PAGE), "exec"), {"__name__": "page"})
    finally:
        os.chdir(before)
    for snippet in snippets(text):
        if snippet.title in IN_ENGINES:
            (folder / snippet.title).write_text(snippet.text)
    rng = np.random.default_rng(1)
    np.save(folder / "x.npy", rng.random((COUNT, 16), np.float32))
    lengths = rng.integers(0, 40, COUNT)  # the largest bucket is 32
    lines = [
        json.dumps({"id": f"t{number}", "ids": rng.integers(0, 50, length).tolist()})
        for number, length in enumerate(lengths)
    ]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def run(
    python: Path, stage: Path, folder: Path, program: str, deadly: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program; the process that scores the row `deadly` dies the first time."""
    (folder / "scores.json").unlink(missing_ok=True)
    variables = {
        "PYTHONPATH": str(stage),
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Reads the table in a task, and not by actors, each of which is a process.
        "RAY_DATA_USE_DATASOURCE_V2": "0",
    }
    return subprocess.run(
        [str(python), "-m", "tests.scoring.run_program", program, deadly],
        cwd=folder,
        env=process_environment(variables),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("engine", ["ray", "spark"])
def test_table_loses_no_row_when_a_worker_dies(
    harness: Harness, python: Path, folder: Path, engine: str
) -> None:
    if engine == "spark" and shutil.which("java") is None:
        pytest.skip("no Java on the PATH (default-jre-headless): Spark was NOT tested")
    (folder / "died").unlink(missing_ok=True)
    for other in folder.glob("*-scores"):
        shutil.rmtree(other)
    done = run(python, harness.stage(), folder, f"on_{engine}.py", "150")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "died").exists()
    rows = json.loads((folder / "scores.json").read_text())
    assert sorted(row["id"] for row in rows) == list(range(COUNT))
    x = np.load(folder / "x.npy")
    expected = RowScorer(folder / "models" / "dense").score_columns({"x": x})["scores"]
    for row in rows:
        np.testing.assert_allclose(row["scores"], expected[row["id"]], rtol=1e-5)
    if engine == "ray":
        np.testing.assert_allclose(np.load(folder / "arrow.npy"), expected, rtol=1e-5)
        error = "Row 1, input x: expected float32, got None. Fill it in, or leave the row out."
        assert (folder / "arrow.txt").read_text().splitlines() == [error] * 2


def test_texts_in_a_pipeline_that_dies_are_scored_in_the_next_run(
    harness: Harness, python: Path, folder: Path
) -> None:
    """Beam's local runner runs in the process itself, and writes nothing if that dies."""
    (folder / "died").unlink(missing_ok=True)
    output = folder / "beam-scores.jsonl"
    first = run(python, harness.stage(), folder, "on_beam.py", "t150")
    assert first.returncode == -9, first.stderr[-3000:]
    assert (folder / "died").exists()
    assert not output.exists()
    second = run(python, harness.stage(), folder, "on_beam.py", "t150")
    assert second.returncode == 0, second.stderr[-3000:]
    scores = [json.loads(line) for line in output.read_text().splitlines()]
    texts = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in scores) == sorted(text["id"] for text in texts)
    rows: list[dict[str, Any]] = [{**t, "attention_mask": [1] * len(t["ids"])} for t in texts]
    expected = RowScorer(folder / "models" / "text").score(rows)
    by_id = {text["id"]: values for text, values in zip(texts, expected, strict=True)}
    for row in scores:
        np.testing.assert_allclose(row["embedding"], by_id[row["id"]]["embedding"], atol=1e-5)
