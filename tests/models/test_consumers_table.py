"""docs/models.md says what was measured of every model in every consumer."""

import pytest

from tests.models.consumers import (
    BEGIN,
    CONSUMERS,
    END,
    PAGE,
    generated,
    lacking,
    recorded,
    updated,
)
from tests.models.table import MODELS


def test_every_cell_was_measured() -> None:
    assert list(lacking()) == []


def test_errors_are_within_the_tolerances_of_the_models() -> None:
    errors = recorded()
    for model in MODELS:
        for consumer, ways in errors[model.name].items():
            for way, error in ways.items():
                where = f"{model.name} in {consumer}, {way}"
                assert isinstance(error, (str, bool)) or 0 <= error <= model.tolerance, where


def test_the_table_has_a_column_for_each_consumer() -> None:
    first = generated().splitlines()[0]
    assert first.split(" | ")[1:] == [*CONSUMERS[:-1], f"{CONSUMERS[-1]} |"]


@pytest.mark.checkout
def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert BEGIN in text
    assert END in text
    assert updated(text) == text, "run python -m tests.models.consumers"
