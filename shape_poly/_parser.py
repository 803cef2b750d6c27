"""Parses dimensions as users write them and as JAX prints them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

from shape_poly._expressions import (
    MAX_COEFFICIENT,
    MAX_DEPTH,
    MAX_PRODUCTS,
    Dim,
    DimExpr,
    OperationKind,
    as_dim,
    operation,
)

TokenKind: TypeAlias = Literal["name", "number", "symbol", "end"]

MAX_CHARACTERS = 1_000_000
_MAX_DIGITS = 39
"""Maximum number of digits; 2**128, the largest number in expressions, has 39."""
_MAX_SHOWN_CHARACTERS = 200

_NAME = re.compile(r"[^\W\d]\w*")
# Digits may be grouped as in Python: 1_000.
_TOKEN = re.compile(
    rf"(?P<space>\s+)|(?P<name>{_NAME.pattern})|(?P<number>[0-9]+(?:_[0-9]+)*)"
    r"|(?P<symbol>\*\*|//|\.\.\.|[-+*%^(),])"
)
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
      column: the column of the problem, from 1.
      problem: the description of the problem.
    """

    subject: ClassVar[str] = "dimension"
    help: ClassVar[str] = (
        "A dimension is an integer or an expression over variables with + - * //, floordiv, mod, "
        "max, min, non_negative and powers, as '2*b' or 'floordiv(h, 2) + 1'."
    )

    def __init__(self, text: str, column: int, problem: str) -> None:
        self.text, self.column, self.problem = text, column, problem
        super().__init__(
            f"The {self.subject} {_shorten(text, column)!r} is wrong at column {column}: "
            f"{problem}. {self.help}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.column, self.problem)


def _shorten(text: str, column: int) -> str:
    if len(text) <= _MAX_SHOWN_CHARACTERS:
        return text
    start = max(0, min(column - _MAX_SHOWN_CHARACTERS // 2, len(text) - _MAX_SHOWN_CHARACTERS))
    end = start + _MAX_SHOWN_CHARACTERS
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


@dataclass(frozen=True)
class Token:
    """Token of a text; `column` is its first column, from 1."""

    kind: TokenKind
    text: str
    column: int

    def __str__(self) -> str:
        return repr(self.text) if self.text else "the end of the text"


def check_is_text(text: object, error: type[DimensionSyntaxError]) -> None:
    """Raises a TypeError that explains the syntax of `error` unless `text` is a string."""
    if not isinstance(text, str):
        got = f"Got: {text!r} of type {type(text).__name__}"
        raise TypeError(f"A {error.subject} must be a string. {got}. {error.help}")


def tokenize(text: str, error: type[DimensionSyntaxError] = DimensionSyntaxError) -> list[Token]:
    """Splits a text into tokens; the last token marks the end.

    Raises:
      DimensionSyntaxError: no token starts with a character; the error has the type `error`.
      TypeError: the text is not a string.
    """
    check_is_text(text, error)
    if len(text) > MAX_CHARACTERS:
        raise error(text, MAX_CHARACTERS + 1, f"text of more than {MAX_CHARACTERS} characters")
    result: list[Token] = []
    position = 0
    while position < len(text):
        match, column = _TOKEN.match(text, position), position + 1
        if match is None:
            character = text[position]
            problem = f"unexpected {_HINTS.get(character, f'character {character!r}')}"
            raise error(text, column, problem)
        kind, token, position = match.lastgroup, match.group(), match.end()
        if kind == "name" and not token.isidentifier():
            # \w matches characters that are not allowed in Python names, and thus in JAX's.
            length = next(n for n in range(len(token)) if not token[: n + 1].isidentifier())
            raise error(text, column + length, f"unexpected character {token[length]!r}")
        if kind == "number" and (following := _NAME.match(text, position)):
            name = following.group()[:30]
            raise error(
                text,
                position + 1,
                f"expected an operator between a number and {name!r}, as in '{token[:30]}*{name}'",
            )
        if kind != "space":
            result.append(Token(cast(TokenKind, kind), token, column))
    result.append(Token("end", "", len(text) + 1))
    return result


def read_integer(token: Token, text: str, error: type[DimensionSyntaxError]) -> int:
    """Returns the value of a number.

    Raises:
      DimensionSyntaxError: the number is too large; the error has the type `error`.
    """
    digits = token.text.replace("_", "").lstrip("0")
    if len(digits) <= _MAX_DIGITS and (value := int(digits or "0")) <= MAX_COEFFICIENT:
        return value
    raise error(text, token.column, "a number above 2**128")


_FUNCTIONS: dict[str, OperationKind] = {kind: kind for kind in get_args(OperationKind)}
_QUOTIENTS: dict[str, OperationKind] = {"//": "floordiv", "%": "mod"}
_MAX_POWER = 64


def parse_dimension(text: str, *, simplify: bool = False) -> Dim:
    """Parses a dimension: an int, or a DimExpr if it has a variable.

    The syntax has `+ - * // % ^ **`, parentheses, `floordiv`, `mod`, `max`, `min` and
    `non_negative`, like the texts of jax.export (https://docs.jax.dev/en/latest/export/shape_poly.html).

    Args:
      text: the text.
      simplify: whether to simplify operations like the operators of DimExpr. Otherwise they stay
        as written, so that parsing inverts printing, and JAX, which compares expressions by their
        form, recognizes its own.

    Raises:
      DimensionSyntaxError: the text is not a dimension.
      TypeError: it is not text.

    >>> parse_dimension("mod(b, 2) + 3"), parse_dimension("2*3")
    (DimExpr('mod(b, 2) + 3'), 6)
    >>> parse_dimension("(4*b + 1) // 2"), parse_dimension("(4*b + 1) // 2", simplify=True)
    (DimExpr('floordiv(4*b + 1, 2)'), DimExpr('2*b'))
    """
    reader = DimParser(text, tokenize(text), simplify=simplify)
    result = reader.read_dimension()
    if not reader.is_at_end():
        raise reader.make_expected_error("an operator or the end")
    return result


class DimParser:
    """Recursive descent parser of dimensions.

    Args:
      text: the whole text, for errors.
      tokens: the tokens of the text.
      simplify: as in parse_dimension.
      error: the type of the errors.
    """

    def __init__(
        self,
        text: str,
        tokens: list[Token],
        *,
        simplify: bool,
        error: type[DimensionSyntaxError] = DimensionSyntaxError,
    ) -> None:
        self._text, self._tokens, self._simplify, self._error = text, tokens, simplify, error
        self._next = 0
        self._depth = 0
        self._products = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._next]

    def take(self, *texts: str) -> Token | None:
        """Consumes and returns the next token if it is one of these; else returns None."""
        token = self.token
        if token.text not in texts or token.kind == "end":
            return None
        self._next += 1
        return token

    def is_at_end(self) -> bool:
        return self.token.kind == "end"

    def make_expected_error(self, what: str) -> DimensionSyntaxError:
        """Makes an error for an unexpected token; `what` was expected."""
        token = self.token
        hint = ""
        if token.text == ")":
            hint = " (is it one too many, or is a parenthesis missing before?)"
        elif token.kind == "end" and self._depth:
            hint = " (a parenthesis is not closed)"
        return self._make_error(token, f"expected {what}, but found {token}{hint}")

    def _make_error(self, token: Token, problem: str) -> DimensionSyntaxError:
        return self._error(self._text, token.column, problem)

    def read_dimension(self) -> Dim:
        """Parses a dimension, up to the first token that cannot be part of it.

        Raises:
          DimensionSyntaxError: the tokens are not a dimension, or it is too large.
        """
        start = self.token
        try:
            return as_dim(self._sum())
        except OverflowError as e:
            raise self._make_error(start, str(e)) from e
        except RecursionError:
            # The caller may have nearly used up Python's recursion limit.
            error = self._make_error(start, "an expression nested too deeply")
        except DimensionSyntaxError as e:
            error = e
        # The traceback is dropped, because it has all frames of the descent.
        raise error.with_traceback(None) from error.__cause__

    def _sum(self) -> DimExpr:
        parts = [self._product(leads=True)]
        while sign := self.take("+", "-"):
            part = self._product(leads=False)
            parts.append(part if sign.text == "+" else -part)
        return parts[0] if len(parts) == 1 else DimExpr.sum(parts)

    def _product(self, *, leads: bool) -> DimExpr:
        result = self._factor(leads=leads)
        while symbol := self.take("*", "//", "%"):
            factor = self._factor(leads=False)
            if symbol.text == "*":
                result = self._multiply(result, factor, symbol)
            else:
                result = self._operation(_QUOTIENTS[symbol.text], symbol, [result, factor])
        return result

    def _factor(self, *, leads: bool) -> DimExpr:
        """Parses a power with its signs; `leads` is True at the start of a sum."""
        negative, signs = False, 0
        while sign := self.take("+", "-"):
            negative ^= sign.text == "-"
            signs += 1
        base = self.token
        result = self._atom()
        if caret := self.take("^", "**"):
            if signs and base.kind == "number" and not (leads and signs == 1):
                # JAX reads a*-2^2 as a*(-2)^2, Python as a*-(2^2).
                raise self._make_error(caret, "a power of a number with a sign needs parentheses")
            power, base_value = DimExpr.constant(1), result
            for _ in range(self._exponent()):
                power = self._multiply(power, base_value, caret)
            result = power
        return -result if negative else result

    def _multiply(self, left: DimExpr, right: DimExpr, place: Token) -> DimExpr:
        self._products += len(left.terms) * len(right.terms)
        if self._products > MAX_PRODUCTS:
            raise self._make_error(place, "products of too many terms")
        return left * right

    def _exponent(self) -> int:
        start = self.token
        exponents = [self._factor_of_exponent()]
        while self.take("^", "**"):
            exponents.append(self._factor_of_exponent())
        value = exponents.pop()
        while exponents:  # a^2^3 is a^(2^3)
            value = exponents.pop() ** value
            if value > _MAX_POWER:
                raise self._make_power_error(start)
        return value

    def _factor_of_exponent(self) -> int:
        start = self.token
        negative = self.take("-")
        value = self._atom().constant_value()
        if value is None or negative or not 0 <= value <= _MAX_POWER:
            raise self._make_power_error(start)
        return value

    def _make_power_error(self, start: Token) -> DimensionSyntaxError:
        return self._make_error(start, f"an exponent must be an integer from 0 to {_MAX_POWER}")

    def _atom(self) -> DimExpr:
        token = self.token
        if token.kind == "number":
            self._next += 1
            return DimExpr.constant(read_integer(token, self._text, self._error))
        if token.kind == "name":
            self._next += 1
            if self.token.text == "(":
                return self._call(token)
            if token.text in _FUNCTIONS:
                raise self.make_expected_error(f"'(' after {token}, which is not a variable")
            if token.text == "_":
                raise self._make_error(
                    token, "'_' stands for a whole dimension of a shape, not for a part of one"
                )
            return DimExpr.variable(token.text)
        if token.text == "(":
            (inner,) = self._read_parenthesized(single=True)
            return inner
        raise self.make_expected_error("a variable, a number or '('")

    def _read_parenthesized(self, *, single: bool) -> list[DimExpr]:
        opening = self.token
        self._next += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._make_error(opening, f"parentheses nested more than {MAX_DEPTH} deep")
        arguments = [self._sum()]
        while not single and self.take(","):
            arguments.append(self._sum())
        if not self.take(")"):
            raise self.make_expected_error(
                "an operator or ')'" if single else "an operator, ',' or ')'"
            )
        self._depth -= 1
        return arguments

    def _call(self, function: Token) -> DimExpr:
        name = function.text
        kind, added = _FUNCTIONS.get(name), []
        if name == "non_negative":
            kind, added = "max", [DimExpr.constant(0)]
        if kind is None:
            near = difflib.get_close_matches(name, ["non_negative", *_FUNCTIONS], n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise self._make_error(function, f"unknown function {name}{hint}")
        operands = self._read_parenthesized(single=False)
        expected = 2 - len(added)
        if len(operands) != expected:
            takes = f"{name} takes {expected} operand{'s'[: expected - 1]}"
            raise self._make_error(function, f"{takes}, but found {len(operands)}")
        return self._operation(kind, function, [*operands, *added])

    def _operation(self, kind: OperationKind, place: Token, operands: list[DimExpr]) -> DimExpr:
        left, right = operands
        try:
            return operation(kind, left, right, simplify=self._simplify)
        except ZeroDivisionError as e:
            raise self._make_error(place, "division by zero") from e
