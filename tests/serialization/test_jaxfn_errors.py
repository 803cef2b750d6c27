"""Errors of writing .jaxfn files: functions that do not fit the format or contradict themselves."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jax2tf_bridge import PortableFunction, Target
from jax2tf_bridge.errors import GradientError, InconclusiveShapeError, SerializationError
from jax2tf_bridge.portable import (
    LEAF,
    AbstractMesh,
    Aval,
    GradientOnDemand,
    NoGradient,
    Sharding,
    TreeSpec,
)
from jax2tf_bridge.serialization import serialize

# A test lowers the limit of the format, because a file at the real limit has 2 GB.
from jax2tf_bridge.serialization.jaxfn import _format
from shape_poly import DimExpr
from tests.serialization.records import (
    FUNCTIONS_THAT_CANNOT_BE_CALLED,
    call_tree,
    changed,
    simple,
    vjp_of,
    with_vjps,
)


class Color(enum.IntEnum):
    RED = 1


class Text(str):
    pass


def refusal(portable: PortableFunction, **options: Any) -> str:
    with pytest.raises(SerializationError) as caught:
        serialize(portable, **options)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "shown", "name"),
    [
        (Color.RED, "<Color.RED: 1>", "Color"),
        (Text("a"), "'a'", "Text"),
        (np.int64(3), "np.int64(3)", "int64"),
        (1j, "1j", "complex"),
        (frozenset(), "frozenset()", "frozenset"),
        ((1, (Color.RED,)), "(1, (<Color.RED: 1>,))", "tuple"),
        ("\ud800", "'\\ud800'", "str"),
    ],
    ids=lambda value: ascii(value),
)
def test_keys(key: Hashable, shown: str, name: str) -> None:
    inner = TreeSpec("dict", keys=(key,), children=(LEAF,))
    tree = TreeSpec("list", children=(LEAF, TreeSpec("dict", keys=("w",), children=(inner,))))
    assert refusal(simple(tree)) == (
        f"f cannot be written: x[1]['w'] has the key {shown} of type {name}. A file cannot hold "
        "it. Use a str (in UTF-8), int (of up to 256 bytes), float, bool, None, bytes, or a tuple "
        "of these (nested at most 16 deep), and no subclass of them."
    )
    assert f"the result[1]['w'] has the key {shown}" in refusal(simple(LEAF, tree))


def test_keys_of_a_keyword_argument() -> None:
    inner = TreeSpec("dict", keys=(1j,), children=(LEAF,))
    keywords = TreeSpec("dict", keys=("scale",), children=(inner,))
    tree = TreeSpec("tuple", children=(TreeSpec("tuple"), keywords))
    portable = replace(simple(), in_tree=tree, argument_names=())
    assert "cannot be written: scale has the key 1j" in refusal(portable)


def test_keys_that_nest_or_count_too_far() -> None:
    key: Hashable = 1
    for _ in range(20):
        key = (key,)
    for large, shown in (
        (key, "((((("),
        (1 << 2048, "3231"),
        (1 << 99_999, "(its repr raises Val"),
    ):
        tree = TreeSpec("dict", keys=(large,), children=(LEAF,))
        assert f"x has the key {shown}" in refusal(simple(tree))


def test_depth() -> None:
    tree = LEAF
    for _ in range(250):
        tree = TreeSpec("list", children=(tree,))
    assert refusal(replace(simple(), out_tree=tree)) == (
        "f cannot be written: the result has containers nested more than 200 deep, which is the "
        "maximum in a file."
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"in_avals": ()}, "in_avals has 0 members for 1 leaves of in_tree"),
        ({"out_avals": ()}, "out_avals has 0 members for 1 leaves of out_tree"),
        ({"in_shardings": ()}, "in_shardings has 0 members for 1 in_avals"),
        ({"out_shardings": ()}, "out_shardings has 0 members for 1 out_avals"),
        ({"argument_names": ()}, "argument_names has 0 members for 1 arguments"),
        ({"in_tree": LEAF}, "in_tree is not the structure of (args, kwargs)"),
        *FUNCTIONS_THAT_CANNOT_BE_CALLED,
        ({"kept_arguments": (0, 0)}, "not in ascending order from 0 to 0: 0 comes after 0"),
        ({"kept_arguments": (1,)}, "not in ascending order from 0 to 0: 1 comes after -1"),
    ],
)
def test_inconsistent_functions(changes: dict[str, Any], text: str) -> None:
    found = refusal(changed(simple(), **changes))
    assert found.startswith("f cannot be written: its parts disagree: ")
    assert text in found


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (
            TreeSpec("dict", keys=("a",)),
            "the result is not a valid structure: its dict has 0 children and the keys ('a',).",
        ),
        (TreeSpec("dict", keys=(1, True), children=(LEAF, LEAF)), "the keys (1, True)"),
        (TreeSpec("list", keys=("a",), children=(LEAF,)), "its list has 1 children and the keys"),
    ],
)
def test_structures_that_are_none(tree: TreeSpec, text: str) -> None:
    assert text in refusal(simple(LEAF, tree))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"in_avals": (Aval((2**63,), "int8"),)}, "sizes must be from 0 to 9223372036854775807"),
        ({"in_avals": (Aval((-1,), "int8"),)}, "A file cannot hold int8[-1]: its sizes must be"),
        (
            {"nr_devices": 2**32},
            "nr_devices must be from 0 to 4294967295 in a file. Got: 4",
        ),
        ({"nr_devices": -1}, "Got: -1"),
        ({"calling_convention_version": -1}, "calling_convention_version must be from 0"),
        ({"target": Target("t", (), -1)}, "target_calling_convention must be from 0"),
        (
            {"target": Target("t", ((1, 2, -3),), 8)},
            "target_stablehlo_versions must be from 0",
        ),
        ({"target": Target("t", ((1, 2),), 8)}, "has three numbers. Got: ((1, 2),)"),  # type: ignore[arg-type]
        ({"name": "\ud800"}, "'\\ud800' cannot be written as UTF-8: surrogates"),
        ({"producer": "\ud800"}, "'\\ud800' cannot be written as UTF-8: surrogates"),
        (
            {"out_shardings": (Sharding(AbstractMesh(("x",), (), ())),)},
            "A mesh needs a name, a size and a type for each axis",
        ),
    ],
)
def test_values_out_of_range(changes: dict[str, Any], text: str) -> None:
    assert text in refusal(changed(simple(), **changes))


def test_too_many_dimensions() -> None:
    shape = tuple(DimExpr.variable(f"a_long_name_of_a_dimension_{i}") for i in range(5000))
    portable = replace(simple(), in_avals=(Aval(shape, "int8"),))
    assert "characters together, and a file holds 131072. Use shorter names." in refusal(portable)


def test_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(serialize(simple())) - len(simple().module.data)
    monkeypatch.setattr(_format, "MAX_STRUCTURE_SIZE", size)
    assert serialize(changed(simple(), module=bytes(10 * size)))  # modules do not count
    monkeypatch.setattr(_format, "MAX_STRUCTURE_SIZE", size - 1)
    assert refusal(simple()) == (
        "f cannot be written: its description, without modules and arrays, takes more than "
        f"{size - 1} bytes, the limit of FlatBuffers."
    )


def test_size_limit_of_flatbuffers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatbuffers.builder.Builder.MAX_BUFFER_SIZE", 1 << 11)
    portable = replace(simple(), argument_names=("x" * 2000,))
    assert "its description, without modules and arrays, takes more than" in refusal(portable)


def test_more_vjps_than_there_are() -> None:
    reason = NoGradient("it uses a while loop")
    portable = replace(simple(), gradient=reason)
    assert refusal(portable, vjp_order=1) == (
        "f cannot be written with vjp_order=1: there is no VJP. f has no gradient: it uses a while "
        "loop."
    )
    portable = with_vjps(replace(simple(), name="f_0", gradient=reason), b"1", b"2")
    assert refusal(portable, vjp_order=4) == (
        "f_0 cannot be written with vjp_order=4: only VJPs up to order 2 exist. f_0 has no "
        "gradient: it uses a while loop."
    )


def test_vjps_that_cannot_be_made() -> None:
    def no_gradient() -> PortableFunction:
        raise GradientError("the function branches on its input")

    portable = replace(simple(), gradient=GradientOnDemand(no_gradient))
    text = refusal(portable, vjp_order=1)
    assert text.endswith("there is no VJP. the function branches on its input")

    def question() -> PortableFunction:
        raise InconclusiveShapeError("is b >= 2?", comparison="b >= 2")

    with pytest.raises(InconclusiveShapeError, match="is b >= 2"):
        serialize(replace(simple(), gradient=GradientOnDemand(question)), vjp_order=1)


def test_endless_vjps() -> None:
    # The function takes nothing; otherwise each VJP would have more arguments than the one before.
    nothing = simple(TreeSpec("none"), TreeSpec("none"))

    def more() -> PortableFunction:
        return vjp_of(nothing, gradient=GradientOnDemand(more))

    assert "a file holds VJPs up to order 200" in refusal(more(), vjp_order=1000)


def test_a_function_of_a_call_without_names_is_written() -> None:
    tree = call_tree()
    portable = changed(
        simple(), in_tree=tree, argument_names=(), in_avals=(), in_shardings=(),
        kept_arguments=(),
    )  # fmt: skip
    assert serialize(portable)
