"""Checks the runs of the tests: their budgets, the limit on a test, and the plugins."""

from __future__ import annotations

import gc
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import _times
from tests.consumers.environments import process_environment
from tests.house.imports import ROOT
from tests.house.layering import STANDS_ON
from tests.plugins import compiled_programs, pure
from tests.plugins.blocked_imports import Blocker
from tests.plugins.parameter_samples import LITTLE_OF_EITHER
from tests.plugins.quick_compilation import FLAGS, compile_quickly, quick_flags_of
from tests.plugins.shared_contexts import MAX_USES, SharedContexts
from tests.sampling import THOROUGH, examples, sampled, stride

pytestmark = pytest.mark.checkout


def test_contributing_states_the_budgets() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    stated = dict(re.findall(r"\| `(?:scripts/)?(\S+?)` \|[^|\n]*\| (\d+ (?:s|min)) \|", text))
    for script, budget in _times.BUDGETS.items():
        wall = f"{budget.wall:.0f} s" if budget.wall < 60 else f"{budget.wall / 60:.0f} min"
        assert stated[script] == wall, script
    assert f"more than {_times.LARGEST_SHARE:.0%} of the suite's CPU time" in text


def test_a_test_over_the_limit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    assert _times.read_test_times(path) == []  # pytest ended before it could write them
    rows = [
        *(
            {"test": f"tests/a/test_x.py::test_quick[{i}]", "cpu": 1.9, "wall": 3.0}
            for i in range(51)
        ),
        {"test": "tests/a/test_x.py::test_dear[1]", "cpu": 3.1, "wall": 2.0},
    ]
    path.write_text(json.dumps(rows))
    found = _times.read_test_times(path)
    name = "tests/a/test_x.py::test_dear[1]"
    assert _times.over_limit(found) == {
        name: f"{name} took 3.1 CPU seconds, more than 2% of the 100 that all tests took"
    }
    assert _times.over_limit(found, [_times.TestTime(name, 1.5, 2.0)]) == {}
    lines = list(_times.table(found))
    assert lines[1].split() == ["100.0", "155.0", "52", "tests/a"]
    assert lines[3].endswith("test_dear[1]")


def test_a_budget_says_when_it_is_exceeded() -> None:
    budget = _times.Budget("test", 300)
    assert budget.verdict(301).endswith(", OVER BUDGET")
    assert "on two cores: 5.0 min; took 99 s" in budget.verdict(99)
    assert "OVER" not in budget.verdict(300)


MEASURED = """
import subprocess, sys, time

def burn():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass

def test_itself():
    burn()

def test_child():
    code = "import time\\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_sleeps():
    time.sleep(0.3)
"""


def test_times_are_those_of_the_test_and_its_children(tmp_path: Path) -> None:
    (tmp_path / "test_measured.py").write_text(MEASURED)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.plugins.cpu_times"]
    command += ["-n", "1", "--cpu-times", "times.json", "--rootdir", str(tmp_path)]
    environment = process_environment(
        {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    )
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    rows = {row["test"]: row for row in json.loads((tmp_path / "times.json").read_text())}
    cpu = {name.split("::")[1]: row["cpu"] for name, row in rows.items()}
    assert cpu["test_itself"] >= 0.25  # the kernel counts in ticks
    assert cpu["test_child"] >= 0.45
    assert cpu["test_sleeps"] < 0.25 <= rows["test_measured.py::test_sleeps"]["wall"]


def test_collections_pass_over_what_imports_made() -> None:
    assert gc.get_freeze_count() > 10_000


TABLE = """
import pytest

@pytest.mark.parametrize("x", range(6))
def test_table(x):
    pass

def test_alone():
    pass

@pytest.mark.costly
def test_costly():
    pass
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # First the folder cli, where one of every four tests of a module is kept.
        ("--every 4", "table[0] table[4] table[0] table[4] alone costly"),
        ("--half", "table[0] table[2] table[4] alone table[0] table[2] table[4] alone"),
        ("--rest", "table[1] table[3] table[5] costly table[1] table[3] table[5] costly"),
    ],
)
def test_samples_of_parameters(tmp_path: Path, words: str, expected: str) -> None:
    (tmp_path / "test_table.py").write_text(TABLE)
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "test_words.py").write_text(TABLE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = costly: takes long")
    plugins = ("-p", "tests.plugins.parameter_samples", "-p", "no:cacheprovider")
    options = (*plugins, *words.split(), "--collect-only", "-q", str(tmp_path))
    command = [sys.executable, "-m", "pytest", *options]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tests = [line.partition("::test_")[2] for line in printed.splitlines() if "::" in line]
    assert tests == expected.split()
    assert LITTLE_OF_EITHER.isdisjoint(STANDS_ON)


def test_lowerings_of_a_thread_share_a_context() -> None:
    share = SharedContexts(itertools.count(1).__next__)
    assert [share() for _ in range(MAX_USES + 1)] == [*[1] * MAX_USES, 2]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(share).result() == 3


def test_pure_names_exist_and_decide() -> None:
    for name in pure.PURE:
        assert (pure.TESTS / name).exists(), f"tests/plugins/pure.py: no tests/{name}"
    assert pure.is_pure(pure.TESTS / "shape_poly" / "test_parser.py")
    assert not pure.is_pure(pure.TESTS / "test_programs.py")


@pytest.fixture
def blocker() -> Iterator[None]:
    blocks = Blocker(pure.BLOCKED, " (pytest --pure)")
    sys.meta_path.insert(0, blocks)
    yield
    sys.meta_path.remove(blocks)


@pytest.mark.usefixtures("blocker")
def test_pure_tests_cannot_import_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'jax' \(pytest --pure\)"):
        import jax  # noqa: F401


def test_flags_for_quick_compilation_leave_those_that_were_given() -> None:
    environ = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    compile_quickly(environ)
    *added, given = environ["XLA_FLAGS"].split()
    assert given == "--xla_force_host_platform_device_count=8"
    assert set(added) <= set(FLAGS)
    again = dict(environ)
    compile_quickly(again)
    assert again == environ
    chosen = {"XLA_FLAGS": "--xla_backend_optimization_level=3"}
    compile_quickly(chosen)
    assert chosen == {"XLA_FLAGS": "--xla_backend_optimization_level=3"}


def test_another_environment_gets_the_quick_flags_that_its_xla_knows(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    assert quick_flags_of(python) == ""
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "tensorflow"
    package.mkdir(parents=True)
    (package / "libtensorflow_cc.so.2").write_bytes(b"\0xla_backend_optimization_level\0")
    assert quick_flags_of(python) == "--xla_backend_optimization_level=0"


def test_consumers_compile_as_xla_does_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert "XLA_FLAGS" not in process_environment()


def test_a_sample_keeps_every_row_in_some_run() -> None:
    rows = sampled(range(10), every=4, keep=lambda row: row == 9)
    assert [row.values[0] for row in rows] == list(range(10))
    assert [row.values[0] for row in rows if not row.marks] == [0, 4, 8, 9]
    assert {mark.name for row in rows for mark in row.marks} == {"complete"}
    with pytest.raises(AssertionError, match=r"no rows of the table: \['qr'\]"):
        sampled(["lu"], every=2, keep=["qr"])


def test_laws_are_tried_on_more_examples_before_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THOROUGH, raising=False)
    assert (examples(20), stride(3)) == (20, 3)
    monkeypatch.setenv(THOROUGH, "1")
    assert (examples(20), stride(3)) == (200, 1)
    assert f'"{THOROUGH}"' in (ROOT / "scripts" / "_commands.py").read_text()


@pytest.mark.skipif(not compiled_programs.memory_maps(), reason="it is not known here")
def test_compiled_programs_are_dropped_before_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    cleared = []
    monkeypatch.setitem(
        sys.modules, "jax", SimpleNamespace(clear_caches=lambda: cleared.append(True))
    )
    # Tests before this one may have left many programs.
    monkeypatch.setattr(compiled_programs, "_MANY", sys.maxsize)
    compiled_programs.pytest_runtest_teardown(request.node, None)
    assert cleared == []
    monkeypatch.setattr(compiled_programs, "_MANY", 1)
    compiled_programs.pytest_runtest_teardown(request.node, request.node)
    assert cleared == []
    compiled_programs.pytest_runtest_teardown(request.node, None)
    assert cleared == [True]
