"""Reads the snippets of a Markdown file, by language, each with the line that it begins at."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w+-]*)(?: +title=\"(?P<title>[^\"\n]+)\")?[^\n]*\n"
    r"(?P<text>.*?)^(?P=indent)```",
    re.M | re.S,
)
PYTHON = frozenset({"python", "py", "pycon"})
SHELL = frozenset({"bash", "sh", "shell", "console"})
# None of these is run here; tests/consumers runs C and JavaScript, tests/c_library C and C++,
# tests/serving Go and Java.
OTHER = frozenset(
    {"", "text", "toml", "yaml", "json", "diff", "mermaid"}
    | {"c", "cpp", "go", "html", "java", "js", "kotlin"}
)

IN_ENGINES = frozenset({"on_beam.py", "on_ray.py", "on_spark.py"})
"""Titles of programs that need packages of their own; tests/scoring runs them."""


@dataclass(frozen=True)
class Snippet:
    """A fenced block.

    Attributes:
        language: what stands behind the fence.
        text: the block, without the fence's indentation.
        line: the number of its first line in the file.
        title: the file that it is, if it says so: ```python title="model.py".
    """

    language: str
    text: str
    line: int
    title: str | None = None


def snippets(markdown: str) -> Iterator[Snippet]:
    """Every fenced block of a Markdown text, in order."""
    for match in FENCE.finditer(markdown):
        line = markdown.count("\n", 0, match.start("text")) + 1
        indent = len(match["indent"])
        text = "".join(row[indent:] or "\n" for row in match["text"].splitlines(keepends=True))
        yield Snippet(match["language"].lower(), text, line, match["title"])


def is_played(markdown: str) -> bool:
    """Returns whether tests/tutorials runs a page, with its files and commands."""
    return "<!-- tests/tutorials runs this page -->" in markdown


def python_program(markdown: str) -> str:
    """Joins the Python snippets to one program, in which each line has its number in the file."""
    lines: list[str] = []
    for snippet in snippets(markdown):
        if snippet.language in PYTHON and snippet.title not in IN_ENGINES:
            lines += [""] * (snippet.line - 1 - len(lines))
            lines += snippet.text.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


@dataclass(frozen=True)
class Output:
    """Text that some prints print, as a page says.

    Attributes:
        lines: of the calls of print, in the file.
        text: what they print together; "..." stands for anything.
        depends_on_versions: whether each number or version may be another one.
    """

    lines: tuple[int, ...]
    text: str
    depends_on_versions: bool = False

    def fits(self, printed: str) -> bool:
        """Returns whether this was printed; blanks and line breaks count as one blank."""
        said, found = (" ".join(text.split()) for text in (self.text, printed))
        pattern = ".*".join(map(re.escape, said.split("...")))
        if self.depends_on_versions:
            # Versions have as many parts as they like.
            pattern = re.sub(r"[0-9]+(?:\\\.[0-9]+)*", lambda _: r"[0-9]+(?:\.[0-9]+)*", pattern)
        return re.fullmatch(pattern, found) is not None


VERSIONS = "<!-- numbers depend on versions -->"
"""Stands before a block of output where that is so."""


def depends_on_versions(markdown: str, snippet: Snippet) -> bool:
    """Returns whether the page says that the numbers in a block may be others."""
    return VERSIONS in markdown.splitlines()[max(0, snippet.line - 4) : snippet.line]


def outputs(markdown: str) -> Iterator[Output]:
    """Yields what a page says that its Python prints.

    It says so in a comment behind the call, or in a block of text as the next block: that is what
    the calls without comment print.
    """
    before: Snippet | None = None
    for snippet in snippets(markdown):
        if snippet.language in PYTHON and snippet.title not in IN_ENGINES:
            comments = _comments(snippet.text)
            for first, last in _prints(snippet.text):
                if last in comments:
                    yield Output((first + snippet.line - 1,), comments[last])
        elif snippet.language == "text" and before is not None and before.language in PYTHON:
            comments = _comments(before.text)
            silent = [first for first, last in _prints(before.text) if last not in comments]
            if silent:
                places = tuple(first + before.line - 1 for first in silent)
                yield Output(places, snippet.text, depends_on_versions(markdown, snippet))
        before = snippet


def _prints(program: str) -> list[tuple[int, int]]:
    """Yields the first and the last line of each call of print."""
    calls = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Call)]
    return sorted(
        (call.lineno, call.end_lineno or call.lineno)
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "print"
    )


def _comments(program: str) -> dict[int, str]:
    """Returns the comments by line."""
    found = tokenize.generate_tokens(io.StringIO(program).readline)
    return {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in found
        if token.type == tokenize.COMMENT
    }


def shell_commands(snippet: Snippet) -> Iterator[str]:
    """Yields the commands of a shell snippet: in a console, the lines behind a prompt."""
    text = re.sub(r"\\\n\s*", "", snippet.text)
    for row in text.splitlines():
        command = row.split(" #")[0].strip()
        if snippet.language == "console":
            if not command.startswith("$ "):
                continue
            command = command[2:]
        if command and not command.startswith("#"):
            yield command
