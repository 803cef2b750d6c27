"""The notebook of the first tutorial has the code of its page, which test_tutorials.py runs."""

from __future__ import annotations

import json

import pytest

from tests.house.snippets import PYTHON, snippets
from tests.tutorials.notebook import NOTEBOOK, PAGE, write_notebook

pytestmark = pytest.mark.checkout


def test_it_is_what_the_page_gives() -> None:
    expected = write_notebook(PAGE.read_text())
    assert NOTEBOOK.read_text() == expected, "run: python -m tests.tutorials.notebook"


def test_its_code_is_the_code_of_the_page() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    install, *code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    page = [s.text.strip() for s in snippets(PAGE.read_text()) if s.language in PYTHON]
    assert code == page
    assert install == "%pip install -q 'jax2tf-bridge[jax]' flax optax scikit-learn"


def test_commands_for_a_terminal_stay_text() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    assert "$ tensorflow_model_server --port=8500" in text
    assert "docker run" in text
    assert "<!--" not in text
    assert "loss 0.15" not in text
