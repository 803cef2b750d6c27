"""Splits the text of dimensions and shapes into tokens, with errors that name the column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from shape_poly._expressions import MAX_COEFFICIENT

TokenKind: TypeAlias = Literal["name", "number", "symbol", "end"]

MAX_CHARACTERS = 1_000_000
_MAX_DIGITS = 39
"""Maximum number of digits; 2**128, the largest number in expressions, has 39."""
_SHOWN = 200

_SPACE = re.compile(r"\s+")
_NAME = re.compile(r"[^\W\d]\w*")
# Python's numbers may be grouped: 1_000.
_NUMBER = re.compile(r"[0-9]+(?:_[0-9]+)*")
_SYMBOL = re.compile(r"\*\*|//|\.\.\.|[-+*%^(),]")
_HINTS = {
    "/": "'/': sizes are integers, write '//' to round down",
    ".": "'.': sizes are integers, and '...' stands for several dimensions",
    "=": "'=': conditions go into the constraints",
    "<": "'<': conditions go into the constraints",
    ">": "'>': conditions go into the constraints",
}


class DimensionSyntaxError(ValueError):
    """Raised for text that is not a dimension.

    Attributes:
      text: the whole text.
      column: where in it (from 1).
      problem: what is wrong there.
    """

    subject: ClassVar[str] = "dimension"
    help: ClassVar[str] = (
        "A dimension is an integer or an expression over variables with + - * //, floordiv, mod, "
        "max, min, non_negative and powers, as '2*b' or 'floordiv(h, 2) + 1'."
    )

    def __init__(self, text: str, column: int, problem: str) -> None:
        """Makes the error about `text` at `column`."""
        self.text, self.column, self.problem = text, column, problem
        super().__init__(
            f"The {self.subject} {excerpt(text, column)!r} is wrong at column {column}: "
            f"{problem}. {self.help}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.column, self.problem)


def excerpt(text: str, column: int) -> str:
    """Shortens a text to show in an error about that column."""
    if len(text) <= _SHOWN:
        return text
    start = max(0, min(column - _SHOWN // 2, len(text) - _SHOWN))
    end = start + _SHOWN
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


@dataclass(frozen=True)
class Token:
    """Piece of text; `column` is where it starts (from 1)."""

    kind: TokenKind
    text: str
    column: int

    def __str__(self) -> str:
        return repr(self.text) if self.text else "the end of the text"


def tokens(text: str, error: type[DimensionSyntaxError] = DimensionSyntaxError) -> list[Token]:
    """Splits a text into tokens, the last one its end.

    Raises:
      DimensionSyntaxError: of the type `error`, at a character that starts no token.
    """
    if len(text) > MAX_CHARACTERS:
        raise error(text, MAX_CHARACTERS + 1, f"text of more than {MAX_CHARACTERS} characters")
    found: list[Token] = []
    position = 0
    while position < len(text):
        space = _SPACE.match(text, position)
        if space:
            position = space.end()
            continue
        token = _token(text, position, error)
        found.append(token)
        position += len(token.text)
    found.append(Token("end", "", len(text) + 1))
    return found


def _token(text: str, position: int, error: type[DimensionSyntaxError]) -> Token:
    column = position + 1
    if match := _NAME.match(text, position):
        name = match.group()
        # \w has characters that Python's names, so JAX's variables, have not.
        for length in range(1, len(name) + 1) if not name.isidentifier() else ():
            if not name[:length].isidentifier():
                raise error(text, column + length - 1, f"unexpected character {name[length - 1]!r}")
        return Token("name", name, column)
    if match := _NUMBER.match(text, position):
        digits = match.group()
        following = _NAME.match(text, match.end())
        if following:
            raise error(
                text,
                match.end() + 1,
                f"expected an operator between a number and {following.group()[:30]!r}, as in "
                f"'{digits[:30]}*{following.group()[:30]}'",
            )
        return Token("number", digits, column)
    if match := _SYMBOL.match(text, position):
        return Token("symbol", match.group(), column)
    character = text[position]
    raise error(text, column, f"unexpected {_HINTS.get(character, f'character {character!r}')}")


def integer(token: Token, text: str, error: type[DimensionSyntaxError]) -> int:
    """Returns the value of a number.

    Raises:
      DimensionSyntaxError: of the type `error`, if it is too large.
    """
    digits = token.text.replace("_", "").lstrip("0")
    if len(digits) <= _MAX_DIGITS and (value := int(digits or "0")) <= MAX_COEFFICIENT:
        return value
    raise error(text, token.column, "a number above 2**128")
