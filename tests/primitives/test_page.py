"""docs/primitives.md says what the table says."""

import pytest

from tests.primitives.page import BEGIN, END, PAGE, generated, updated


@pytest.mark.checkout
def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert updated(text) == text, "run python -m tests.primitives.page"


def test_other_text_is_kept() -> None:
    text = f"# Title\n\n{BEGIN}\nold\n{END}\n\nbehind\n"
    expected = f"# Title\n\n{BEGIN}\n\n{generated()}\n\n{END}\n\nbehind\n"
    assert updated(text) == expected
    assert updated(expected) == expected
