"""The benchmarks' page is what their results say, and changes between results are found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import _page
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks._chart import DARK, LIGHT, Bar, Theme, draw_chart
from benchmarks._measure import Spread, compute_ratios
from benchmarks._results import Report, add_report, find_changes, read_results

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]


def test_the_page_and_its_chart_are_made_of_the_results() -> None:
    """`python -m benchmarks --page` writes them anew."""
    for path, text in _page.make_pages(read_results(_page.RESULTS)).items():
        assert path.read_text() == text, f"{path.name}: run python -m benchmarks --page"


def test_the_page_shows_every_table_and_names_every_command() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    for title, report in read_results(_page.RESULTS).items():
        assert " | ".join(report.rows[0]) in text, title
    for module in {words[0] for words in BENCHMARKS.values()}:
        assert re.search(rf"python -m benchmarks\.{module}\b", text), module
        assert (ROOT / "benchmarks" / f"{module}.py").exists()


def report(*spreads: Spread, title: str = "Calls", who: str = "bridge") -> Report:
    return Report(
        title=title,
        benchmark="latency",
        date="2026-11-23",
        versions={"jax": "0.10.2"},
        cores=2,
        header=["who", "x"],
        rows=[[who, "1.00"]],
        measured=[
            {
                "who": who,
                "batch": 32,
                "median": {"median": 1.0, "low": 1.0, "high": 1.0, "is_ratio": False},
                "to jax2tf": {"median": s.median, "low": s.low, "high": s.high, "is_ratio": True},
            }
            for s in spreads
        ],
    )


def test_results_are_kept_by_title(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert read_results(file) == {}
    first, other = report(Spread(1, 1, 1)), report(Spread(2, 2, 2), title="Others")
    for each in (first, other, report(Spread(3, 3, 3))):
        add_report(file, each)
    found = read_results(file)
    assert list(found) == ["Calls", "Others"]
    assert found["Others"] == other
    assert found["Calls"].measured[0]["to jax2tf"]["median"] == 3
    file.write_text("[]")
    with pytest.raises(ValueError, match=r"results.json is no file of results of `python -m benc"):
        read_results(file)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1.0, 0.9, 1.1), (1.3, 1.2, 1.4), True),
        ((1.3, 1.2, 1.4), (1.0, 0.9, 1.1), False),
        ((1.0, 0.9, 1.1), (1.3, 1.05, 1.4), None),  # the rounds differ by as much
        ((1.0, 1.0, 1.0), (1.05, 1.05, 1.05), None),  # by less than a tenth
    ],
)
def test_changes_beyond_what_rounds_differ_by(
    before: tuple[float, float, float], after: tuple[float, float, float], expected: bool | None
) -> None:
    old, new = ({"Calls": report(Spread(*each))} for each in (before, after))
    found = list(find_changes(old, new))
    assert [change.is_slower for change in found] == ([] if expected is None else [expected])
    for change in found:
        assert (change.row, change.name) == ("bridge, 32", "to jax2tf")
    assert list(find_changes({}, new)) == []
    assert list(find_changes({"Calls": report(Spread(9, 9, 9), who="another")}, new)) == []


def test_what_is_measured_as_ratios_is_compared() -> None:
    found = compute_ratios({"a": [1.0, 2.0], "b": [2.0, 2.0]}, "a", "b")
    assert found.is_ratio
    assert not Spread.of([1.0, 2.0]).is_ratio


def test_a_benchmark_is_run_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    add_report(old, report(Spread(1, 1, 1)))
    commands: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        assert not check
        commands.append(command)
        add_report(Path(command[command.index("--json") + 1]), report(Spread(2, 2, 2)))
        return subprocess.CompletedProcess(command, int("files" in command[2]))

    monkeypatch.setattr(subprocess, "run", run)
    words = ["latency", "--rounds", "3", "--json", str(new), "--against", str(old)]
    assert main(words) == 1
    start = [sys.executable, "-m", "benchmarks.latency"]
    assert commands == [[*start, "--json", str(new), "--rounds", "3"]]
    assert re.search(
        r"Calls +\| bridge, 32 +\| to jax2tf +\| 1.00 +\| 2.00 +\| SLOWER", _out(capsys)
    )
    assert main(["latency", "--against", str(new)]) == 0
    assert "No ratio differs by more than a tenth" in _out(capsys)
    assert main(["buckets", "files"]) == 1
    assert commands[-2][2:4] == ["benchmarks.saving", "--buckets"]
    assert "failed: files" in capsys.readouterr().err


def _out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["latencies"], "no benchmark 'latencies': there are latency, convert_time"),
        (["--against", "nothing.json"], "--against: there is no file nothing.json"),
    ],
)
def test_errors(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_bars_go_from_one_to_their_ratio(theme: Theme) -> None:
    svg = draw_chart([Bar("less", 0.1, "jax2tf"), Bar("more & more", 2.0, "Flax")], theme)
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    bars = [
        (float(each.get("x", 0)), float(each.get("width", 0)), each.get("fill"))
        for each in root.findall(f"{space}rect")[1:]
    ]
    (left, width, less), (begin, _, more) = bars
    assert left + width == pytest.approx(begin, abs=0.2)
    assert (less, more) == (theme.less, theme.more)
    texts = [each.text for each in root.findall(f"{space}text")]
    assert {"0.10", "2.00", "less", "more & more", "against Flax"} <= set(texts)
