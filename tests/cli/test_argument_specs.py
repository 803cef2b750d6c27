"""Reading --args, --kwargs and --shapes."""

from __future__ import annotations

from typing import Any

import pytest

from jax2tf_bridge import AUTO

# Private: these run without JAX, which `export` itself needs.
from jax2tf_bridge.cli._commands import UsageError
from jax2tf_bridge.cli._export import (
    ArgumentSpec,
    read_arguments,
    read_keyword,
    read_shapes,
)
from shape_poly import symbolic_shape


def spec(dtype: str, shape: str = "()") -> ArgumentSpec:
    return ArgumentSpec(symbolic_shape(shape), dtype)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[b,28]", spec("float32", "(b, 28)")),
        ("float32[b, 28]", spec("float32", "(b, 28)")),
        (" f32 [ 2*b , b + 1 ] ", spec("float32", "(2*b, b + 1)")),
        ("i32[(n)]", spec("int32", "(n,)")),
        ("f32[max(b, 2), 3]", spec("float32", "(max(b, 2), 3)")),
        ("bf16[0]", spec("bfloat16", "(0,)")),
        ("f32[]", spec("float32")),
        ("bool", spec("bool")),
        ("pred[2]", spec("bool", "(2,)")),
        ("ui8[2]", spec("uint8", "(2,)")),
        ("u4[2]", spec("uint4", "(2,)")),
        ("c64[2]", spec("complex64", "(2,)")),
        ("f8_e4m3fn[2]", spec("float8_e4m3fn", "(2,)")),
        ("key<fry>[]", spec("key<fry>")),
        ("null", None),
    ],
)
def test_arrays(text: str, expected: Any) -> None:
    assert read_arguments(text if text != "null" else "[null]", "--args") in (expected, [expected])


@pytest.mark.parametrize(
    "text",
    [
        '{"w": "f32[3]", "n": null, "l": ["i32", {"b": "bool[b]"}]}',
        "{'w': 'f32[3]', 'n': None, 'l': ['i32', {'b': 'bool[b]'}]}",
    ],
)
def test_trees_as_json_and_as_python(text: str) -> None:
    assert read_arguments(text, "--args") == {
        "w": spec("float32", "(3,)"),
        "n": None,
        "l": [spec("int32"), {"b": spec("bool", "(b,)")}],
    }


def test_python_has_tuples_and_other_keys() -> None:
    assert read_arguments("({1: 'f32'}, ())", "--args") == ({1: spec("float32")}, ())


QUOTED = (
    "is not a pytree in JSON or Python syntax. Put it in single quotes for the shell, "
    'and each of its arrays in double quotes: \'{"w": "f32[3,4]", "b": ["f32[4]", null]}\''
)
FORM = "expected a dtype and sizes or names of sizes, as 'f32[b,28]', 'int32[4]' or 'bool'"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("f33[3]", "--args: 'f33[3]' has the unknown dtype f33: did you mean f32"),
        ("flaot32[3]", "--args: 'flaot32[3]' has the unknown dtype flaot32: did you mean float32"),
        ("zzz[3]", "--args: 'zzz[3]' has the unknown dtype zzz"),
        ("f32[3", f"--args: {FORM} for a scalar. Got: 'f32[3'"),
        ("", f"--args: {FORM}"),
        ("3", f"--args: {FORM}"),
        (
            "f32[-1]",
            "--args: -1 in 'f32[-1]' is not a size. Write a name for each open size, such as b",
        ),
        ("f32[3, -1]", "--args: -1 in 'f32[3, -1]' is not a size. Write a name"),
        ("f32[None,28]", "--args: None in 'f32[None,28]' is not a size. Write a name for each"),
        ("f32[?,28]", "--args: ? in 'f32[?,28]' is not a size. Write a name for each open size"),
        ("f32[b c]", "--args: the shape in 'f32[b c]' cannot be read: "),
        ("f32[_,3]", "--args: the shape in 'f32[_,3]' cannot be read: "),
        ("f32[...]", "--args: the shape in 'f32[...]' cannot be read: "),
        ("{w: f32[3]}", f"--args: '{{w: f32[3]}}' {QUOTED}"),
        ("[" * 10_000, QUOTED),
        ('{"w": ["f32", 3]}', "--args, at ['w'][1]: expected a text, as 'f32[3]'. Got: 3"),
        ('{"w": ["f32", "f33"]}', "--args, at ['w'][1]: 'f33' has the unknown dtype f33"),
        ("{'w': {1, 2}}", "--args, at ['w']: expected a text, as 'f32[3]'. Got: {1, 2}"),
    ],
)
def test_errors(text: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_arguments(text, "--args")
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(b, 28)", "(b, 28)"),
        ("b, 28", "b, 28"),
        ("(b, _, ...)", "(b, _, ...)"),
        ("auto", AUTO),
        ("AUTO", AUTO),
        ("None", None),
        ("-", None),
        ('{"w": "(b, _)", "n": null, "a": "auto"}', {"w": "(b, _)", "n": None, "a": AUTO}),
        ("('(b,)', None)", ("(b,)", None)),
    ],
)
def test_shapes(text: str, expected: Any) -> None:
    assert read_shapes(text, "--shapes") == expected


def test_named() -> None:
    assert read_keyword("scale=f32[3]") == ("scale", spec("float32", "(3,)"))
    for text in ("scale", "=f32", "a-b=f32"):
        with pytest.raises(UsageError) as caught:
            read_keyword(text)
        assert str(caught.value) == (
            f"--kwargs: expected name=SPEC, as scale=f32[3]. Got: {text!r}"
        )


def test_an_argument_by_keyword_among_the_others() -> None:
    with pytest.raises(UsageError, match=r"For an argument by keyword, pass --kwargs 'scale=f32'$"):
        ArgumentSpec.read("scale=f32", "--args")
