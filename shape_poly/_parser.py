"""Reads dimensions that users write and that JAX prints."""

from __future__ import annotations

import difflib

from shape_poly._expressions import (
    MAX_DEPTH,
    MAX_PRODUCTS,
    Dim,
    DimExpr,
    OperationKind,
    as_dim,
    operation,
)
from shape_poly._tokens import DimensionSyntaxError, Token, integer, tokens

__all__ = ["DimParser", "DimensionSyntaxError", "parse_dimension"]

_FUNCTIONS: dict[str, OperationKind] = {
    "floordiv": "floordiv",
    "mod": "mod",
    "max": "max",
    "min": "min",
}
_QUOTIENTS: dict[str, OperationKind] = {"//": "floordiv", "%": "mod"}
_MAX_POWER = 64


def parse_dimension(text: str, *, simplify: bool = False) -> Dim:
    """Reads a dimension from text: an int, or a DimExpr if it has a variable.

    Reads `+ - * // % ^ **`, parentheses, `floordiv`, `mod`, `max`, `min`, `non_negative`, as
    jax.export prints them (https://docs.jax.dev/en/latest/export/shape_poly.html).

    Args:
      text: the text.
      simplify: whether operations are simplified as the operators of DimExpr do. If not they
        stay as written, so that reading undoes printing, and JAX, which compares expressions
        by their form, still knows its own.

    Raises:
      DimensionSyntaxError: the text is something else.

    >>> parse_dimension("mod(b, 2) + 3"), parse_dimension("2*3")
    (DimExpr('mod(b, 2) + 3'), 6)
    >>> parse_dimension("(4*b + 1) // 2"), parse_dimension("(4*b + 1) // 2", simplify=True)
    (DimExpr('floordiv(4*b + 1, 2)'), DimExpr('2*b'))
    """
    reader = DimParser(text, tokens(text), simplify=simplify)
    result = reader.dimension()
    reader.expect_end()
    return result


def _near(name: str) -> str:
    """Suggests the function that was probably meant, in parentheses; "" if there is none."""
    near = difflib.get_close_matches(name, ["non_negative", *_FUNCTIONS], n=1)
    return f" (did you mean {near[0]}?)" if near else ""


class DimParser:
    """Recursive descent parser of dimensions.

    Args:
      text: the whole text, for errors.
      found: its tokens.
      simplify: as for parse_dimension.
      error: the type of the errors.
    """

    def __init__(
        self,
        text: str,
        found: list[Token],
        *,
        simplify: bool,
        error: type[DimensionSyntaxError] = DimensionSyntaxError,
    ) -> None:
        self._text, self._tokens, self._simplify, self._error = text, found, simplify, error
        self._next = 0
        self._depth = 0
        self._products = 0

    @property
    def token(self) -> Token:
        """Returns the token to be read next."""
        return self._tokens[self._next]

    def take(self, *texts: str) -> Token | None:
        """Reads the next token if it is one of these symbols or names, else returns None."""
        token = self._tokens[self._next]
        if token.text not in texts or token.kind == "end":
            return None
        self._next += 1
        return token

    def at_end(self) -> bool:
        """Checks whether everything is read."""
        return self._tokens[self._next].kind == "end"

    def expect_end(self) -> None:
        """Raises the error if anything is left to be read."""
        if not self.at_end():
            raise self.expected("an operator or the end")

    def expected(self, what: str) -> DimensionSyntaxError:
        """Makes the error that something else should stand at the next token."""
        found = self.token
        hint = ""
        if found.text == ")":
            hint = " (is it one too many, or is a parenthesis missing before?)"
        elif found.kind == "end" and self._depth:
            hint = " (a parenthesis is not closed)"
        return self.problem(found, f"expected {what}, but found {found}{hint}")

    def problem(self, token: Token, problem: str) -> DimensionSyntaxError:
        """Makes an error at a token."""
        return self._error(self._text, token.column, problem)

    def dimension(self) -> Dim:
        """Reads a dimension, up to a token that cannot be part of it.

        Raises:
          DimensionSyntaxError: there is none, or it is too large.
        """
        start = self.token
        try:
            return as_dim(self._sum())
        except OverflowError as e:
            raise self.problem(start, str(e)) from e
        except RecursionError:
            # Python's own limit, where the caller used it up nearly.
            error = self.problem(start, "an expression nested too deeply")
        except DimensionSyntaxError as e:
            error = e
        # Without the many frames of the descent.
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
                result = self._multiplied(result, factor, symbol)
            else:
                result = self._operation(_QUOTIENTS[symbol.text], symbol, [result, factor])
        return result

    def _factor(self, *, leads: bool) -> DimExpr:
        """Reads a power with signs before it; `leads` if it starts a sum."""
        negative, signs = False, 0
        while sign := self.take("+", "-"):
            negative ^= sign.text == "-"
            signs += 1
        base = self.token
        result = self._atom()
        if caret := self.take("^", "**"):
            if signs and base.kind == "number" and not (leads and signs == 1):
                # JAX reads a*-2^2 as a*(-2)^2, Python as a*-(2^2).
                raise self.problem(caret, "a power of a number with a sign needs parentheses")
            power, base_value = DimExpr.constant(1), result
            for _ in range(self._exponent()):
                power = self._multiplied(power, base_value, caret)
            result = power
        return -result if negative else result

    def _multiplied(self, left: DimExpr, right: DimExpr, place: Token) -> DimExpr:
        self._products += len(left.terms) * len(right.terms)
        if self._products > MAX_PRODUCTS:
            raise self.problem(place, "products of too many terms")
        return left * right

    def _exponent(self) -> int:
        start = self.token
        exponents: list[int] = []
        while True:
            found = self._factor_of_exponent()
            exponents.append(found)
            if not self.take("^", "**"):
                break
        value = exponents.pop()
        while exponents:  # a^2^3 is a^(2^3)
            value = self._power(exponents.pop(), value, start)
        return self._power(value, 1, start)

    def _factor_of_exponent(self) -> int:
        start = self.token
        negative = self.take("-")
        value = self._atom().constant_value()
        if value is None or negative or not 0 <= value <= _MAX_POWER:
            raise self._bad_power(start)
        return value

    def _power(self, base: int, exponent: int, start: Token) -> int:
        value: int = base**exponent
        if value > _MAX_POWER:
            raise self._bad_power(start)
        return value

    def _bad_power(self, start: Token) -> DimensionSyntaxError:
        return self.problem(start, f"an exponent must be an integer from 0 to {_MAX_POWER}")

    def _atom(self) -> DimExpr:
        token = self.token
        if token.kind == "number":
            self._next += 1
            return DimExpr.constant(integer(token, self._text, self._error))
        if token.kind == "name":
            self._next += 1
            if self.token.text == "(":
                return self._call(token)
            if token.text in _FUNCTIONS:
                raise self.expected(f"'(' after {token}, which is no variable")
            if token.text == "_":
                raise self.problem(
                    token,
                    "'_' stands for a whole dimension of a shape, not for a part of one",
                )
            return DimExpr.variable(token.text)
        if token.text == "(":
            (inner,) = self._within_parentheses(one=True)
            return inner
        raise self.expected("a variable, a number or '('")

    def _within_parentheses(self, *, one: bool) -> list[DimExpr]:
        opening = self.token
        self._next += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.problem(opening, f"parentheses nested more than {MAX_DEPTH} deep")
        found = [self._sum()]
        while not one and self.take(","):
            found.append(self._sum())
        if not self.take(")"):
            raise self.expected("an operator or ')'" if one else "an operator, ',' or ')'")
        self._depth -= 1
        return found

    def _call(self, function: Token) -> DimExpr:
        if function.text != "non_negative" and function.text not in _FUNCTIONS:
            raise self.problem(function, f"unknown function {function.text}{_near(function.text)}")
        operands = self._within_parentheses(one=False)
        expected = 1 if function.text == "non_negative" else 2
        if len(operands) != expected:
            raise self.problem(
                function,
                f"{function.text} takes {expected} operand{'s'[: expected - 1]}, "
                f"but found {len(operands)}",
            )
        if function.text == "non_negative":
            return self._operation("max", function, [operands[0], DimExpr.constant(0)])
        return self._operation(_FUNCTIONS[function.text], function, operands)

    def _operation(self, kind: OperationKind, place: Token, operands: list[DimExpr]) -> DimExpr:
        left, right = operands
        try:
            return operation(kind, left, right, simplify=self._simplify)
        except ZeroDivisionError as e:
            raise self.problem(place, "division by zero") from e
