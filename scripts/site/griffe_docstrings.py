"""Extension of Griffe: reads docstrings as this project writes them, and links errors.

Griffe takes `>>>` for code only below a heading "Examples:"; elsewhere Markdown would make
quotations of it. It does not know that `a, b: text` describes two arguments. It links the names
that a module imports, and most modules do not import all errors that their functions raise.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*\n(?:.+\n|\n+(?=\1>>> ))*", re.MULTILINE)
_SECTION = re.compile(r"^(?:Args|Attributes):\n(?:(?: .*)?\n)+", re.MULTILINE)
_SHARED = re.compile(r"^  (\w+(?:, \w+)+): (.*\n(?:   .*\n)*)", re.MULTILINE)
_COLON = re.compile(r"::$", re.MULTILINE)
_FLAGS = re.compile(r"[ \t]*# doctest: .*$", re.MULTILINE)


def fence_examples(docstring: str) -> str:
    """Puts each run of examples into a fence, without the flags that only doctest reads.

    Of the two colons that announce a block in reStructuredText, Markdown needs one.
    """
    return _EXAMPLE.sub(_fence, _COLON.sub(":", docstring) + "\n").rstrip("\n")


def _fence(match: re.Match[str]) -> str:
    indent, text = match[1], _FLAGS.sub("", match[0])
    return f"{indent}```pycon\n{text}{indent}```\n"


def split_shared(docstring: str) -> str:
    """Repeats the text that several arguments share for each of them."""
    return _SECTION.sub(lambda section: _SHARED.sub(_split, section[0]), docstring + "\n")


def _split(match: re.Match[str]) -> str:
    return "".join(f"  {name}: {match[2]}" for name in match[1].split(", "))


class Docstrings(griffe.Extension):
    """Prepares every docstring, and makes error classes known to every module."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(split_shared(obj.docstring.value))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Adds the classes of the module `errors` to all modules of its package."""
        errors = pkg.members.get("errors")
        if not isinstance(errors, griffe.Module):
            return
        names = [
            name for name, member in errors.members.items() if isinstance(member, griffe.Class)
        ]
        modules = [pkg]
        while modules:
            module = modules.pop()
            for name in names:
                if name not in module.members:
                    module.set_member(name, griffe.Alias(name, f"{errors.path}.{name}"))
            modules += [m for m in module.members.values() if isinstance(m, griffe.Module)]
