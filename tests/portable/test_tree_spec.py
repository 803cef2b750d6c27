"""TreeSpec: structures without JAX."""

import collections
import pickle
from typing import Any

import pytest

from jax2tf_bridge import StructureError, TreeSpec
from jax2tf_bridge.portable._tree_spec import LEAF, NodeCodec, call_without, flatten_call

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


def test_order_of_keys_is_the_records() -> None:
    spec = tree("dict", LEAF, LEAF, keys=("b", "a"))
    assert spec.flatten({"a": 1, "b": 2}) == [2, 1]
    assert list(spec.unflatten(iter([2, 1]))) == ["b", "a"]


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ({"a": [1, 2], "b": (2, Point(3, 4))}, ["p['a'][1]: expected None, got a int"]),
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


Masked = collections.namedtuple("Masked", "z mask a")
MASKED = TreeSpec(
    "namedtuple",
    "Masked",
    Masked._fields,
    (LEAF,) * 3,
    NodeCodec(Masked, lambda value: value, lambda children: Masked(*children)),
    "a.Masked",
    b"auxdata",
)


def call_of(*arguments: TreeSpec) -> TreeSpec:
    return tree("tuple", tree("tuple", *arguments), tree("dict"))


def test_a_field_that_is_left_out_leaves_the_others_by_name_and_in_order() -> None:
    whole, names = call_without(call_of(MASKED, LEAF), ["batch", "x"], ["batch.mask"])
    assert names == ("batch", "x")
    batch = whole.children[0].children[0]
    # Not a dict, whose keys JAX would sort: the leaves are in the order of the fields.
    assert (batch.kind, batch.keys, batch.serialized_name) == ("custom", ("z", "a"), "")
    assert list(batch.leaf_paths("batch")) == ["batch.z", "batch.a"]
    assert flatten_call(whole, names, [{"a": 2, "z": 1}, 3], {}) == [1, 2, 3]
    with pytest.raises(StructureError, match=r"expected a Masked of 2 children \(as a dict here"):
        flatten_call(whole, names, [Masked(1, 0, 2), 3], {})


def test_keys_of_a_dict_stay_sorted_without_one() -> None:
    spec = tree("dict", LEAF, LEAF, LEAF, keys=("a", "mask", "z"))
    whole, _ = call_without(call_of(spec), ["batch"], ["batch['mask']"])
    assert whole == call_of(tree("dict", LEAF, LEAF, keys=("a", "z")))


@pytest.mark.parametrize(
    "argument", [LEAF, tree("dict", LEAF, keys=("m",)), tree("list", LEAF), tree("tuple", LEAF)]
)
def test_an_argument_of_which_nothing_is_left_is_left_out(argument: TreeSpec) -> None:
    paths = list(argument.leaf_paths("masks"))
    whole, names = call_without(call_of(LEAF, argument), ["x", "masks"], paths)
    assert (whole, names) == (call_of(LEAF), ("x",))


def test_an_element_that_is_left_out_is_none() -> None:
    whole, _ = call_without(call_of(tree("tuple", LEAF, LEAF)), ["x"], ["x[0]"])
    assert whole == call_of(tree("tuple", NONE, LEAF))
