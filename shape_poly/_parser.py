"""Reads a dimension from text: what users write and what JAX prints."""

from __future__ import annotations

import ast

from shape_poly._expressions import Dim, DimExpr, OperationKind, operation

_MAX_CHARACTERS = 10_000
"""Longer text is refused before Python's parser sees it: it recurses."""

_FUNCTIONS: dict[str, OperationKind] = {
    "floordiv": "floordiv",
    "mod": "mod",
    "max": "max",
    "min": "min",
}


class DimensionSyntaxError(ValueError):
    """Text that is not a dimension; `column` is where (from 1)."""

    def __init__(self, text: str, column: int, problem: str) -> None:
        """An error about `text` at `column`."""
        self.text, self.column = text, column
        shown = text if len(text) <= 200 else text[:200] + "..."
        super().__init__(
            f"{problem} at column {column} of the dimension {shown!r}. A dimension is an integer "
            "or an expression over variables with + - * //, floordiv, mod, max, min, "
            "non_negative and powers, as '2*b' or 'floordiv(h, 2) + 1'."
        )


def parse_dimension(text: str) -> Dim:
    """The dimension that `text` says: an int, or a DimExpr if it has a variable.

    Reads `+ - * // % ^ **`, `floordiv`, `mod`, `max`, `min`, `non_negative`, as jax.export
    prints them (https://docs.jax.dev/en/latest/export/shape_poly.html).

    Raises:
      DimensionSyntaxError: the text is something else.

    >>> parse_dimension("mod(b, 2) + 3"), parse_dimension("2*3")
    (DimExpr('mod(b, 2) + 3'), 6)
    """
    if len(text) > _MAX_CHARACTERS:
        raise DimensionSyntaxError(text, _MAX_CHARACTERS, "text too long")
    # JAX prints powers as b^2; in Python's grammar ^ binds weaker than +.
    source = text.replace("^", "**")
    try:
        tree = ast.parse(source.strip(), mode="eval")
        result = _Reader(text).dimension(tree.body)
    except SyntaxError as e:
        # Python reports the end of the text as offset 0.
        column = _column(text, e.offset) if e.offset else len(text) + 1
        raise DimensionSyntaxError(text, column, "syntax error") from e
    except OverflowError as e:
        raise DimensionSyntaxError(text, 1, str(e)) from e
    except (RecursionError, MemoryError) as e:
        raise DimensionSyntaxError(text, 1, "expression nested too deeply") from e
    constant = result.constant_value()
    return result if constant is None else constant


class _Reader:
    """Turns Python's syntax tree of a dimension into a DimExpr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def dimension(self, node: ast.expr) -> DimExpr:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return DimExpr.constant(value)
            case ast.Name(id=name):
                return DimExpr.variable(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.dimension(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.dimension(operand)
            case ast.BinOp():
                return self._binary(node)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(node, name, args)
        raise self._error(node, "unexpected text")

    def _binary(self, node: ast.BinOp) -> DimExpr:
        left, right = self.dimension(node.left), self.dimension(node.right)
        try:
            match node.op:
                case ast.Add():
                    return left + right
                case ast.Sub():
                    return left - right
                case ast.Mult():
                    return left * right
                case ast.FloorDiv():
                    return left // right
                case ast.Mod():
                    return left % right
                case ast.Pow():
                    exponent = right.constant_value()
                    if exponent is not None and 0 <= exponent <= 64:
                        return left**exponent
                    raise self._error(node.right, "a power is an integer from 0 to 64, but found")
        except ZeroDivisionError as e:
            raise self._error(node, "division by zero") from e
        raise self._error(node, "unknown operator")

    def _call(self, node: ast.Call, name: str, args: list[ast.expr]) -> DimExpr:
        operands = [self.dimension(a) for a in args]
        if name == "non_negative" and len(operands) == 1:
            return operation("max", operands[0], 0)
        if name in _FUNCTIONS and len(operands) == 2:
            try:
                return operation(_FUNCTIONS[name], operands[0], operands[1])
            except ZeroDivisionError as e:
                raise self._error(node, "division by zero") from e
        raise self._error(node, f"unknown function {name} of {len(operands)} operands")

    def _error(self, node: ast.expr, problem: str) -> DimensionSyntaxError:
        return DimensionSyntaxError(self._text, _column(self._text, node.col_offset + 1), problem)


def _column(text: str, column: int) -> int:
    """The column in `text` of one in what was parsed, without its indent and with ** for ^."""
    parsed_column = 0
    indent = len(text) - len(text.lstrip())
    for index, character in enumerate(text[indent:], start=indent):
        parsed_column += 2 if character == "^" else 1
        if parsed_column >= column:
            return index + 1
    return len(text) + 1
