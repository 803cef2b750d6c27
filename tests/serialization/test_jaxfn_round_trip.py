"""Reads from .jaxfn files what was written; equal functions write equal bytes."""

from __future__ import annotations

import dataclasses
import math
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax2tf_bridge import PortableFunction
from jax2tf_bridge.errors import GradientError
from jax2tf_bridge.portable import LEAF, Aval, GradientOnDemand, TreeSpec
from jax2tf_bridge.serialization import deserialize, serialize
from shape_poly import DimExpr
from tests.fresh_process import run_python
from tests.sampling import examples
from tests.serialization.equality import FIELDS, assert_equal
from tests.serialization.records import call_tree, changed, simple, vjp_of, with_vjps
from tests.serialization.strategies import portable_functions, single_functions

thorough = settings(
    deadline=None,
    max_examples=examples(20),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@given(portable_functions())
@thorough
def test_round_trip(portable: PortableFunction) -> None:
    data = serialize(portable)
    found = deserialize(data)
    assert_equal(found, portable)
    assert serialize(found) == data


@given(single_functions(), st.sampled_from((bytearray, memoryview)))
@settings(thorough, max_examples=examples(5))
def test_other_buffers(portable: PortableFunction, kind: type) -> None:
    buffer = kind(serialize(portable))
    found = deserialize(buffer)
    if isinstance(buffer, bytearray):
        buffer[:] = bytes(len(buffer))  # it is the caller's again
    assert_equal(found, portable)


@given(portable_functions())
@settings(thorough, max_examples=examples(5))
def test_what_was_read_can_be_pickled(portable: PortableFunction) -> None:
    assert_equal(pickle.loads(pickle.dumps(deserialize(serialize(portable)))), portable)


def test_every_field_is_drawn_and_compared() -> None:
    """A field that is added to the portable function must come into the strategy and the format."""
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(PortableFunction)
        if field.default is not dataclasses.MISSING
    }
    drawn: dict[str, set[str]] = {name: set() for name in FIELDS}

    @given(single_functions())
    @settings(thorough, max_examples=examples(20), database=None, derandomize=True)
    def collect(portable: PortableFunction) -> None:
        for name in FIELDS:
            drawn[name].add(repr(getattr(portable, name)))

    collect()
    assert [name for name, values in drawn.items() if len(values) < 2] == []
    for name in defaults.keys() & FIELDS:
        assert drawn[name] - {repr(defaults[name])}, name


def test_many_arguments() -> None:
    """More than the 65,535 that JAX's format has indices for."""
    count = 70_000
    portable = changed(
        simple(),
        in_tree=call_tree(TreeSpec("list", children=(LEAF,) * count)),
        in_avals=(Aval((2,), "float32"), Aval((), "int32")) * (count // 2),
        in_shardings=(None,) * count,
        kept_arguments=tuple(range(1, count, 2)),
    )
    data = serialize(portable)
    assert_equal(deserialize(data), portable)
    assert len(data) < 10 * count


def test_keys_that_are_equal_but_of_other_types() -> None:
    trees = [TreeSpec("dict", keys=(key,), children=(LEAF,)) for key in (1, True, 1.0, "1", b"1")]
    zeros = [TreeSpec("dict", keys=(key,), children=(LEAF,)) for key in (0.0, -0.0, 0, False, None)]
    portable = simple(TreeSpec("tuple", children=tuple(trees + zeros)))
    assert_equal(deserialize(serialize(portable)), portable)


def test_a_key_that_is_no_number() -> None:
    portable = simple(TreeSpec("dict", keys=((math.nan, "x"),), children=(LEAF,)))
    found = deserialize(serialize(portable)).in_tree.children[0].children[0]
    (key,) = found.keys
    assert isinstance(key, tuple)
    assert math.isnan(key[0])
    assert key[1] == "x"


def test_dimensions_stay_as_they_are_written() -> None:
    """JAX compares expressions by their form."""
    b = DimExpr.variable("b")
    portable = dataclasses.replace(simple(), in_avals=(Aval(((4 * b) // 2, 2 * b, 7), "float32"),))
    (aval,) = deserialize(serialize(portable)).in_avals
    assert aval == portable.in_avals[0]
    assert list(map(str, aval.shape)) == list(map(str, portable.in_avals[0].shape))


def test_deepest_tree() -> None:
    tree = LEAF
    for _ in range(198):
        tree = TreeSpec("list", children=(tree,))
    portable = simple(tree)
    assert_equal(deserialize(serialize(portable)), portable)


def test_sizes_of_numpy() -> None:
    shape: tuple[int, ...] = tuple(np.array([2, 3]))
    portable = dataclasses.replace(simple(), in_avals=(Aval(shape, "float32"),))
    (aval,) = deserialize(serialize(portable)).in_avals
    assert aval.shape == (2, 3)
    assert {type(size) for size in aval.shape} == {int}


def test_vjps_that_are_there_are_kept() -> None:
    portable = with_vjps(simple(), b"first", b"second")
    for order, reason in ((0, "vjp_order=0"), (1, "vjp_order=1")):
        found = deserialize(serialize(portable, vjp_order=order))
        for _ in range(order):
            found = found.vjp()
        assert not found.has_vjp
        with pytest.raises(GradientError, match=f"its file was written with {reason}; write it"):
            found.vjp()
    assert_equal(deserialize(serialize(portable, vjp_order=2)), portable)
    assert serialize(portable, vjp_order=2) == serialize(portable)


def test_vjps_are_made_when_they_are_asked_for() -> None:
    vjp = vjp_of(simple(), module=b"the VJP")
    portable = dataclasses.replace(simple(), gradient=GradientOnDemand(lambda: vjp))
    assert deserialize(serialize(portable)).gradient_problem() == (
        "f has no gradient: its file was written with vjp_order=0; write it with vjp_order=1."
    )
    assert deserialize(serialize(portable, vjp_order=1)).vjp().module.data == b"the VJP"
    # Now it is there.
    assert deserialize(serialize(portable)).vjp().module.data == b"the VJP"


DETERMINISM = """
import sys
import numpy as np
from jax2tf_bridge import export
from jax2tf_bridge.serialization import serialize

def f(params, x, *, scale):
    return {"y": x @ params["w"] + params["b"], "z": [scale, (x,)], "a": scale}

params = {"w": np.ones((3, 4), np.float32), "b": np.zeros(4, np.float32)}
record = export(f, polymorphic_shapes=[None, "(b, 3)"], polymorphic_constraints=["b >= 2"])(
    params, np.ones((2, 3), np.float32), scale=np.float32(1))
sys.stdout.write(serialize(record, vjp_order=1).hex())
"""


@pytest.mark.slow
def test_two_processes_write_the_same_bytes() -> None:
    first, second = (run_python(DETERMINISM, env={"PYTHONHASHSEED": n}) for n in ("1", "2"))
    assert first == second
    assert deserialize(bytes.fromhex(first)).constraints == ("b >= 2",)


def test_readers_need_neither_jax_nor_tensorflow() -> None:
    code = """
    import sys
    from jax2tf_bridge.serialization import deserialize
    print(deserialize(bytes.fromhex(sys.argv[1])).name)
    print([m for m in ("jax", "tensorflow") if m in sys.modules])
    """
    assert run_python(code, serialize(simple()).hex()).splitlines() == ["f", "[]"]
