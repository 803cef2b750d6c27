"""docs/command-line.md: its commands are run, in order, and print what stands there."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import fields as fields_of
from pathlib import Path

import pytest

from jax2tf_bridge.serve_checking import LoadReport
from tests.cli.conftest import Run
from tests.cli.directory_schema import DIRECTORY_SCHEMA
from tests.cli.json_fields import PAGE, list_described_fields
from tests.cli.json_schema import SCHEMA
from tests.house.snippets import PYTHON, SHELL, shell_commands, snippets

pytestmark = pytest.mark.checkout


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command behind a prompt, and what is shown of its output."""
    for block in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = block.partition("\n")
        yield command, output


@pytest.mark.costly
@pytest.mark.usefixtures("prints_here")
def test_commands_print_what_the_page_shows(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "model", raising=False)
    count = 0
    for snippet in snippets(PAGE.read_text()):
        if snippet.language in PYTHON:
            (tmp_path / "model.py").write_text(snippet.text)
        for command, shown in commands(snippet.text):
            program, *words = shlex.split(command)
            assert program == "jax2tf-bridge"
            ended = run(*words)
            expected = ".*".join(map(re.escape, shown.split("...")))
            assert re.fullmatch(expected, ended.out + ended.err), f"{command}\n{ended}"
            count += 1
    assert count == shown_commands()
    monkeypatch.delitem(sys.modules, "model")


@pytest.mark.usefixtures("prints_here")
def test_commands_of_the_readme_run_from_an_empty_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "model", raising=False)
    count = 0
    for snippet in snippets((PAGE.parents[1] / "README.md").read_text()):
        if snippet.title:
            (tmp_path / snippet.title).write_text(snippet.text)
        for command in shell_commands(snippet) if snippet.language in SHELL else ():
            program, *words = shlex.split(command)
            if program == "python":
                runpy.run_path(words[0], run_name="__main__")
            elif program == "jax2tf-bridge":
                ended = run(*words)
                assert ended.code == 0, ended
                count += 1
    assert count == 2
    assert (tmp_path / "predict" / "1" / "saved_model.pb").exists()
    monkeypatch.delitem(sys.modules, "model")


def shown_commands() -> int:
    """Counts the lines of the page that begin with a prompt."""
    return sum(line.startswith("$ ") for line in PAGE.read_text().splitlines())


@pytest.mark.parametrize(
    ("head", "schema"), [("field", SCHEMA), ("field of a SavedModel", DIRECTORY_SCHEMA)]
)
def test_the_schema_is_described(head: str, schema: dict[str, object]) -> None:
    described = list_described_fields(head)

    def fields(schema: object) -> Iterator[str]:
        if isinstance(schema, dict):
            yield from schema
            for part in schema.values():
                yield from fields(part)
        elif isinstance(schema, list):
            yield from fields(schema[0])

    # Fields that may be null have no schema of their own.
    nullable = {"orders", "then", "left_out", "variables", "constraints", "requirements"}
    nullable |= {"requests", "problem"}
    assert set(fields(schema)) <= described
    assert described <= set(fields(schema)) | nullable


def test_the_fields_of_a_load_test_are_described() -> None:
    fields = {field.name for field in fields_of(LoadReport)} - {"latencies_ms"}
    assert list_described_fields("field of `serve-check --load`") == fields


def test_the_page_has_the_exit_codes() -> None:
    codes = re.findall(r"^\| ([\d, ]+) \|", PAGE.read_text(), re.MULTILINE)
    assert codes == ["0", "1", "2", "130, 141"]
