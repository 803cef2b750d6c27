"""Tests the parser: it inverts printing, reads what users write, and names columns in errors."""

import inspect
import keyword
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shape_poly import DimensionSyntaxError, DimExpr, parse_dimension
from tests import strategies
from tests.shape_poly.proving import within


@given(strategies.written)
def test_parsing_undoes_printing(x: DimExpr) -> None:
    assert parse_dimension(str(x)) == x


@given(strategies.expressions)
def test_parsing_undoes_printing_of_what_is_simplified(x: DimExpr) -> None:
    assert parse_dimension(str(x)) == x
    assert parse_dimension(str(x), simplify=True) == x


@st.composite
def python_texts(draw: st.DrawFn) -> str:
    """Draws sums, products, quotients and powers in Python's syntax."""
    atoms = st.sampled_from(("a", "b", "c", "1", "2", "7", "1_000"))

    def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        symbols = st.sampled_from((" + ", "-", "*", " // ", "%"))
        return st.one_of(
            st.tuples(inner, symbols, inner).map("".join),
            inner.map(lambda x: f"({x})"),
            inner.map(lambda x: f"-({x})"),
            inner.map(lambda x: f"({x})**2"),
            st.tuples(inner, inner).map(lambda p: f"max({p[0]}, {p[1]})"),
        )

    return draw(st.recursive(atoms, combine, max_leaves=7))


@given(python_texts(), strategies.assignments)
def test_precedence_is_pythons(text: str, values: dict[str, int]) -> None:
    try:
        expected = eval(text, {"max": max}, dict(values))
    except ZeroDivisionError:
        return
    try:
        dimension = parse_dimension(text)
    except DimensionSyntaxError as e:
        # Squares of squares outgrow the limits.
        if not any(limit in e.problem for limit in ("128 bits", "a degree", "too many terms")):
            raise
        return
    assert (dimension if isinstance(dimension, int) else dimension.evaluate(values)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b", "b"),
        (" \t\n b \n", "b"),
        ("- b + 2*a*b", "2*a*b - b"),
        ("b^2 * 3 + 1", "3*b^2 + 1"),
        ("-b^2", "- b^2"),
        ("-2^2*b", "- 4*b"),
        ("(-2)^2*b", "4*b"),
        ("b^2^3", "b^8"),
        ("(a + b)**2", "2*a*b + a^2 + b^2"),
        ("non_negative(b - 3)", "max(b - 3, 0)"),
        ("non_negative", "non_negative"),
        ("floordiv(b, -2) + mod(-b, 8)", "floordiv(b, - 2) + mod(- b, 8)"),
        ("mod(mod(- b, 8) + b, - 8)", "mod(b + mod(- b, 8), - 8)"),
        ("b // 2 % 3", "mod(floordiv(b, 2), 3)"),
        ("min(a, max(b, 2))", "min(a, max(b, 2))"),
        ("1_000*b", "1000*b"),
        ("größe_1 + _b", "_b + größe_1"),
        ("- - +b", "b"),
        ("- -b", "b"),
        ("+ -b", "- b"),
    ],
)
def test_reads_what_users_and_jax_write(text: str, expected: str) -> None:
    dimension = parse_dimension(text)
    assert str(dimension) == expected
    assert parse_dimension(expected) == dimension


@pytest.mark.parametrize("name", keyword.kwlist)
def test_keywords_of_python_are_names(name: str) -> None:
    assert (
        parse_dimension(f"2*{name} + floordiv({name}, 2)")
        == 2 * DimExpr.variable(name) + DimExpr.variable(name) // 2
    )


def test_constants_become_ints() -> None:
    for text, expected in (("2*3 - 6", 0), ("b - b + 4", 4), ("mod(-7, 4)", 1), ("7//-2", -4)):
        assert parse_dimension(text) == expected
        assert isinstance(parse_dimension(text), int)


def test_operations_stay_make_unsimplified_unless_asked() -> None:
    # JAX knows its expressions by their form.
    text = "mod(mod(- b, 8) + 35*b, - 8)"
    assert parse_dimension(str(parse_dimension(text))) == parse_dimension(text)
    assert "35*b" in str(parse_dimension(text))
    assert str(parse_dimension(text, simplify=True)) == "- 2*mod(- b, 4)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at column 1: expected a variable, a number or '(', but found the end of the text"),
        ("b +", "at column 4: expected a variable, a number or '(', but found the end of the text"),
        ("b * * 2", "at column 5: expected a variable, a number or '(', but found '*'"),
        ("a b", "at column 3: expected an operator or the end, but found 'b'"),
        ("a, b", "at column 2: expected an operator or the end, but found ','"),
        (
            "b)",
            "at column 2: expected an operator or the end, but found ')' (is it one too many, or",
        ),
        (
            "(b",
            "at column 3: expected an operator or ')', but found the end of the text (a "
            "parenthesis is not closed)",
        ),
        ("mod(b, 2", "expected an operator, ',' or ')', but found the end of the text"),
        ("2b", "at column 2: expected an operator between a number and 'b', as in '2*b'"),
        ("b // 0", "at column 3: division by zero"),
        ("mod(b, a - a)", "at column 1: division by zero"),
        ("  a^2 + foo(b)", "at column 9: unknown function foo"),
        ("floor_div(b, 2)", "at column 1: unknown function floor_div (did you mean floordiv?)"),
        ("floordiv(b)", "at column 1: floordiv takes 2 operands, but found 1"),
        ("max(a, b, c)", "at column 1: max takes 2 operands, but found 3"),
        ("non_negative(a, b)", "at column 1: non_negative takes 1 operand, but found 2"),
        ("2 + max", "expected '(' after 'max', which is not a variable, but found the end"),
        ("2 + b**-1", "at column 8: an exponent must be an integer from 0 to 64"),
        ("b^65", "at column 3: an exponent must be an integer from 0 to 64"),
        ("b^2^7", "at column 3: an exponent must be an integer from 0 to 64"),
        ("2^b", "at column 3: an exponent must be an integer from 0 to 64"),
        ("a*-2^2", "at column 5: a power of a number with a sign needs parentheses"),
        ("a + -2**2", "at column 7: a power of a number with a sign needs parentheses"),
        ("2 + _", "'_' stands for a whole dimension of a shape, not for a part of one"),
        ("b / 2", "at column 3: unexpected '/': sizes are integers, write '//' to round down"),
        ("1.5", "unexpected '.': sizes are integers, and '...' stands for several dimensions"),
        ("b >= 2", "at column 3: unexpected '>': conditions go into the constraints"),
        ("2 + 'x'", 'at column 5: unexpected character "\'"'),
        ("b² + 1", "at column 2: unexpected character '²'"),
        ("b << 2", "at column 3: unexpected '<': conditions go into the constraints"),
        ("b\x00", "at column 2: unexpected character '\\x00'"),
        ("9" * 40, "at column 1: a number above 2**128"),
        (f"b + {2**128 + 1}", "at column 5: a number above 2**128"),
        (f"{2**100}*{2**100}*b", "at column 1: a dimension with a number of more than 128 bits"),
        ("9" * 5000, "at column 1: a number above 2**128"),
    ],
)
def test_other_text_is_an_error_with_the_column(text: str, message: str) -> None:
    with pytest.raises(DimensionSyntaxError) as raised:
        parse_dimension(text)
    assert message in str(raised.value)
    assert "A dimension is an integer or an expression over variables" in str(raised.value)
    assert str(raised.value).startswith("The dimension ")
    assert f"is wrong at column {raised.value.column}: " in str(raised.value)
    assert raised.value.text == text


def test_a_dimension_is_parsed_from_text_only() -> None:
    with pytest.raises(TypeError, match=r"A dimension must be a string. Got: 3 of type int. A"):
        parse_dimension(3)  # type: ignore[arg-type]


# All Unicode would take a second to load, for characters that are all refused as these are.
@given(st.text(alphabet="ab2 +-*/%^(),._maxé²٣\n\0'\\\U0001f600", max_size=30))
def test_any_text_is_a_dimension_or_an_error_in_it(text: str) -> None:
    column = 1
    try:
        parse_dimension(text)
    except DimensionSyntaxError as e:
        column = e.column
    assert 1 <= column <= len(text) + 1


WIDE = "+".join(f"v{i}" for i in range(600))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(" * 65 + "b" + ")" * 65, "at column 65: parentheses nested more than 64 deep"),
        ("(" * 10_000 + "b", "at column 65: parentheses nested more than 64 deep"),
        ("max(b, " * 5000, "parentheses nested more than 64 deep"),
        ("(a + b + c + d + e + f + g + h)^64", "a dimension of more than 10000 terms"),
        (f"(({WIDE})^1)^2", "products of too many terms"),
        ("*".join(f"v{i}" for i in range(300)), "a dimension of a degree above 256"),
        ("+".join(f"v{i}" for i in range(10_001)), "a dimension of more than 10000 terms"),
        ("+" * 1_000_001, "text of more than 1000000 characters"),
    ],
)
def test_what_is_too_large_is_an_error_soon(text: str, message: str) -> None:
    with within(10), pytest.raises(DimensionSyntaxError) as raised:
        parse_dimension(text)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 600  # not all of the text


def test_the_part_that_is_shown_of_a_long_text_has_the_error() -> None:
    text = "a + " * 300 + "! + " + "b + " * 300
    with pytest.raises(DimensionSyntaxError, match=r"'\.\.\..* \+ a \+ ! \+ b \+ .*\.\.\.'"):
        parse_dimension(text)


def test_thousands_of_terms_take_no_time_to_speak_of() -> None:
    terms = " + ".join(f"{i}*v{i}" for i in range(1, 5001))
    with within(10):
        dimension = parse_dimension(terms)
    assert isinstance(dimension, DimExpr)
    assert len(dimension.terms) == 5000
    assert parse_dimension(f"floordiv({terms}, 3)", simplify=True) == dimension // 3


def test_a_stack_that_is_used_up_is_an_error_of_the_text() -> None:
    text = "(" * 60 + "b" + ")" * 60

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            parse_dimension(text)

    depth = len(inspect.stack(0))
    with pytest.raises(DimensionSyntaxError, match="an expression nested too deeply"):
        deep(sys.getrecursionlimit() - depth - 150)
