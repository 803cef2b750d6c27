"""Runs a page of the documentation in a process of its own; needs only the standard library.

`python -m tests.house.pages PAGE` follows a page from top to bottom, as its readers do, with the
packages that this Python has: its files, its Python, then its commands.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.house.snippets import SHELL, outputs, python_program, shell_commands, snippets

_NOTING = """
import sys; path, text = sys.argv[1:]
def print(*values, print=print, **options):
    print('@@', sys._getframe(1).f_lineno, end=' @@ ')
    print(*values, **options)
exec(compile(text, path, 'exec'))
"""
# These make an environment, which a page's reader has by now, or need the checkout.
_LEFT_OUT = ("pip install", "scripts/")


def run_python(page: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Runs the Python of a page as one program, and compares what it prints with the page."""
    text = page.read_text()
    done = subprocess.run(
        [sys.executable, "-c", _NOTING, str(page), python_program(text)],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, *parts = re.split(r"^@@ ([0-9]+) @@ ", done.stdout, flags=re.MULTILINE)
    printed: dict[int, list[str]] = {}
    for line, part in zip(parts[::2], parts[1::2], strict=True):
        printed.setdefault(int(line), []).append(part)
    check_outputs(page, printed)


def check_outputs(page: Path, printed: Mapping[int, Sequence[str]]) -> None:
    """Raises unless each line of a page printed what the page says."""
    for said in outputs(page.read_text()):
        found = "".join(part for line in said.lines for part in printed.get(line, []))
        assert said.fits(found), f"{page.name}, line {said.lines[0]} prints:\n{found}"


def follow(page: Path, folder: Path) -> None:
    """Runs the Python of a page, writes its files, and runs its commands."""
    binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": binaries}
    print(f"running the Python of {page.name}", flush=True)
    run_python(page, folder, environment)
    found = list(snippets(page.read_text()))
    for snippet in found:
        if snippet.title is not None:
            (folder / snippet.title).write_text(snippet.text)
    commands = [c for s in found if s.language in SHELL for c in shell_commands(s)]
    followed = [command for command in commands if not command.startswith(_LEFT_OUT)]
    assert followed, f"{page.name} has no commands"
    for command in followed:
        print(f"$ {command}", flush=True)
        subprocess.run(shlex.split(command), cwd=folder, env=environment, check=True)
    print(f"{page.name}: its Python and {len(followed)} commands ran")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        follow(Path(sys.argv[1]).absolute(), Path(name))
