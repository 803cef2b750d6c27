"""Symbolic sizes and constraints in files, whose parsing must not take longer than reading."""

from __future__ import annotations

import re

from shape_poly import Comparison, DimensionSyntaxError, parse_comparison

MAX_TEXT = 1 << 17
"""How long all symbolic sizes of a file may be: a few seconds, at the very worst, to parse."""

MAX_WITH_PARENTHESES = 8
"""How many constraints of a file may have parentheses of their own: a second each, at worst."""

# An expression is printed with parentheses after function names only. Others could hold products
# of sums, which are short as text and long to multiply out.
_GROUP = re.compile(r"(?<!\w)\(")


def has_own_parentheses(text: str) -> bool:
    """Tells whether there are parentheses that do not follow the name of a function."""
    return _GROUP.search(text) is not None


class Comparisons:
    """Parses the constraints of one file, each text once, with bounded work."""

    def __init__(self) -> None:
        self._found: dict[str, Comparison | str] = {}
        self._characters = 0
        self._with_parentheses = 0

    def parse(self, text: str) -> Comparison | str:
        """Parses a text, or says why it cannot be read."""
        if text not in self._found:
            self._found[text] = self._parsed(text)
        return self._found[text]

    def _parsed(self, text: str) -> Comparison | str:
        self._characters += len(text)
        if self._characters > MAX_TEXT:
            return f"all constraints have more than {MAX_TEXT} characters together"
        # People write them as they like, so some may have parentheses.
        if has_own_parentheses(text):
            self._with_parentheses += 1
            if self._with_parentheses > MAX_WITH_PARENTHESES:
                return (
                    f"more than {MAX_WITH_PARENTHESES} constraints have parentheses of their own: "
                    "write 2*a + 2*b for 2*(a + b)"
                )
        try:
            return parse_comparison(text)
        except DimensionSyntaxError as e:
            return e.problem.encode(errors="backslashreplace").decode()
