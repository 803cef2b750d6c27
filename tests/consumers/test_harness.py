"""In the harness a crash has a name and costs one program, and a difference is seen."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.consumers import consume_programs
from tests.consumers.comparison import differences
from tests.consumers.environments import newest_python
from tests.consumers.exchange import SERVED, Outcome, Report, read_arrays, write_arrays
from tests.consumers.harness import Harness, run_to_the_end
from tests.consumers.summary import pytest_terminal_summary
from tests.programs import PROGRAMS, SEVENTEEN

CRASHING = """
import os, sys
from pathlib import Path
from tests.consumers.exchange import Report
from tests.consumers.one_by_one import one_by_one

def check(name):
    if name == "crashes":
        os.abort()
    if name == "raises":
        raise ValueError("no good")
    return ["differs"] if name == "fails" else []

names = ("good", "crashes", "raises", "fails", "last")
one_by_one(Report(Path(sys.argv[1])), names, check)
"""


def test_a_crash_costs_only_its_program(tmp_path: Path) -> None:
    report = Report(tmp_path / "report.jsonl")
    stage = Harness(tmp_path).stage()
    command = [sys.executable, "-c", CRASHING, str(report.path)]
    run_to_the_end("crashing", command, report, stage, say=lambda _: None)
    outcomes = report.outcomes()
    assert list(outcomes) == ["good", "crashes", "raises", "fails", "last"]
    assert outcomes["good"].failures == outcomes["last"].failures == ()
    (crash,) = outcomes["crashes"].failures
    assert f"the process ended with {-signal.SIGABRT}" in crash
    (error,) = outcomes["raises"].failures
    assert error.startswith("ValueError: no good (at ")
    assert outcomes["fails"].failures == ("differs",)


def test_a_process_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    report = Report(tmp_path / "report.jsonl")
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with pytest.raises(RuntimeError, match="before any program:\nno such thing"):
        run_to_the_end("starting", command, report, tmp_path, say=lambda _: None)


def test_the_consumer_refuses_an_environment_that_has_jax() -> None:
    finders = list(sys.meta_path)
    with pytest.raises(RuntimeError, match="jax is installed in this environment"):
        consume_programs.main(Path("exported"), Path("report.jsonl"))
    assert sys.meta_path == finders


def test_the_stage_holds_our_packages_and_nothing_else(tmp_path: Path) -> None:
    stage = Harness(tmp_path).stage()
    assert sorted(p.name for p in stage.iterdir()) == ["jax2tf_bridge", "shape_poly", "tests"]


def test_differences_are_seen() -> None:
    expected = [
        np.array([1, 2], np.float32),
        np.array([1, 2], ml_dtypes.bfloat16),
        np.array([3], np.int32),
    ]
    assert differences("result", expected, expected, 0.0) == []
    got = [
        np.array([1, 2.1], np.float32),
        np.array([1, 2], np.float32),
        np.array([[3]], np.int32),
    ]
    assert differences("result", got, expected, 0.01) == [
        "result 0: differs by up to 0.1 (tolerance 0.01), at (1,): "
        "expected 2.0, got 2.0999999046325684",
        "result 1: expected dtype bfloat16, got float32",
        "result 2: expected shape (1,), got (1, 1)",
    ]
    assert differences("result", [], expected, 0.0) == ["results: expected 3, got 0"]
    nan, one = np.array([np.nan]), np.array([1.0])
    assert differences("result", [one], [nan], 1.0) == [
        "result 0: differs by up to inf (tolerance 1), at (0,): expected nan, got 1.0"
    ]
    assert differences("result", [nan], [nan], 1.0) == []


def test_arrays_of_every_dtype_come_back(tmp_path: Path) -> None:
    arrays = [
        np.zeros((0, 3), np.float32),
        np.array(3.5, ml_dtypes.bfloat16),
        np.array([1, 2], ml_dtypes.float8_e5m2),
        np.array([True, False]),
        np.array([1j], np.complex128),
    ]
    write_arrays(tmp_path / "arrays.npz", {"inputs": arrays, "results": []})
    back = read_arrays(tmp_path / "arrays.npz")
    assert list(back) == ["inputs"]
    assert differences("input", back["inputs"], arrays, 0.0) == []


def test_a_report_goes_on_where_it_ended(tmp_path: Path) -> None:
    report = Report(tmp_path / "report.jsonl")
    report.start("first")
    assert report.unfinished() == "first"
    report.finish(Outcome("first", ("failed",), 1.5))
    assert report.unfinished() is None
    assert Report(report.path).outcomes() == {"first": Outcome("first", ("failed",), 1.5)}


def test_the_running_python_is_found() -> None:
    own = sys.version_info[:2]
    found = newest_python((own[0], own[1]), (own[0], own[1]))
    assert found is not None
    assert found.minor == own
    assert newest_python((3, 98), (3, 99)) is None


def test_a_sample_has_what_other_tests_ask_of_it(tmp_path: Path) -> None:
    sample = Harness(tmp_path, whole=False)._names()
    assert {SERVED, *(p.name for p in SEVENTEEN)} <= set(sample)
    assert 25 < len(sample) < len(PROGRAMS) / 2
    assert Harness(tmp_path)._names() == ()


def test_the_summary_prints_failures_that_do_not_end_ci() -> None:
    lines: list[str] = []
    reports = [
        SimpleNamespace(
            nodeid=f"tests/{folder}/test_x.py::test_x", wasxfail="reason: nightly fails"
        )
        for folder in ("consumers", "house")
    ]
    reporter: Any = SimpleNamespace(
        config=SimpleNamespace(stash=pytest.Stash()),
        stats={"xfailed": reports},
        write_sep=lambda _, title, **options: lines.append(title),
        write_line=lambda text, **options: lines.append(text),
    )
    pytest_terminal_summary(reporter)
    assert lines == ["failed, which does not end CI", "WARNING: reason: nightly fails"]
