"""Checks the documentation: its Python runs, its commands exist, its links lead on."""

import doctest
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import pytest
import tensorflow as tf

import jax2tf_bridge
import shape_poly
from jax2tf_bridge import errors
from tests.house.imports import ROOT
from tests.house.pages import check_outputs, follow, run_python
from tests.house.snippets import (
    FENCE,
    OTHER,
    PYTHON,
    SHELL,
    Snippet,
    is_played,
    outputs,
    python_program,
    shell_commands,
    snippets,
)

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMANDS = {
    "export",
    "save",
    "publish",
    "litert",
    "tfjs",
    "weights",
    "inspect",
    "retarget",
    "verify",
}
COMMANDS |= {"versions", "rollback", "promote"}
COMMANDS |= {"serve-check", "completion", "compile", "coreml"}
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
PACKAGES = [Path(str(package.__file__)).parent for package in (jax2tf_bridge, shape_poly)]
SOURCES = {
    ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in package.rglob("*.py")
}
# To look for examples in every docstring of a module takes longer than to look for one at all.
WITH_EXAMPLES = sorted(name for name, path in SOURCES.items() if ">>>" in path.read_text())


# These start processes, or set variables before what reads them is imported.
# loading.md ends the process with JAX 0.12 and TensorFlow 2.21 behind some 2,000 other tests, and
# not by itself; the reason is not known.
ALONE = {"docs/c-library.md", "docs/exporting-in-parallel.md", "docs/loading.md", "docs/models.md"}
PLAYED = [page for page in PAGES if is_played(page.read_text())]
# They take more than a second.
SLOW_PAGES = {
    *("docs/buckets.md", "docs/keras.md", "docs/learning-models.md", "docs/litert.md"),
    *("docs/migrating.md", "docs/onnx-and-openvino.md", "docs/quantisation.md"),
    *("docs/saving.md", "docs/scoring-many-rows.md", "docs/troubleshooting.md"),
    *("docs/tutorials/classify-text.md", "docs/tutorials/fine-tune-in-keras.md"),
    "docs/tutorials/from-orbax-export.md",
}
HERE = [
    pytest.param(page, id=name, marks=pytest.mark.slow if name in SLOW_PAGES else ())
    for page, name in zip(PAGES, IDS, strict=True)
    if name not in ALONE and page not in PLAYED and python_program(page.read_text())
]

# Their doctests start processes that export, or a compiler or converter.
SLOW_MODULES = {
    *("jax2tf_bridge.parallel._export_many", "jax2tf_bridge.parallel._executors"),
    *("jax2tf_bridge.c_library._compile", "jax2tf_bridge.litert._save"),
}


@pytest.mark.parametrize("page", HERE)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the snippets of a page as one program: later ones use what earlier ones made."""
    text = page.read_text()
    program = compile(python_program(text), str(page), "exec")
    printed: dict[int, list[str]] = {}

    def noted_print(*values: object, **options: Any) -> None:
        """Prints, and notes which line of the page did it."""
        here = io.StringIO()
        print(*values, **{**options, "file": here})
        frame = sys._getframe(1)
        if frame.f_code.co_filename == str(page):
            printed.setdefault(frame.f_lineno, []).append(here.getvalue())

    # The page's definitions are in its main module, which other processes cannot import.
    main = types.ModuleType("__main__")
    main.__dict__["print"] = noted_print
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path)
    settings = dict(jax.config.values)
    with mock.patch.dict(os.environ), warnings.catch_warnings():
        exec(program, main.__dict__)
    changed = {name for name, value in settings.items() if jax.config.values[name] != value}
    for name in changed:
        jax.config.update(name, settings[name])
    assert not changed
    check_outputs(page, printed)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALONE))
def test_python_runs_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    """Nothing that a page needs has been imported or set by another one.

    scripts/wheel does this with the README, in an environment that has only what it installs.
    """
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES[0].parent)}
    run_python(ROOT / name, tmp_path, environment)


FOLLOWED = """
```python
print(1 + 1)  # 2
```
```python title="answer.py"
open("answer.txt", "w").write("42")
```
```bash
scripts/test
python answer.py
```
"""


def test_a_page_is_followed_from_top_to_bottom(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(FOLLOWED)
    follow(page, tmp_path)
    assert (tmp_path / "answer.txt").read_text() == "42"
    page.write_text(FOLLOWED.replace("# 2", "# 3"))
    with pytest.raises(AssertionError, match=r"page\.md, line 3 prints:\n2"):
        follow(page, tmp_path)
    page.write_text(FOLLOWED.replace("python answer.py", "python missing.py"))
    with pytest.raises(subprocess.CalledProcessError):
        follow(page, tmp_path)


def _problem(command: str, files: Collection[str] = ()) -> str | None:
    """Why a shell command of the documentation does not work, or None.

    `files` are those that the page itself has.
    """
    words = shlex.split(command)
    if words[0].startswith(("scripts/", ".ci/")):
        return None if os.access(ROOT / words[0], os.X_OK) else f"{words[0]} is no script"
    # In tutorials also those of an environment: jax-env/bin/pip.
    program = words[0].rpartition("/")[2]
    if [program, words[1]] == ["pip", "install"]:
        return _pip_problem(words[2:])
    if re.fullmatch(r"python3\.[0-9]+", program) and words[1:3] == ["-m", "venv"]:
        return None
    if words[0] in {"python", "python3"}:
        is_file = words[1].endswith(".py") and words[1] not in files
        return f"no {words[1]}" if is_file and not (ROOT / words[1]).exists() else None
    if words[0] == "jax2tf-bridge":
        return None if words[1] in COMMANDS else "no such command"
    if words[0] in {"git", "cd", "docker", "mkdir", ".venv/bin/pre-commit"}:
        return None
    return "unknown to this test: teach it, or leave the command out"


def _pip_problem(words: list[str]) -> str | None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words:
        asked = re.fullmatch(r"(?:jax2tf-bridge|\.)\[([\w,-]+)\]", word)
        if asked:
            unknown = set(asked[1].split(",")) - set(extras["optional-dependencies"])
            if unknown:
                return f"no extra {sorted(unknown)}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_exist(page: Path) -> None:
    files = {snippet.title for snippet in snippets(page.read_text()) if snippet.title}
    for snippet in snippets(page.read_text()):
        assert snippet.language in PYTHON | SHELL | OTHER, f"line {snippet.line}: language?"
        # tests/tutorials runs the commands of a console.
        if snippet.language in (SHELL - {"console"} if page in PLAYED else SHELL):
            for command in shell_commands(snippet):
                problem = _problem(command, files)
                assert problem is None, f"{page.name}, line {snippet.line}: {command}: {problem}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if not target.startswith(("http://", "https://", "#", "mailto:")):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"


def test_the_page_of_errors_lists_every_error() -> None:
    rows: dict[str, list[str]] = {}
    for line in (ROOT / "docs" / "errors.md").read_text().splitlines():
        cells = line.split("|")
        if len(cells) == 6 and (cell := re.fullmatch(r" `(\w+)` ", cells[1])):
            assert cell[1] not in rows, "the page lists it twice"
            rows[cell[1]] = re.findall(r"(?<!JAX's )`(\w+)`", cells[2])
    bases = {
        name: {base.__name__ for base in kind.__mro__}
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.BridgeError)
    }
    assert rows.keys() == bases.keys() - {"BridgeError"}
    for name, listed in rows.items():
        assert bases[name].issuperset(listed), name


def _anchors(markdown: str) -> set[str]:
    """Makes the anchors of a page's headings as GitHub does."""
    text = FENCE.sub("", markdown)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_to_headings_lead_to_a_heading(page: Path) -> None:
    for file, anchor in re.findall(r"\]\(([\w./-]*)#([^)\s]+)\)", page.read_text()):
        linked = page.parent / file if file else page
        assert anchor in _anchors(linked.read_text()), f"{page.name}: {file}#{anchor}"


def _count_literals(text: str, sources: str) -> int:
    """Counts the fewest string literals that text can be made of."""
    count = 0
    while text:
        end = next((end for end in range(len(text), 0, -1) if text[:end] in sources), None)
        assert end is not None, text
        text, count = text[end:], count + 1
    return count


def test_troubleshooting_quotes_messages_of_the_code() -> None:
    """Compares each quoted line, but for its words in capitals, with the sources."""
    sources = "\n".join(path.read_text() for path in SOURCES.values())
    # Joins literals that Python joins.
    sources = re.sub(r'"\s*\n\s*f?"', "", sources)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    quotes = re.findall(r"^> (.+)$", page, re.MULTILINE)
    assert len(quotes) > 10
    for quote in quotes:
        for part in re.split(r"\b[A-Z]{4,}\b", quote):
            assert _count_literals(part, sources) <= 4, f"no message has: {part}"


def test_readme_shows_the_two_commands_and_some_python() -> None:
    found = list(snippets((ROOT / "README.md").read_text()))
    commands = {c for s in found if s.language in SHELL for c in shell_commands(s)}
    assert {"scripts/demo", "scripts/test"} <= commands
    assert any(snippet.language in PYTHON for snippet in found)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(module, marks=pytest.mark.slow if module in SLOW_MODULES else ())
        for module in WITH_EXAMPLES
    ],
)
def test_doctests(module: str) -> None:
    release = tuple(map(int, tf.__version__.split(".")[:2]))
    if module == "jax2tf_bridge.c_library._compile" and release < (2, 21):
        pytest.skip("TensorFlow before 2.21 has no tfcompile for C libraries")
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0


def test_modules_without_examples_can_be_imported() -> None:
    for module in SOURCES.keys() - set(WITH_EXAMPLES):
        # Apache Beam and coremltools are not in this environment.
        if not module.startswith(("jax2tf_bridge.beam", "jax2tf_bridge.coreml.")):
            importlib.import_module(module)


def test_modules_that_start_processes_are_there() -> None:
    assert set(WITH_EXAMPLES) >= SLOW_MODULES


def test_some_doctests_were_found() -> None:
    found = doctest.DocTestFinder().find(importlib.import_module("shape_poly"))
    assert any(test.examples for test in found)


MARKDOWN = """Text
```python
x = 1
```
  ```python
  y = x +
  ```
```console
$ scripts/test -k x
412 passed
```
```bash
pip install \\
  "jax2tf-bridge[jax]"  # comment
```
"""


def test_snippets_keep_their_line_numbers() -> None:
    program = python_program(MARKDOWN)
    assert program == "\n\nx = 1\n\n\ny = x +\n"
    with pytest.raises(SyntaxError) as caught:
        compile(program, "page.md", "exec")
    assert caught.value.lineno == 6


PRINTING = """
```python title="model.py"
print(1)  # 1
print(  # of two lines
    2
)  # about ...
```
```python
print(3)
for i in range(2):
    print(i)
```
<!-- numbers depend on versions -->

```text
3 of 5
0
```
"""


def test_what_a_page_says_that_is_printed() -> None:
    one, two, block = outputs(PRINTING)
    assert [one.lines, two.lines, block.lines] == [(3,), (4,), (9, 11)]
    assert one.fits("1\n")
    assert not one.fits("10\n")
    assert two.fits("about   2 lines")
    assert not two.fits("of about 2 lines")
    assert block.fits("12 of 345\n7\n")
    assert not block.fits("12 in 345\n7\n")
    assert [snippet.title for snippet in snippets(PRINTING)] == ["model.py", None, None]


def test_commands_of_shell_snippets() -> None:
    shells = [snippet for snippet in snippets(MARKDOWN) if snippet.language in SHELL]
    assert [c for snippet in shells for c in shell_commands(snippet)] == [
        "scripts/test -k x",
        'pip install "jax2tf-bridge[jax]"',
    ]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("scripts/no_such_script", "is no script"),
        ("pip install 'jax2tf-bridge[jaxx]'", "no extra"),
        ("pip install '.[jax,tf]'", "no extra ['tf']"),
        ("python examples/no_such_file.py", "no examples/no_such_file.py"),
        ("curl example.org", "unknown to this test"),
    ],
)
def test_wrong_commands_are_seen(command: str, problem: str) -> None:
    assert problem in (_problem(command) or "")
    assert list(shell_commands(Snippet("bash", command, 1))) == [command]


def test_the_overview_is_the_same_in_light_and_dark() -> None:
    texts = [(ROOT / "docs" / f"overview-{theme}.svg").read_text() for theme in ("light", "dark")]
    light, dark = (re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL) for text in texts)
    assert light == dark
    rules = [re.findall(r"^ +(\.\w+) \{", text, re.MULTILINE) for text in texts]
    assert rules[0] == rules[1]
    used = {f".{name}" for name in re.findall(r'class="(\w+)"', light)}
    assert used == set(rules[0])
