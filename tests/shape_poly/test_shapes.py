"""Tests specifications of shapes: their meaning, and the columns in errors."""

import types
from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given

from shape_poly import (
    ContradictionError,
    Dim,
    DimExpr,
    ShapeSpec,
    ShapeSyntaxError,
    SymbolicScope,
    is_symbolic_dim,
    operation,
    symbolic_args_specs,
    symbolic_dim_bounds,
    symbolic_shape,
)
from tests import strategies

b, h, w = (DimExpr.variable(name) for name in "bhw")


@pytest.mark.parametrize(
    ("spec", "like", "expected"),
    [
        ("", None, ()),
        ("()", None, ()),
        ("b", None, (b,)),
        ("(b,)", None, (b,)),
        ("b, h, w, 3", None, (b, h, w, 3)),
        ("(b, 28, ...)", (None, 28, 3), (b, 28, 3)),
        ("(b, ..., )", (None, 28, 3), (b, 28, 3)),
        ("((b, 3))", None, (b, 3)),
        ("_, h", (5, None), (5, h)),
        ("_, _", (b, 4), (b, 4)),
        ("...", (5, 6), (5, 6)),
        (None, (5, 6), (5, 6)),
        ("b, ...", (None,), (b,)),
        ("2*b, (h + 1)*2, (h)", None, (2 * b, 2 * h + 2, h)),
        ("(h + 1)*(w)", None, (h * w + w,)),
        ("max(b, 3), floordiv(h, 2)", (None, None), (operation("max", b, 3), h // 2)),
        ("0, b", (0, None), (0, b)),
        ("b, 0", None, (b, 0)),
        ("2*b // 2", None, (b,)),
    ],
)
def test_what_a_specification_says(spec: str | None, like: Any, expected: Any) -> None:
    assert symbolic_shape(spec, like=like) == expected


@given(strategies.shapes)
def test_reading_undoes_printing(shape: tuple[Dim, ...]) -> None:
    text = ", ".join(map(str, shape))
    if any(symbolic_dim_bounds(d)[1] < 0 for d in shape):
        with pytest.raises(ShapeSyntaxError, match="a negative size"):
            symbolic_shape(text)
        return
    assert symbolic_shape(text) == shape
    assert symbolic_shape(f"({text})") == shape
    assert symbolic_shape(", ".join("_" * len(shape)), like=shape) == shape
    assert symbolic_shape("...", like=shape) == shape


@pytest.mark.parametrize(
    ("spec", "like", "column", "problem"),
    [
        ("b; 3", None, 2, "unexpected character ';'"),
        ("b, h = 3", None, 6, "unexpected '=': conditions go into the constraints"),
        ("b c", None, 3, "expected an operator, ',' or the end of the shape, but found 'c'"),
        ("b,,3", None, 3, "expected a variable, a number or '(', but found ','"),
        (",", None, 1, "expected a variable, a number or '(', but found ','"),
        ("(b, 3", None, 3, "expected an operator or ')', but found ','"),
        ("b, 3)", None, 5, "found ')' (is it one too many, or is a parenthesis missing before?)"),
        ("(b, foo(2))", None, 5, "unknown function foo"),
        ("(b, h // 0)", None, 7, "division by zero"),
        ("..., b", (1, 2), 1, "'...' must be the last dimension: write '_' for single ones"),
        ("b, ...", None, 4, "'...' takes dimensions from `like`, which is not given"),
        (None, None, 1, "'...' takes dimensions from `like`, which is not given"),
        ("b, _", None, 4, "'_' takes a dimension from `like`, which is not given"),
        ("_ + 1", (3,), 1, "'_' stands for a whole dimension, not for a part"),
        ("1 + _", (3,), 5, "'_' stands for a whole dimension of a shape"),
        (
            "b, _",
            (None, None),
            4,
            "'_' takes dimension 1 of the argument of shape (?, ?), which is not known: name a",
        ),
        (
            "b, ...",
            (None, 3, None),
            4,
            "'...' takes dimension 2 of the argument of shape (?, 3, ?), which is not known",
        ),
        (
            "b, 4",
            (2, 3),
            4,
            "expected size 3 for dimension 1, as in the argument of shape (2, 3), but found 4",
        ),
        (
            "(b, 3)",
            (2, 3, 4),
            6,
            "expected 3 dimensions, as in the argument of shape (2, 3, 4), but found 2: end with",
        ),
        (
            "b, 3, 4",
            (2, 3),
            7,
            "expected 2 dimensions, as in the argument of shape (2, 3), but found more",
        ),
        ("b", (), 1, "expected 0 dimensions, as in the argument of shape (), but found more"),
        (
            "",
            (3,),
            1,
            "expected 1 dimension, as in the argument of shape (3,), but found 0: end with",
        ),
        ("b, -1", None, 4, "a negative size -1"),
        ("-b", None, 1, "a negative size of at most -1"),
        ("b, 9223372036854775808", None, 4, "a size above 2**63 - 1, the maximum"),
        (f"{2**63}*b", None, 1, "a size above 2**63 - 1, the maximum"),
        ("b, " + "(" * 70 + "3" + ")" * 70, None, 68, "parentheses nested more than 64 deep"),
    ],
)
def test_what_is_wrong_and_where(spec: str | None, like: Any, column: int, problem: str) -> None:
    with pytest.raises(ShapeSyntaxError) as raised:
        symbolic_shape(spec, like=like)
    assert problem in raised.value.problem
    assert raised.value.column == column
    assert str(raised.value).startswith("The shape specification ")
    assert f"is wrong at column {column}: " in str(raised.value)
    assert "A shape is a list of dimensions, as '(b, 28, ...)'" in str(raised.value)


def test_the_whole_text_of_an_error() -> None:
    with pytest.raises(ShapeSyntaxError) as raised:
        symbolic_shape("b, 4", like=(2, 3))
    assert str(raised.value) == (
        "The shape specification 'b, 4' is wrong at column 4: expected size 3 for dimension 1, as "
        "in the argument of shape (2, 3), but found 4. A shape is a list of dimensions, as "
        "'(b, 28, ...)': integers, variables or expressions like '2*b'; '_' copies one dimension "
        "of the argument, '...' at the end all remaining ones."
    )


def test_constraints_are_checked() -> None:
    assert symbolic_shape("b", constraints=["b >= 4"]) == (b,)
    assert symbolic_shape("b", scope=SymbolicScope(["b >= 4"])) == (b,)
    with pytest.raises(ContradictionError):
        symbolic_shape("b", constraints=["b >= 4", "b <= 2"])
    with pytest.raises(ShapeSyntaxError, match="at column 1: a negative size of at most -1"):
        symbolic_shape("3 - b", constraints=["b >= 4"])
    with pytest.raises(ValueError, match=r"constraints and scope were both passed.*with_constr"):
        symbolic_shape("b", constraints=["b >= 4"], scope=SymbolicScope())


def test_what_is_no_specification() -> None:
    spec: Any = ("b", 3)
    with pytest.raises(TypeError, match=r"must be a string. Got: \('b', 3\).* as '\(b, 28, "):
        symbolic_shape(spec)
    with pytest.raises(TypeError, match=r"such as \['b >= 4', .* Got: 'b >= 4' of type str"):
        symbolic_shape("b", constraints="b >= 4")


def test_thousands_of_dimensions() -> None:
    assert len(symbolic_shape(", ".join(f"v{i} + {i}" for i in range(5000)))) == 5000


def test_symbolic_dimensions() -> None:
    assert is_symbolic_dim(b)
    assert not is_symbolic_dim(3)
    assert not is_symbolic_dim(None)


def array(*shape: int) -> Any:
    return types.SimpleNamespace(shape=shape, dtype="float32")


Pair = namedtuple("Pair", ["first", "second"])


def test_specs_of_arguments() -> None:
    x, y = array(8, 3), array(8)
    spec_x, spec_y = ShapeSpec((b, 3), "float32"), ShapeSpec((b,), "float32")
    as_it_is = ShapeSpec((8,), "float32")
    assert symbolic_args_specs(x, "b, ...") == spec_x
    assert symbolic_args_specs((x, [y]), "b, ...") == (spec_x, [spec_y])
    assert symbolic_args_specs((x, [y, None]), ("b, _", None)) == (spec_x, [as_it_is, None])
    assert symbolic_args_specs((x, y), ["b, _", "b"]) == (spec_x, spec_y)
    assert symbolic_args_specs({"x": x, "y": {"z": y}}, {"x": "b, _", "y": "b"}) == {
        "x": spec_x,
        "y": {"z": spec_y},
    }
    assert symbolic_args_specs(Pair(x, y), Pair("b, _", "b")) == Pair(spec_x, spec_y)
    assert isinstance(symbolic_args_specs(Pair(x, y), None), Pair)
    assert symbolic_args_specs(y, None, ["b >= 4"]) == as_it_is
    assert symbolic_args_specs(y, "b", scope=SymbolicScope(["b >= 4"])) == spec_y


def test_errors_in_specs_of_arguments_name_the_path() -> None:
    x = array(8, 3)
    with pytest.raises(
        ShapeSyntaxError, match=r"for args\[0\]\['x'\], expected size 3 for dimension 1"
    ):
        symbolic_args_specs([{"x": x}], "b, 4")
    with pytest.raises(ValueError, match=r"shapes_specs for args\[0\] is \['b'\].*2 entries\."):
        symbolic_args_specs([(x, x)], [["b"]])
    with pytest.raises(ValueError, match=r"for args is \{'z': 'b'\}.*expected.*1 entries \('x'\)"):
        symbolic_args_specs({"x": x}, {"z": "b"})
    with pytest.raises(ValueError, match=r"for args\[0\] is \('b', 3\), expected a string such as"):
        symbolic_args_specs([x], [("b", 3)])
    with pytest.raises(
        TypeError, match=r"args\[1\] has no shape.* or no dtype.*Got: 7 of type int"
    ):
        symbolic_args_specs([x, 7], None)
    for shape in (3, len, None):
        with pytest.raises(TypeError, match=r"args\[0\] has no shape of known rank, or no"):
            symbolic_args_specs([types.SimpleNamespace(shape=shape, dtype="float32")], "b")
    with pytest.raises(ContradictionError):
        symbolic_args_specs([x], None, ["b >= 4", "b <= 2"])
    with pytest.raises(ValueError, match="both passed"):
        symbolic_args_specs([x], None, ["b >= 4"], SymbolicScope())
