"""TreeSpec: structures without JAX."""

import collections
import pickle
from typing import Any

import pytest

from jax2tf_bridge.errors import StructureError
from jax2tf_bridge.portable import LEAF, NodeCodec, TreeSpec

NONE = TreeSpec("none")


def tree(kind: Any, *children: TreeSpec, keys: Any = (), name: str = "") -> TreeSpec:
    return TreeSpec(kind, name, keys, children)


NESTED = tree(
    "dict",
    tree("list", LEAF, NONE),
    tree("tuple", LEAF, tree("namedtuple", LEAF, LEAF, keys=("x", "y"), name="Point")),
    keys=("a", "b"),
)
Point = collections.namedtuple("Point", "x y")
VALUE = {"a": [1, None], "b": (2, Point(3, 4))}


def test_flatten_and_unflatten() -> None:
    assert NESTED.flatten(VALUE) == [1, 2, 3, 4]
    assert NESTED.unflatten(iter([1, 2, 3, 4])) == VALUE
    assert NESTED.unflatten([1, 2, 3, 4]) == VALUE
    assert NESTED.leaf_count == 4
    assert list(NESTED.leaf_paths("p")) == ["p['a'][0]", "p['b'][0]", "p['b'][1].x", "p['b'][1].y"]
    assert str(NESTED) == "{'a': [*, None], 'b': (*, Point(*, *))}"


def test_order_of_keys_is_the_functions() -> None:
    spec = tree("dict", LEAF, LEAF, keys=("b", "a"))
    assert spec.flatten({"a": 1, "b": 2}) == [2, 1]
    assert list(spec.unflatten(iter([2, 1]))) == ["b", "a"]


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ({"a": [1, 2], "b": (2, Point(3, 4))}, ["p['a'][1]: expected None, got an int"]),
        ({"a": [1], "b": None}, [
            "p['a']: expected a list of length 2, got a list of length 1",
            "p['b']: expected a tuple of length 2, got None",
        ]),
        ({"c": 1, "b": (2, Point(3, 4))}, [
            "p: the key 'a' is missing", "p: the key 'c' is not expected",
        ]),
        ({"a": (1, None), "b": [2, (3, 4)]}, [
            "p['a']: expected a list of length 2, got a tuple of length 2",
            "p['b']: expected a tuple of length 2, got a list of length 2",
        ]),
        ({"a": [[1], None], "b": (2, Point(3, {}))}, [
            "p['a'][0]: expected an array, got a list of length 1",
            "p['b'][1].y: expected an array, got a dict with the keys []",
        ]),
        ([1], ["p: expected a dict with the keys ['a', 'b'], got a list of length 1"]),
    ],
)  # fmt: skip
def test_every_difference_is_listed(value: Any, lines: list[str]) -> None:
    with pytest.raises(StructureError) as error:
        NESTED.flatten(value, "p")
    assert str(error.value).splitlines()[1:] == [f"  - {line}" for line in lines]


def test_codec_is_of_this_process_only() -> None:
    class Box:
        def __init__(self, content: Any, label: str) -> None:
            self.content, self.label = content, label

    codec = NodeCodec(
        Box, lambda b: [b.content] if b.label == "l" else None, lambda c: Box(c[0], "l")
    )
    spec = TreeSpec("custom", "Box", (), (LEAF,), codec)
    assert spec.flatten(Box(1, "l")) == [1]
    assert spec.unflatten(iter([1])).content == 1
    with pytest.raises(StructureError, match="b: the Box differs in its static data"):
        spec.flatten(Box(1, "other"), "b")
    stored = pickle.loads(pickle.dumps(spec))
    assert stored == spec
    assert stored.codec is None
    assert stored.flatten((1,)) == [1]
    assert stored.unflatten(iter([1])) == (1,)
    with pytest.raises(StructureError, match=r"b: expected a Box of 1 children \(as a tuple here"):
        stored.flatten({"content": 1}, "b")
