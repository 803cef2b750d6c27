"""Portable functions whose parts do not agree: no writer writes them, no reader gives them out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jax2tf_bridge import PortableFunction, serialize_exported
from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.portable import (
    LEAF,
    Aval,
    ComparisonParser,
    GradientOnDemand,
    StoredGradient,
    TreeSpec,
    find_function_problem,
    find_vjp_problem,
)

# Private: the writers' checks are switched off, so that the readers meet inconsistent files.
from jax2tf_bridge.serialization import _vjp_chain, deserialize, serialize
from jax2tf_bridge.serialization.jax_exported import _write as _exported_write
from jax2tf_bridge.serialization.jax_exported import read_asserted_constraints
from jax2tf_bridge.serialization.jaxfn import _write as _jaxfn_write
from shape_poly import Comparison, DimExpr, parse_comparison
from tests.serialization import records
from tests.serialization.exported_by_hand import MODULE
from tests.serialization.records import (
    FUNCTIONS_THAT_CANNOT_BE_CALLED,
    SCALAR,
    call_tree,
    changed,
    vjp_of,
)

Write = Callable[..., bytes]
WRITERS = [serialize, serialize_exported]
NOT_IN_JAX_S_FORMAT = {"constraints", "requirements"}


def simple(**changes: Any) -> PortableFunction:
    own: dict[str, Any] = {"module": MODULE, "stablehlo_version": (1, 13, 1)}
    return changed(records.simple(), **{**own, **changes})


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the writers write anything, as somebody else's may."""
    for module in (_jaxfn_write, _exported_write):
        monkeypatch.setattr(module, "find_function_problem", lambda *_: None)
    monkeypatch.setattr(_vjp_chain, "find_vjp_problem", lambda *_: None)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(("changes", "text"), FUNCTIONS_THAT_CANNOT_BE_CALLED)
def test_no_writer_writes_them(write: Write, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SerializationError) as caught:
        write(simple(**changes))
    assert str(caught.value).startswith("f cannot be written")
    assert text in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (changes, text)
        for changes, text in FUNCTIONS_THAT_CANNOT_BE_CALLED
        # The writers need these two to be right for themselves.
        if changes.keys().isdisjoint({"in_avals", "stablehlo_version"})
    ],
)
def test_no_reader_reads_them(
    write: Write, changes: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if write is serialize_exported and changes.keys() & NOT_IN_JAX_S_FORMAT:
        assert read_in_spite_of(write, changes, monkeypatch).constraints == ()
        return
    with pytest.raises(FileFormatError) as caught:
        read_in_spite_of(write, changes, monkeypatch)
    assert "expected parts that agree, got " in str(caught.value)
    assert text in str(caught.value)


def read_in_spite_of(
    write: Write, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> PortableFunction:
    unchecked(monkeypatch)
    return deserialize(write(simple(**changes)))


@pytest.mark.parametrize("write", WRITERS)
def test_variables_that_an_equality_defines(write: Write) -> None:
    b, c = DimExpr.variable("b"), DimExpr.variable("c")
    portable = simple(
        in_avals=(Aval((b,), "int8"),), out_avals=(Aval((c,), "int8"),), constraints=("c == 2*b",)
    )
    assert write(portable)


B = DimExpr.variable("b")
PRIMAL = simple(
    in_tree=call_tree(LEAF, LEAF),
    argument_names=("x", "n"),
    in_avals=(Aval((B, 3), "float32"), Aval((), "int32")),
    in_shardings=(None, None),
    kept_arguments=(0, 1),
)
LONGER = (*PRIMAL.in_avals, Aval((2,), "float32"))
WRONG_VJPS: list[tuple[dict[str, Any], str]] = [
    (
        {"in_avals": LONGER},
        "in_avals[2] is float32[2], but the function requires float32[]",
    ),
    (
        {"in_avals": (Aval((B, 4), "float32"), *vjp_of(PRIMAL).in_avals[1:])},
        "in_avals[0] is float32[b,4], but the function requires float32[b,3]",
    ),
    (
        {"out_avals": (PRIMAL.in_avals[0], Aval((), "int32"))},
        "out_avals[1] is int32[], but the function requires float0[]",
    ),
    (
        {"out_avals": (Aval((B, 3), "float64"), Aval((), "float0"))},
        "out_avals[0] is float64[b,3], but the function requires float32[b,3]",
    ),
    (
        {
            "out_avals": PRIMAL.in_avals[:1],
            "out_shardings": (None,),
            "out_tree": TreeSpec("tuple", children=(LEAF,)),
        },
        "out_avals has 1 members for 2 cotangents of arguments",
    ),
    (
        {
            "in_tree": call_tree(TreeSpec("list", children=(LEAF, LEAF, LEAF))),
            "argument_names": ("all",),
        },
        "in_tree has 1 members for 3 flat arguments",
    ),
]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(("changes", "text"), WRONG_VJPS)
def test_a_vjp_is_that_of_its_function(
    write: Write, changes: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = replace(PRIMAL, gradient=StoredGradient(vjp_of(PRIMAL)))
    assert deserialize(write(right)).vjp().out_avals[1] == Aval((), "float0")
    wrong = replace(PRIMAL, gradient=StoredGradient(vjp_of(PRIMAL, **changes)))
    with pytest.raises(SerializationError) as refused:
        write(wrong)
    assert str(refused.value) == (
        f"f cannot be written: the VJP of order 1 is not that of f: {text}."
    )
    unchecked(monkeypatch)
    data = write(wrong)
    with pytest.raises(FileFormatError) as caught:
        deserialize(data)
    assert f"expected the VJP of f, got {text}" in str(caught.value)


def test_a_vjp_may_write_sizes_in_another_way() -> None:
    """It may know more of them than its function."""
    vjp = vjp_of(PRIMAL, out_avals=(Aval((2 * (B // 2), 3), "float32"), Aval((), "float0")))
    assert find_vjp_problem(PRIMAL, vjp.in_tree, vjp.in_avals, vjp.out_avals) is None
    assert find_vjp_problem(PRIMAL, LEAF, vjp.in_avals, vjp.out_avals) == (
        "in_tree has 0 members for 3 flat arguments"
    )


def test_values_that_stand_for_many_are_compared_once() -> None:
    count = 20_000
    wide = (Aval((B,) * count, "float32"),) * count
    portable = simple(
        in_tree=call_tree(*(LEAF,) * count),
        argument_names=("x",) * count,
        in_avals=wide,
        in_shardings=(None,) * count,
        kept_arguments=tuple(range(count)),
    )
    vjp = vjp_of(portable, in_avals=(*wide, SCALAR), out_avals=wide)
    start = time.perf_counter()
    assert find_function_problem(portable, count, 1, ComparisonParser()) is None
    assert find_vjp_problem(portable, vjp.in_tree, vjp.in_avals, vjp.out_avals) is None
    assert time.perf_counter() - start < 3


@pytest.mark.parametrize("write", WRITERS)
def test_vjps_are_kept_unless_others_are_asked_for(write: Write) -> None:
    portable = records.with_vjps(simple(), MODULE, MODULE)
    kept = deserialize(write(portable))
    assert kept.vjp().vjp().name == "f"
    assert not kept.vjp().vjp().has_vjp
    assert write(portable) == write(portable, vjp_order=2)
    assert not deserialize(write(portable, vjp_order=0)).has_vjp
    # Those that are not there are not made.
    assert not deserialize(
        write(simple(gradient=GradientOnDemand(lambda: vjp_of(simple()))))
    ).has_vjp


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("order", [-1, 1.5, "1", True])
def test_orders_that_are_no_numbers_of_vjps(write: Write, order: Any) -> None:
    text = f"vjp_order must be an integer, at least 0. Got: {order!r}"
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        write(simple(), vjp_order=order)
    assert not isinstance(caught.value, SerializationError)


def test_sizes_that_are_long_to_multiply_out() -> None:
    """A file of JAX's of 3 KiB must not take a second for each of its sizes."""
    names = [f"v{i:014d}" for i in range(20)]
    shape = tuple(map(DimExpr.variable, names))
    data = serialize_exported(simple(in_avals=(Aval(shape, "float32"),)))
    for i, name in enumerate(names):
        data = data.replace(name.encode(), f"(a+b+c+d)^30+{i:02d}".encode())
    start = time.perf_counter()
    with pytest.raises(FileFormatError, match=r"as JAX prints it, got '.*grouping parentheses"):
        deserialize(data)
    assert time.perf_counter() - start < 1


def test_the_length_of_all_sizes_is_bounded() -> None:
    shape = tuple(DimExpr.variable(f"{'v' * 1000}{i}") for i in range(140))
    data = serialize_exported(simple(in_avals=(Aval(shape, "float32"),)))
    with pytest.raises(FileFormatError, match="at most 131072 characters of all sizes together"):
        deserialize(data)


def test_constraints_with_parentheses_are_read_but_not_many() -> None:
    texts = [f"2*(a + {i}) >= b" for i in range(9)]
    comparisons = ComparisonParser()
    assert comparisons.parse("a +") == comparisons.parse("a +")
    for _ in range(2):  # what was read before costs nothing
        for text in texts[:8]:
            assert comparisons.parse(text) == parse_comparison(text)
    assert isinstance(comparisons.parse(texts[8]), str)
    assert isinstance(comparisons.parse("max(a, b) >= mod(b, 2)"), Comparison)


def assertion(constraint: str) -> bytes:
    """As JAX writes it into a module for a function of one array of b elements."""
    return (
        f"Input shapes do not match the symbolic shape constraint {constraint}. Expected '0' to be "
        "equal to 0. Using the following polymorphic shapes specifications: args[0].shape = (b,). "
        "Obtained dimension variables: 'b' = 3\0"
    ).encode()


@pytest.mark.parametrize(
    ("written", "added"),
    [
        ("mod(b,2)==0", "2*floordiv(b, 2) == b"),
        ("mod(b, 2) == 0", "2*floordiv(b, 2) == b"),
        ("mod(2*(b+1), 4) == 0", "4*floordiv(2*b + 2, 4) == 2*b + 2"),
    ],
)
def test_what_jax_adds_to_a_constraint_is_none_of_the_users(written: str, added: str) -> None:
    in_avals = (Aval((B,), "float32"),)
    module = memoryview(MODULE + assertion(written) + assertion(added) + assertion("b >= 2"))
    assert read_asserted_constraints(module, [["b"]], in_avals) == (written, "b >= 2")
    # By itself somebody wrote it.
    alone = memoryview(MODULE + assertion(added))
    assert read_asserted_constraints(alone, [["b"]], in_avals) == (added,)


def test_assertions_that_are_long_to_multiply_out() -> None:
    in_avals = (Aval((B,), "float32"),)
    slow = (assertion(f"(b+b^2+b^3+b^4)^60 >= {i}") for i in range(1000))
    start = time.perf_counter()
    found = read_asserted_constraints(memoryview(MODULE + b"".join(slow)), [["b"]], in_avals)
    assert len(found) <= 8
    assert time.perf_counter() - start < 10
