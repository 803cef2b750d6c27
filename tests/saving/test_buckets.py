"""Buckets that fit the signature that they are for, and the errors where they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jax2tf_bridge.errors import DTypeError, ShapeError
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saving.buckets import Bucketing, make_bucketing
from tests.saving.bucketed_functions import aval

X, Y = {"x": aval("(b, 28)")}, {"y": aval("(b, 10)")}


def make(
    buckets: Any, inputs: dict[str, Aval] = X, outputs: dict[str, Aval] = Y, **options: Any
) -> Bucketing:
    return make_bucketing("serving_default", inputs, outputs, buckets, **options)


def test_numbers_of_any_integer_type_make_buckets() -> None:
    bucketing = make({"b": [np.int64(1), np.int32(8), 32]})
    assert bucketing.sizes == {"b": (1, 8, 32)}
    assert bucketing.oversize == {"b": "split"}
    assert bucketing.choices() == ({"b": 1}, {"b": 8}, {"b": 32})
    assert bucketing.largest() == {"b": 32}


def test_several_variables_give_the_product_of_their_buckets() -> None:
    inputs = {"x": aval("(b, l)")}
    bucketing = make(
        {"b": (1, 2), "l": (16, 64)}, inputs, {"y": aval("(b,)")}, oversize={"l": "as is"}
    )
    assert bucketing.oversize == {"b": "split", "l": "as is"}
    assert bucketing.choices() == (
        {"b": 1, "l": 16},
        {"b": 1, "l": 64},
        {"b": 2, "l": 16},
        {"b": 2, "l": 64},
    )


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ({}, "buckets={}: expected a dict, as {'b': (1, 8, 32)}"),
        ([1, 8], "buckets=[1, 8]: expected a dict, as {'b': (1, 8, 32)}"),
        ({"b": ()}, "buckets={'b': ()}: there must be at least one bucket"),
        ({"b": 8}, "buckets={'b': 8}: expected a sequence of sizes, as (1, 8, 32)"),
        ({"b": "8"}, "buckets={'b': '8'}: expected a sequence of sizes, as (1, 8, 32)"),
        ({"b": (1, 2.5)}, "buckets={'b': (1, 2.5)}: 2.5 is not an integer"),
        ({"b": (True, 8)}, "buckets={'b': (True, 8)}: True is not an integer"),
        (
            {"b": (0, 8)},
            "buckets={'b': (0, 8)}: 0 is not a valid bucket: buckets are from 1 to 2147483647. "
            "Size 0 needs no bucket.",
        ),
        (
            {"b": (-1,)},
            "buckets={'b': (-1,)}: -1 is not a valid bucket: buckets are from 1 to 2147483647.",
        ),
        ({"b": (2**31,)}, "2147483648 is not a valid bucket: buckets are from 1 to 2147483647."),
        (
            {"b": (8, 1, 8)},
            "buckets={'b': (8, 1, 8)}: buckets must increase, and 1 follows 8. Write "
            "buckets={'b': (1, 8)}.",
        ),
        ({"b": (4, 4)}, "buckets must increase, and 4 follows 4. Write buckets={'b': (4,)}."),
        (
            {"batch": (4,)},
            "buckets for 'batch', which is not a dimension variable of its inputs (x: "
            "float32[b,28]).",
        ),
        (
            {"B": (4,)},
            "buckets for 'B', which is not a dimension variable of its inputs (x: float32[b,28]).",
        ),
    ],
)
def test_sizes_that_are_no_buckets(buckets: Any, message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        make(buckets)
    assert str(caught.value).startswith("serving_default: ")
    assert str(caught.value).endswith(message)


def test_a_name_that_is_nearly_right() -> None:
    inputs = {"x": aval("(batch, length)")}
    with pytest.raises(ShapeError, match=r"'lenght', which is not a .*: did you mean 'length'"):
        make({"lenght": (4,)}, inputs, {"y": aval("(batch,)")})


def test_a_signature_without_variables() -> None:
    with pytest.raises(ShapeError) as caught:
        make({"b": (1, 8)}, {"x": Aval((4,), "float32")}, {"y": Aval((4,), "float32")})
    assert str(caught.value) == (
        "serving_default: buckets are for dimension variables, and its inputs have none (x: "
        "float32[4]). Export the function with polymorphic_shapes='(b, ...)'."
    )


@pytest.mark.parametrize(
    ("sizes", "constraint", "message"),
    [
        (
            (4, 8),
            "mod(b, 8) == 0",
            "the bucket b = 4 violates mod(b, 8) == 0, which the function demands. The next size "
            "that satisfies it is 8.",
        ),
        (
            (1, 8),
            "b >= 4",
            "the bucket b = 1 violates b >= 4, which the function demands. The next size that "
            "satisfies it is 4.",
        ),
        ((8, 64), "b <= 32", "the bucket b = 64 violates b <= 32, which the function demands."),
    ],
)
def test_buckets_satisfy_what_the_function_demands(
    sizes: tuple[int, ...], constraint: str, message: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        make({"b": sizes}, constraints=[constraint])
    assert str(caught.value) == f"serving_default: {message}"


def test_constraints_on_several_variables() -> None:
    inputs, outputs = {"x": aval("(b, l)")}, {"y": aval("(b, l)")}
    with pytest.raises(ShapeError, match=r"the bucket b = 8, l = 4 violates b <= l, which"):
        make({"b": (2, 8), "l": (4, 16)}, inputs, outputs, constraints=["b <= l"])
    with pytest.raises(ShapeError) as caught:
        make({"b": (2, 8)}, inputs, outputs, constraints=["b <= l"])
    assert str(caught.value) == (
        "serving_default: the function demands b <= l, which holds for b = 1, l = 1, but not "
        "after padding to b = 2, l = 1. Give l buckets too."
    )
    make({"b": (2, 8)}, inputs, outputs, constraints=["b + l >= 2", "l >= 2"])


@pytest.mark.parametrize("shape", ["(2*b, 3)", "(b + 1,)", "(b*l, b, l)", "(floordiv(b, 2), b)"])
def test_dimensions_that_grow_can_be_padded(shape: str) -> None:
    make({"b": (1, 4, 8)}, {"x": aval(shape)}, Y, oversize="as is")


def test_dimensions_that_shrink_cannot_be_padded() -> None:
    with pytest.raises(ShapeError) as caught:
        make({"b": (1, 4)}, {"x": aval("(b,)"), "rest": aval("(10 - b,)")}, Y, oversize="as is")
    assert str(caught.value) == (
        "serving_default: rest: float32[- b + 10]: the dimension - b + 10 is 9 for b = 1 and 6 for "
        "the bucket b = 4: padding cannot shrink a dimension."
    )


def test_buckets_larger_than_a_request() -> None:
    with pytest.raises(
        ShapeError,
        match=r"^serving_default: a request in the bucket b = 1000000000 would have 4\.0 GB, and "
        r"TensorFlow takes at most 2\.1 GB\. Give smaller buckets\.$",
    ):
        make({"b": (1, 10**9)}, {"x": aval("(b,)")}, Y, oversize="as is")


@pytest.mark.parametrize(
    ("inputs", "outputs", "guilty"),
    [
        ({"x": aval("(2*b,)")}, Y, "input x is float32[2*b]"),
        ({"x": aval("(b, b)")}, Y, "input x is float32[b,b]"),
        (X, {"y": aval("(b + 1,)")}, "output y is float32[b + 1]"),
        (X, {"y": aval("(b, b)")}, "output y is float32[b,b]"),
    ],
)
def test_what_cannot_be_split(
    inputs: dict[str, Aval], outputs: dict[str, Aval], guilty: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        make({"b": (1, 4)}, inputs, outputs, oversize="split")
    assert str(caught.value) == (
        f"serving_default: sizes of b above 4 cannot be split into pieces, since the {guilty}: "
        "each input and output may have b once, alone in its dimension. Pass oversize={'b': "
        "'as is'} to run such sizes as they are."
    )
    make({"b": (1, 4)}, inputs, outputs, oversize="as is")


@pytest.mark.parametrize(
    ("oversize", "message"),
    [
        ("as-is", "oversize='as-is': expected 'split' or 'as is': did you mean 'as is'?"),
        (3, "oversize=3: expected 'split' or 'as is'"),
        ({"b": "spilt"}, "oversize='spilt': expected 'split' or 'as is': did you mean 'split'?"),
    ],
)
def test_what_becomes_of_larger_sizes(oversize: Any, message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        make({"b": (1, 4)}, oversize=oversize)
    assert str(caught.value) == f"serving_default: {message}"


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ("(2,)", "bool", "a mask needs a dimension that is a variable with buckets, such as (b,)"),
        ("()", "bool", "variable with buckets, such as (b,). Got: bool[]"),
        ("(b,)", "complex64", "the dtype of a mask must be bool or real. Got: complex64[b]"),
    ],
)
def test_inputs_that_are_no_masks(shape: str, dtype: str, message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        make({"b": (1, 4)}, {**X, "mask": aval(shape, dtype)}, mask="mask")
    assert str(caught.value).startswith("serving_default: mask='mask': ")
    assert message in str(caught.value)


def test_a_mask_that_is_no_input_and_one_that_is_all_there_is() -> None:
    inputs = {**X, "mask": aval("(b,)", "bool")}
    with pytest.raises(ShapeError, match="mask='maks': there is no such input: did you mean 'mask"):
        make({"b": (1, 4)}, inputs, mask="maks")
    assert list(make({"b": (1, 4)}, inputs, mask="mask").passed_inputs()) == ["x"]
    with pytest.raises(ShapeError) as caught:
        make({"b": (1, 4)}, {"mask": aval("(b,)", "bool")}, mask="mask")
    assert str(caught.value) == (
        "serving_default: buckets for 'b', which does not follow from the shape of any input other "
        "than the mask 'mask'. Give some input a dimension that is b alone."
    )


@pytest.mark.parametrize("shape", ["(b, 1, 1, n)", "(b, n, n)", "(n, b)", "(b, 2, n)", "(2*n,)"])
def test_masks_of_any_rank(shape: str) -> None:
    inputs = {"ids": aval("(b, n)", "int32"), "mask": aval(shape, "bool")}
    bucketing = make({"b": (1, 4), "n": (8,)}, inputs, mask="mask")
    assert bucketing.oversize == {"b": "split", "n": "as is"}
    assert (bucketing.batch, bucketing.sequences) == ("b", ("n",))


def test_a_mask_whose_size_nothing_tells() -> None:
    inputs = {**X, "mask": aval("(b, m)", "bool")}
    with pytest.raises(ShapeError) as caught:
        make({"b": (1, 4)}, inputs, mask="mask")
    assert str(caught.value) == (
        "serving_default: mask='mask': its size m does not follow from the size of any other "
        "input, so save cannot fill it."
    )


@pytest.mark.parametrize(
    ("shapes", "oversize"),
    [
        ({"ids": "(b, n)", "lengths": "(b,)"}, {"b": "split", "n": "as is"}),
        ({"x": "(b, n, 3)", "positions": "(n,)"}, {"b": "split", "n": "as is"}),
        ({"nodes": "(b, 3)", "edges": "(n, 2)"}, {"b": "as is", "n": "as is"}),
        ({"image": "(n, b, 3)"}, {"b": "as is", "n": "split"}),
    ],
)
def test_only_rows_are_split_by_default(shapes: dict[str, str], oversize: dict[str, str]) -> None:
    inputs = {name: aval(shape) for name, shape in shapes.items()}
    outputs = {"y": aval("(n,)" if oversize["n"] == "split" else "(b,)")}
    assert make({"b": (1, 4), "n": (8,)}, inputs, outputs).oversize == oversize
    # Variables without an entry keep the default.
    made = make({"b": (1, 4), "n": (8,)}, inputs, outputs, oversize={"b": "as is"})
    assert made.oversize == {**oversize, "b": "as is"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"unchecked": ["l"]}, ShapeError, "unchecked_padding names 'l', which has no buckets"),
        ({"unchecked": "b"}, ShapeError, "unchecked_padding='b': expected a list, as ['b']"),
        (
            {"pad_values": {"id": 1}},
            ShapeError,
            "pad_values={'id': 1}: there is no such input: did you mean 'ids'?",
        ),
        (
            {"pad_values": {"scale": 1}},
            ShapeError,
            "pad_values={'scale': 1}: float32[] has no dimension with buckets, so it is never "
            "padded.",
        ),
        (
            {"pad_values": {"mask": 1}, "mask": "mask"},
            ShapeError,
            "pad_values={'mask': 1}: a mask has no pad value; it is 1 for real elements and 0 for "
            "padding.",
        ),
        (
            {"pad_values": {"ids": 0.5}},
            DTypeError,
            "pad_values={'ids': 0.5}: expected one number that int8 holds.",
        ),
        (
            {"pad_values": {"ids": 128}},
            DTypeError,
            "pad_values={'ids': 128}: expected one number that int8 holds.",
        ),
        (
            {"pad_values": {"small": 8}},
            DTypeError,
            "pad_values={'small': 8}: expected one number that int4 holds.",
        ),
    ],
)
def test_what_cannot_be_said_of_padding(options: Any, error: Any, message: str) -> None:
    inputs = {"ids": aval("(b, 3)", "int8"), "scale": aval("()"), "mask": aval("(b,)", "bool")}
    inputs["small"] = aval("(b,)", "int4")
    with pytest.raises(error) as caught:
        make({"b": (1, 4)}, inputs, **options)
    assert str(caught.value) == f"serving_default: {message}"
