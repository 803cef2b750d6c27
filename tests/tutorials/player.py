"""Runs a tutorial from top to bottom, as a reader would, and compares what it shows.

    python -m tests.tutorials.player PAGE

It works in the current folder. Python without a title runs in one interpreter, Python with a title
becomes a file. Commands behind "$" in a console block run in a shell; a server runs until the end.
Other blocks are not run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import time
import types
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.house.snippets import PYTHON, Output, Snippet, depends_on_versions, outputs, snippets

SERVER = "tensorflow_model_server"
SECONDS_TO_START = 120
PORTS = (8500, 8501)
LOG_LINE = re.compile(
    r"^(?:WARNING: All log messages |[IWE][0-9]{4} [0-9.:]+ |(?:INFO|WARNING): |└ ).*\n",
    re.MULTILINE,
)
"""Line of the log of TensorFlow or LiteRT, which pages leave out."""


class TutorialError(AssertionError):
    """A tutorial does not do what it shows."""


@dataclass
class Player:
    """Runs the blocks of a page, one after another.

    Attributes:
      page: path of the page.
      ports: replacements of the ports that the page names.
      printed: text that each line of the page printed.
      servers: processes that run until the end.
    """

    page: Path
    ports: Sequence[int] = PORTS
    printed: dict[int, str] = field(default_factory=dict)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.main = types.ModuleType("__main__")
        self.main.__dict__["print"] = self._print

    def play(self) -> None:
        """Runs the page in the current folder.

        Raises:
          TutorialError: a command fails, or prints something else than the page shows.
        """
        sys.modules["__main__"] = self.main
        # As in a notebook or a script that lies in the folder.
        sys.path.insert(0, os.getcwd())
        markdown = self.page.read_text()
        try:
            for snippet in snippets(markdown):
                if snippet.language == "console":
                    marked = depends_on_versions(markdown, snippet)
                    for command, shown in console_commands(snippet.text):
                        self._run_command(command, Output((), shown, marked))
                elif snippet.title:
                    Path(snippet.title).write_text(snippet.text)
                elif snippet.language in PYTHON:
                    self._run_python(snippet)
        finally:
            for server in self.servers:
                server.terminate()
                server.wait()
        for output in outputs(markdown):
            found = "".join(self.printed.get(line, "") for line in output.lines)
            if not output.fits(found):
                raise TutorialError(f"{self.page}:{output.lines[0]} prints:\n{found}")

    def _print(self, *values: object, **options: Any) -> None:
        text = io.StringIO()
        print(*values, **{**options, "file": text})
        line = sys._getframe(1).f_lineno
        self.printed[line] = self.printed.get(line, "") + text.getvalue()
        print(text.getvalue(), end="")

    def _run_python(self, snippet: Snippet) -> None:
        program = "\n" * (snippet.line - 1) + snippet.text
        exec(compile(program, str(self.page), "exec"), self.main.__dict__)

    def _run_command(self, command: str, shown: Output) -> None:
        for port, replacement in zip(PORTS, self.ports, strict=True):
            command = command.replace(str(port), str(replacement))
        if SERVER in command.split():
            self._start_server(command)
            return
        done = subprocess.run(
            ["bash", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        found = LOG_LINE.sub("", done.stdout)
        print(f"$ {command}\n{found}", end="")
        if done.returncode != 0 or not shown.fits(found):
            raise TutorialError(
                f"{self.page}: {command}\nends with {done.returncode} and prints:\n{found}"
            )

    def _start_server(self, command: str) -> None:
        with Path("server.log").open("w") as log:
            # exec: the signal that ends it reaches the server and not the shell.
            words = ["bash", "-c", f"exec {command}"]
            server = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        self.servers.append(server)
        (name,) = re.findall(r"--model_name=(\S+)", command)
        url = f"http://localhost:{self.ports[1]}/v1/models/{name}"
        end = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < end and server.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
                if b'"AVAILABLE"' in answer.read():
                    return
            time.sleep(0.1)
        raise TutorialError(f"The server did not start:\n{Path('server.log').read_text()[-4000:]}")


def console_commands(text: str) -> Iterator[tuple[str, str]]:
    """Yields each command behind a prompt, and the output that is shown below it."""
    for block in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        match = re.match(r"(?:.*\\\n)*.*(?:\n|$)", block)
        assert match is not None
        yield match[0].rstrip(), block[match.end() :]


if __name__ == "__main__":
    numbers = map(int, os.environ.get("TUTORIAL_PORTS", "8500 8501").split())
    Player(Path(sys.argv[1]), list(numbers)).play()
