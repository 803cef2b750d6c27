"""Named tuples and custom nodes in files: rebuilt where they are registered, else stood in for."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import PortableFunction, export
from jax2tf_bridge.portable import LEAF, TreeSpec
from jax2tf_bridge.serialization import (
    deserialize,
    register_namedtuple_serialization,
    register_pytree_node_serialization,
    serialize,
)
from tests.fresh_process import run_python
from tests.serialization.records import simple


class Point(NamedTuple):
    x: Any
    y: Any


class Plain(NamedTuple):
    u: Any
    v: Any


class Scaled:
    def __init__(self, value: Any, factor: int) -> None:
        self.value, self.factor = value, factor


jax.tree_util.register_pytree_node(
    Scaled, lambda s: ((s.value,), s.factor), lambda factor, children: Scaled(children[0], factor)
)
register_namedtuple_serialization(Point, serialized_name="test_files_types.Point")
register_pytree_node_serialization(
    Scaled,
    serialized_name="test_files_types.Scaled",
    serialize_auxdata=lambda factor: str(factor).encode(),
    deserialize_auxdata=lambda data: int(data),
)


@pytest.fixture(scope="module")
def portable() -> PortableFunction:
    def f(p: Point, s: Scaled, q: Plain) -> Any:
        return Scaled(Point(p.x + s.value * s.factor, p.y), 3), q

    one = np.float32(1)
    return export(f)(Point(one, one), Scaled(one, 2), Plain(one, one))


def test_registered_types_are_rebuilt(portable: PortableFunction) -> None:
    found = deserialize(serialize(portable))
    point, scaled, plain = found.in_tree.children[0].children
    assert (point.serialized_name, scaled.serialized_name, plain.serialized_name) == (
        "test_files_types.Point",
        "test_files_types.Scaled",
        "",
    )
    assert scaled.auxdata == b"2"
    value, other = found.out_tree.unflatten(iter([1, 2, 3, 4]))
    assert type(value) is Scaled
    assert value.factor == 3
    assert value.value == Point(1, 2)
    assert type(value.value) is Point
    # Not registered: a named tuple of the same fields.
    assert type(other) is not Plain
    assert other == Plain(3, 4)
    assert serialize(found) == serialize(portable)


def test_arguments_of_registered_types_are_taken(portable: PortableFunction) -> None:
    tree = deserialize(serialize(portable)).in_tree.children[0]
    leaves = tree.flatten((Point(1, 2), Scaled(3, 2), Plain(4, 5)))
    assert leaves == [1, 2, 3, 4, 5]


def test_a_named_tuple_without_static_data_has_the_fields_of_the_function() -> None:
    """A function made by hand has them as jax.export writes them."""
    tree = TreeSpec(
        "namedtuple",
        "Point",
        ("y", "x"),
        (LEAF, LEAF),
        serialized_name="test_files_types.Point",
    )
    found = deserialize(serialize(simple(LEAF, tree)))
    assert found.out_tree.unflatten(iter([1, 2])) == Point(x=2, y=1)
    assert found.out_tree.auxdata is None


WITHOUT = """
import sys
from jax2tf_bridge.serialization import deserialize, serialize

data = bytes.fromhex(sys.argv[1])
record = deserialize(data)
value, other = record.out_tree.unflatten(iter([1, 2, 3, 4]))
print(type(value).__name__, type(value[0]).__name__, value[0]._asdict(), other)
print(serialize(record) == data)
"""


def test_elsewhere_their_children_stand_for_them(portable: PortableFunction) -> None:
    lines = run_python(WITHOUT, serialize(portable).hex(), without_jax=True).splitlines()
    assert lines == ["tuple Point {'x': 1, 'y': 2} Plain(u=3, v=4)", "True"]


def test_the_function_still_computes_the_same(portable: PortableFunction) -> None:
    tf = pytest.importorskip("tensorflow")
    from jax2tf_bridge import to_tf

    one = tf.constant(1.0)
    result, _ = to_tf(deserialize(serialize(portable)))(
        Point(one, one), Scaled(one, 2), Plain(one, one)
    )
    assert jnp.asarray(result.value.x) == 3
