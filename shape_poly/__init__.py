"""Symbolic dimensions: integer expressions over dimension variables, in pure Python.

>>> from shape_poly import parse_dimension, solve_dimensions
>>> parse_dimension("2*b + floordiv(h, 2) - 1")
DimExpr('2*b + floordiv(h, 2) - 1')
>>> solve_dimensions([(parse_dimension("2*b"), parse_dimension("h"))], [(6, 4)])
{'b': 3, 'h': 4}
"""

from shape_poly._expressions import Dim, DimExpr, Operation, Variable, evaluate_shape
from shape_poly._parser import DimensionSyntaxError, parse_dimension
from shape_poly._solver import is_linear, solve_dimensions

__all__ = [
    "Dim",
    "DimExpr",
    "DimensionSyntaxError",
    "Operation",
    "Variable",
    "evaluate_shape",
    "is_linear",
    "parse_dimension",
    "solve_dimensions",
]
