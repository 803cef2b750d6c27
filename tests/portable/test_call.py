"""Call: structures of arguments without JAX."""

import collections

import pytest

from jax2tf_bridge.errors import StructureError
from jax2tf_bridge.portable import LEAF, CallStructure, NodeCodec, TreeSpec

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


def test_a_call_of_a_portable_function_is_flattened_and_made_again() -> None:
    args, kwargs = (
        TreeSpec("tuple", children=(LEAF,)),
        TreeSpec("dict", "", ("b", "a"), (LEAF,) * 2),
    )
    call = CallStructure.of(TreeSpec("tuple", children=(args, kwargs)), ("x",))
    assert call.paths() == ("x", "b", "a")
    assert call.flatten([1], {"a": 3, "b": 2}) == [1, 2, 3]
    assert call.unflatten([1, 2, 3]) == ((1,), {"b": 2, "a": 3})
    with pytest.raises(StructureError) as error:
        call.flatten([1, 2], {"a": None, "c": 1})
    assert str(error.value).splitlines()[1:] == [
        "  - the positional arguments: expected 1 (x), got 2",
        "  - the keyword argument b is missing",
        "  - the keyword argument c is not expected",
        "  - a: expected an array, got None",
    ]


def test_a_field_that_is_left_out_leaves_the_others_by_name_and_in_order() -> None:
    call = CallStructure((("batch", MASKED), ("x", LEAF))).without(["batch.mask"])
    assert call.names == ("batch", "x")
    batch = call.args[0][1]
    # Not a dict, whose keys JAX would sort: the leaves are in the order of the fields.
    assert (batch.kind, batch.keys, batch.serialized_name) == ("custom", ("z", "a"), "")
    assert list(batch.leaf_paths("batch")) == ["batch.z", "batch.a"]
    assert call.flatten([{"a": 2, "z": 1}, 3]) == [1, 2, 3]
    with pytest.raises(StructureError, match=r"expected a Masked of 2 children \(as a dict here"):
        call.flatten([Masked(1, 0, 2), 3])


def test_keys_of_a_dict_stay_sorted_without_one() -> None:
    spec = TreeSpec("dict", "", ("a", "mask", "z"), (LEAF,) * 3)
    call = CallStructure((("batch", spec),)).without(["batch['mask']"])
    assert call == CallStructure((("batch", TreeSpec("dict", "", ("a", "z"), (LEAF,) * 2)),))


@pytest.mark.parametrize(
    "argument",
    [
        LEAF,
        TreeSpec("dict", "", ("m",), (LEAF,)),
        TreeSpec("list", children=(LEAF,)),
        TreeSpec("tuple", children=(LEAF,)),
    ],
)
def test_an_argument_of_which_nothing_is_left_is_left_out(argument: TreeSpec) -> None:
    paths = list(argument.leaf_paths("masks"))
    call = CallStructure((("x", LEAF), ("masks", argument)), (("n", LEAF),))
    assert call.without(paths) == CallStructure((("x", LEAF),), (("n", LEAF),))
    assert call.without(["n"]).kwargs == ()


def test_an_element_that_is_left_out_is_none() -> None:
    call = CallStructure((("x", TreeSpec("tuple", children=(LEAF, LEAF))),)).without(["x[0]"])
    assert call == CallStructure((("x", TreeSpec("tuple", children=(TreeSpec("none"), LEAF))),))
