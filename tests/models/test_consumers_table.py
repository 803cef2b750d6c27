"""docs/where-it-runs.md says what was measured of every model in every consumer."""

from pathlib import Path

import pytest

from tests.consumers.one_by_one import RECORD_TIMES, note_size, note_time, take_measures
from tests.models.comparing import FLOAT16_TOLERANCE
from tests.models.consumers import (
    CONSUMERS,
    CORE_ML,
    PAGE,
    PAGES,
    generate,
    lacking,
    recorded,
    update,
)
from tests.models.formats import FORMATS
from tests.models.table import MODELS


def test_every_cell_was_measured() -> None:
    assert list(lacking()) == []


def test_errors_are_within_the_tolerances_of_the_models() -> None:
    errors = recorded()
    for model in MODELS:
        for consumer, ways in errors[model.name].items():
            for way, error in ways.items():
                where = f"{model.name} in {consumer}, {way}"
                is_half = consumer == CORE_ML["float16"]
                tolerance = max(model.tolerance, FLOAT16_TOLERANCE if is_half else 0.0)
                assert isinstance(error, (str, bool)) or 0 <= error <= tolerance, where


def test_the_largest_errors_are_those_of_the_model_that_the_page_names() -> None:
    for each in FORMATS:
        errors = {m: max(map(float, row[each.consumer].values())) for m, row in recorded().items()}
        named = "resnet50" if each.name == "Core ML" else "dual_encoder"
        assert max(errors, key=errors.__getitem__) == named, each.name


def test_the_table_has_a_column_for_each_consumer() -> None:
    assert f"\n| model | {' | '.join(CONSUMERS)} |\n" in generate()


@pytest.mark.checkout
def test_the_page_about_converters_has_their_errors() -> None:
    text = PAGE.with_name("onnx-and-openvino.md").read_text()
    for name, row in recorded().items():
        errors = [max(map(float, row[each].values())) for each in ("tf2onnx", "OpenVINO")]
        cells = [f"{error:.0e}".replace("e-0", "e-") for error in errors]
        assert f"| `{name}` | {cells[0]} | {cells[1]} |" in text


def test_sizes_are_noted_and_times_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_measures()
    (tmp_path / "folder").mkdir()
    for name in ("a", "folder/b"):
        (tmp_path / name).write_bytes(b"four")
    calls: list[int] = []
    monkeypatch.delenv(RECORD_TIMES, raising=False)
    for name, path in (("file", tmp_path / "a"), ("folder", tmp_path)):
        note_size(name, path)
        note_time(name, lambda: calls.append(0))
    assert take_measures() == {"file": {"bytes": 4}, "folder": {"bytes": 8}}
    assert calls == []
    monkeypatch.setenv(RECORD_TIMES, "1")
    note_time("call", lambda: calls.append(0))
    measures = take_measures()
    assert len(calls) > 10
    assert 0 < measures["call"]["ms"] < 1000


@pytest.mark.checkout
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_are_up_to_date(page: Path) -> None:
    assert update(page) == page.read_text(), "run python -m tests.models.consumers"
