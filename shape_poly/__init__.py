"""Symbolic dimensions: integer expressions over dimension variables, in pure Python.

>>> from shape_poly import SymbolicScope, prove, solve_dimensions, symbolic_shape
>>> shape = symbolic_shape("(2*b, h // 2 - 1, 3)")
>>> shape
(DimExpr('2*b'), DimExpr('floordiv(h, 2) - 1'), 3)
>>> prove("2*b >= 8", SymbolicScope(["b >= 4"]))
Proven()
>>> solve_dimensions([symbolic_shape("b, b + h")], [(6, 10)])
{'b': 6, 'h': 4}
"""

from shape_poly._comparisons import (
    Comparison,
    ComparisonOperator,
    ComparisonSyntaxError,
    Proven,
    Refuted,
    Unknown,
    Verdict,
    parse_comparison,
)
from shape_poly._expressions import (
    Algebra,
    Dim,
    DimExpr,
    DimOperation,
    OperationKind,
    Variable,
    operation,
    variables_of,
)
from shape_poly._parser import DimensionSyntaxError, parse_dimension
from shape_poly._requirements import weakest_requirement
from shape_poly._sampling import sample_sizes
from shape_poly._scope import ContradictionError, SymbolicScope, prove, symbolic_dim_bounds
from shape_poly._shapes import (
    ShapeSpec,
    ShapeSyntaxError,
    evaluate_shape,
    is_symbolic_dim,
    symbolic_args_specs,
    symbolic_shape,
)
from shape_poly._solution import (
    Check,
    Integers,
    Place,
    Plan,
    PlanStep,
    Solution,
    is_linear,
    make_plan,
    shape_text,
    solve,
    solve_dimensions,
)

__all__ = [
    "Algebra",
    "Check",
    "Comparison",
    "ComparisonOperator",
    "ComparisonSyntaxError",
    "ContradictionError",
    "Dim",
    "DimExpr",
    "DimOperation",
    "DimensionSyntaxError",
    "Integers",
    "OperationKind",
    "Place",
    "Plan",
    "PlanStep",
    "Proven",
    "Refuted",
    "ShapeSpec",
    "ShapeSyntaxError",
    "Solution",
    "SymbolicScope",
    "Unknown",
    "Variable",
    "Verdict",
    "evaluate_shape",
    "is_linear",
    "is_symbolic_dim",
    "make_plan",
    "operation",
    "parse_comparison",
    "parse_dimension",
    "prove",
    "sample_sizes",
    "shape_text",
    "solve",
    "solve_dimensions",
    "symbolic_args_specs",
    "symbolic_dim_bounds",
    "symbolic_shape",
    "variables_of",
    "weakest_requirement",
]
