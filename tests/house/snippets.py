"""The snippets of a Markdown file, by language, each with the line that it begins at."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```", re.M | re.S
)
PYTHON = frozenset({"python", "py", "pycon"})
SHELL = frozenset({"bash", "sh", "shell", "console"})
# Nothing in these can be run.
OTHER = frozenset({"", "text", "toml", "yaml", "json", "diff", "mermaid", "c++", "cpp"})


@dataclass(frozen=True)
class Snippet:
    """A fenced block.

    Attributes:
        language: what stands behind the fence.
        text: the block, without the fence's indentation.
        line: the number of its first line in the file.
    """

    language: str
    text: str
    line: int


def snippets(markdown: str) -> Iterator[Snippet]:
    """Every fenced block of a Markdown text, in order."""
    for match in FENCE.finditer(markdown):
        line = markdown.count("\n", 0, match.start("text")) + 1
        indent = len(match["indent"])
        text = "".join(row[indent:] or "\n" for row in match["text"].splitlines(keepends=True))
        yield Snippet(match["language"].lower(), text, line)


def python_program(markdown: str) -> str:
    """The Python snippets as one program, in which each line has its number in the file."""
    lines: list[str] = []
    for snippet in snippets(markdown):
        if snippet.language in PYTHON:
            lines += [""] * (snippet.line - 1 - len(lines))
            lines += snippet.text.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


def shell_commands(snippet: Snippet) -> Iterator[str]:
    """The commands of a shell snippet: in a console, the lines behind a prompt."""
    text = re.sub(r"\\\n\s*", "", snippet.text)
    for row in text.splitlines():
        command = row.split(" #")[0].strip()
        if snippet.language == "console":
            if not command.startswith("$ "):
                continue
            command = command[2:]
        if command and not command.startswith("#"):
            yield command
