"""Parses symbolic sizes and constraints from files, with bounded work."""

from __future__ import annotations

import re

from shape_poly import Comparison, DimensionSyntaxError, parse_comparison

MAX_TEXT = 1 << 17
"""Maximum number of characters of all symbolic sizes of a file; parsing takes a few seconds."""

MAX_WITH_PARENTHESES = 8
"""Maximum number of constraints with grouping parentheses in a file; each may take a second."""

# Expressions are printed with parentheses after function names only. Other parentheses may contain
# products of sums, whose expansion is much longer than their text.
_GROUP = re.compile(r"(?<!\w)\(")


def has_own_parentheses(text: str) -> bool:
    """Returns whether a text has parentheses that do not follow a function name."""
    return _GROUP.search(text) is not None


class Comparisons:
    """A parser for the constraints of one file, with a cache and bounded work."""

    def __init__(self) -> None:
        self._results: dict[str, Comparison | str] = {}
        self._characters = 0
        self._with_parentheses = 0

    def parse(self, text: str) -> Comparison | str:
        """Returns the parsed comparison, or the reason why the text cannot be parsed."""
        if text not in self._results:
            self._results[text] = self._parse_new(text)
        return self._results[text]

    def _parse_new(self, text: str) -> Comparison | str:
        self._characters += len(text)
        if self._characters > MAX_TEXT:
            return f"all constraints have more than {MAX_TEXT} characters together"
        # Users write constraints by hand, so some may have grouping parentheses.
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
