"""Writes the notebook of the first tutorial from its page.

    python -m tests.tutorials.notebook

Python blocks become cells of code. Commands for a second terminal stay text. Outputs are left out:
running the notebook makes them.
"""

from __future__ import annotations

import json
import re
from typing import Any

from scripts._env import ROOT
from tests.house.snippets import FENCE, PYTHON

PAGE = ROOT / "docs" / "tutorials" / "first-model.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
INSTALL = "pip install 'jax2tf-bridge[jax,tensorflow-cpu]' "
"""Beginning of the page's command that installs packages."""
NOTE = (
    "This is the notebook of {page}. Colab has TensorFlow already. Elsewhere, write"
    " `'jax2tf-bridge[jax,tensorflow-cpu]'` in the next cell. To install a wheel of your own,"
    " upload it and write its path, as `'./jax2tf_bridge-0.1.0-py3-none-any.whl[jax]'`."
)
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_ITSELF = re.compile(r"^The same page is a .*?\n\n", re.MULTILINE | re.DOTALL)
"""Paragraph of the page that links to the notebook."""


def write_notebook(markdown: str) -> str:
    """Returns the text of the notebook of a page."""
    markdown = _ITSELF.sub("", markdown)
    cells: list[dict[str, Any]] = []
    text, end, follows_code = "", 0, False
    for match in FENCE.finditer(markdown):
        before = _COMMENT.sub("", markdown[end : match.start()])
        text += before
        end = match.end()
        language = match["language"]
        is_install = match["text"].startswith(INSTALL)
        if language in PYTHON or is_install:
            if is_install:
                text += NOTE.format(page=f"[{PAGE.name}]({PAGE.name})")
            _add_cell(cells, "markdown", text)
            packages = match["text"].removeprefix(INSTALL)
            source = (
                f"%pip install -q 'jax2tf-bridge[jax]' {packages}" if is_install else match["text"]
            )
            _add_cell(cells, "code", source)
            text = ""
        elif language != "text" or not follows_code or before.strip():
            text += markdown[match.start() : match.end()]
        follows_code = language in PYTHON
    _add_cell(cells, "markdown", text + _COMMENT.sub("", markdown[end:]))
    notebook = {
        "cells": cells,
        "metadata": {
            "colab": {"provenance": []},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _add_cell(cells: list[dict[str, Any]], kind: str, source: str) -> None:
    source = source.strip()
    if not source:
        return
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": f"cell-{len(cells)}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    cells.append(cell)


if __name__ == "__main__":
    NOTEBOOK.write_text(write_notebook(PAGE.read_text()))
    print(f"wrote {NOTEBOOK.relative_to(ROOT)}")
