"""Registers node types for files: alone, and together with JAX's registry."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import pytest

from jax2tf_bridge import register_namedtuple_serialization, register_pytree_node_serialization
from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.from_jax.trees import tree_spec
from jax2tf_bridge.portable import LEAF, NodeCodec, TreeSpec

# Both file formats call these functions; a file would add the checks of its format.
from jax2tf_bridge.serialization._stored_types import make_node_codec, serialize_node_type
from tests.fresh_process import run_python


class Box:
    def __init__(self, content: Any, label: str) -> None:
        self.content, self.label = content, label


class JaxBox(Box):
    """Registered with jax.export alone."""


class Pair(NamedTuple):
    first: Any
    second: Any


class JaxPair(NamedTuple):
    first: Any
    second: Any


class Free(NamedTuple):
    """Registered nowhere."""

    only: Any


BY_TEXT: Any = {"serialize_auxdata": str.encode, "deserialize_auxdata": bytes.decode}


def new_box(name: str) -> type[Box]:
    """A new type of boxes that JAX knows as a pytree."""
    kind: type[Box] = type(name, (Box,), {})
    register_with_jax(kind)
    return kind


def register_with_jax(kind: type[Box]) -> None:
    jax.tree_util.register_pytree_node(
        kind, lambda b: ((b.content,), b.label), lambda label, c: kind(c[0], label)
    )


def register(kind: type[Any], name: str, **options: Any) -> None:
    register_pytree_node_serialization(kind, serialized_name=name, **{**BY_TEXT, **options})


def register_in_jax(kind: type[Any], name: str) -> None:
    jax.export.register_pytree_node_serialization(kind, serialized_name=name, **BY_TEXT)


register_with_jax(Box)
register_with_jax(JaxBox)
register(Box, "test_registry.Box")
register_namedtuple_serialization(Pair, serialized_name="test_registry.Pair")
register_in_jax(JaxBox, "test_registry.JaxBox")
jax.export.register_namedtuple_serialization(JaxPair, serialized_name="test_registry.JaxPair")


@pytest.mark.parametrize(
    ("node", "name", "auxdata"),
    [
        (Box(1, "red"), "test_registry.Box", b"red"),
        (JaxBox(1, "red"), "test_registry.JaxBox", b"red"),
        (Pair(1, 2), "test_registry.Pair", b'["first", "second"]'),
        (JaxPair(1, 2), "test_registry.JaxPair", b'["first", "second"]'),
        (OrderedDict(b=1, a=2), "collections.OrderedDict", b'["b", "a"]'),
    ],
)
def test_what_is_written_of_a_node(node: Any, name: str, auxdata: bytes) -> None:
    assert serialize_node_type(tree_spec(node)) == (name, auxdata)


def test_what_a_file_says_of_a_node_counts() -> None:
    spec = TreeSpec("custom", "Foreign", serialized_name="foreign", auxdata=b"\1")
    assert serialize_node_type(spec) == ("foreign", b"\1")
    assert serialize_node_type(TreeSpec("custom", "Foreign")) is None


def test_a_type_that_nobody_registered() -> None:
    kind = new_box("Unregistered")
    assert serialize_node_type(tree_spec(kind(1, "x"))) is None
    assert serialize_node_type(tree_spec(Free(1))) is None
    assert make_node_codec("test_registry.nobody", b"", (LEAF,)) is None


@pytest.mark.parametrize(("name", "kind"), [("Box", Box), ("JaxBox", JaxBox)])
def test_custom_nodes_are_rebuilt(name: str, kind: type[Box]) -> None:
    codec = make_node_codec(f"test_registry.{name}", b"red", (LEAF,))
    assert codec is not None
    assert (codec.node_type, codec.static) == (kind, "red")
    box = codec.unflatten([3])
    assert type(box) is kind
    assert (box.content, box.label) == (3, "red")
    assert codec.flatten(box) == [3]
    assert codec.flatten(kind(3, "blue")) is None


@pytest.mark.parametrize(("name", "kind"), [("Pair", Pair), ("JaxPair", JaxPair)])
def test_named_tuples_are_rebuilt_by_the_names_of_their_fields(
    name: str, kind: Callable[..., Any]
) -> None:
    codec = make_node_codec(f"test_registry.{name}", b'["second", "first"]', (LEAF,) * 2)
    assert codec is not None
    assert codec.unflatten([2, 1]) == kind(first=1, second=2)
    assert codec.flatten(kind(first=1, second=2)) == [2, 1]


def test_ordered_dicts_are_rebuilt() -> None:
    codec = make_node_codec("collections.OrderedDict", b'["b", "a"]', (LEAF,) * 2)
    assert codec is not None
    assert codec.unflatten([1, 2]) == OrderedDict([("b", 1), ("a", 2)])
    assert codec.flatten(OrderedDict([("b", 1), ("a", 2)])) == [1, 2]
    assert codec.flatten(OrderedDict([("a", 2), ("b", 1)])) is None


@pytest.mark.parametrize(("auxdata", "children"), [(b'["a", "a"]', 2), (b'["a"]', 2)])
def test_keys_of_ordered_dicts_must_fit(auxdata: bytes, children: int) -> None:
    with pytest.raises(FileFormatError, match="an OrderedDict of 2 values with the keys a"):
        make_node_codec("collections.OrderedDict", auxdata, (LEAF,) * children)


def test_keys_of_ordered_dicts_must_be_text() -> None:
    with pytest.raises(SerializationError, match="files hold only text as the keys of an Ordered"):
        serialize_node_type(tree_spec(OrderedDict([(1, 2)])))


@pytest.mark.parametrize(
    ("auxdata", "children", "message"),
    [
        (b'["first", "third"]', 2, "has the fields first, second here and first, third in the fi"),
        (b'["first"]', 1, "has the fields first, second here and first in the file, with 1 child"),
        (b'["first", "second"]', 3, "with 3 children. They must be the same."),
        (b'["first", "second", "second"]', 3, "first, second, second in the file"),
        (b"{}", 2, r"must be a list of texts in JSON. Got: b'{}'"),
        (b"[1, 2]", 2, "must be a list of texts in JSON"),
        (b"\xff", 2, "must be a list of texts in JSON"),
        (b"[" * 100_000, 2, "must be a list of texts in JSON"),
    ],
)
def test_other_fields_are_an_error(auxdata: bytes, children: int, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        make_node_codec("test_registry.Pair", auxdata, (LEAF,) * children)


@pytest.mark.parametrize("name", ["Box", "JaxBox"])
def test_static_data_that_cannot_be_read(name: str) -> None:
    with pytest.raises(
        FileFormatError,
        match=f"'test_registry.{name}' has static data that the functions registered for it "
        "cannot read: UnicodeDecodeError: .* Register the functions that wrote them.",
    ) as caught:
        make_node_codec(f"test_registry.{name}", b"\xff", (LEAF,))
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)


def box_with(serialize: Callable[[Any], Any], name: str) -> TreeSpec:
    kind = new_box(name)
    register(kind, f"test_registry.{name}", serialize_auxdata=serialize)
    return tree_spec(kind(1, "red"))


def test_static_data_that_cannot_be_written() -> None:
    with pytest.raises(
        SerializationError,
        match=r"serialize_auxdata, registered for tests.serialization.test_registry.Failing, "
        r"failed on 'red': ZeroDivisionError",
    ):
        serialize_node_type(box_with(lambda label: bytes(1 // 0), "Failing"))
    with pytest.raises(SerializationError, match=r"must return bytes. Got: 'red' of type str"):
        serialize_node_type(box_with(lambda label: label, "Textual"))


def test_a_registration_is_jax_s_too() -> None:
    kind = new_box("Shared")
    register(kind, "test_registry.Shared")
    exported = jax.export.export(jax.jit(lambda b: kind(b.content + 1, "out")))(kind(1, "in"))
    back = jax.export.deserialize(exported.serialize())
    assert back.call(kind(1, "in")).label == "out"
    with pytest.raises(ValueError, match="Duplicate serialization registration"):
        register_in_jax(kind, "test_registry.Other")


def test_a_registration_can_be_completed_once() -> None:
    kind = new_box("Completed")
    register(kind, "completed")

    def build(label: str, children: Any) -> Any:
        return kind(children[0], f"{label}, built")

    there = (
        "tests.serialization.test_registry.Completed is registered for files already, as "
        "'completed'"
    )
    static = (
        ", with other functions for its static data. Leave out serialize_auxdata and "
        "deserialize_auxdata to add from_children."
    )
    tries: list[tuple[str, dict[str, Any], str]] = [
        ("other", {"from_children": build}, "; it cannot be 'other' too."),
        ("completed", {}, ". Register it once; a second call may only add from_children."),
        (
            "completed",
            {"serialize_auxdata": repr, "deserialize_auxdata": eval, "from_children": build},
            static,
        ),
        (
            "completed",
            {"serialize_auxdata": str.encode, "deserialize_auxdata": eval, "from_children": build},
            static,
        ),
    ]
    for name, options, why in tries:
        with pytest.raises(SerializationError) as caught:
            register_pytree_node_serialization(kind, serialized_name=name, **options)
        assert str(caught.value) == there + why
    read_before = make_node_codec("completed", b"a", (LEAF,))
    register_pytree_node_serialization(kind, serialized_name="completed", from_children=build)
    # With the functions for static data that were given first.
    assert serialize_node_type(tree_spec(kind(1, "a"))) == ("completed", b"a")
    codec = make_node_codec("completed", b"a", (LEAF,))
    assert codec is not None
    assert codec.unflatten([1]).label == "a, built"
    assert read_before is not None
    assert read_before.unflatten([1]).label == "a, built"
    with pytest.raises(SerializationError, match=r"'completed', with from_children\. Register"):
        register_pytree_node_serialization(kind, serialized_name="completed", from_children=build)


def test_double_registrations_name_the_other() -> None:
    another = new_box("Another")
    tries: list[tuple[type[Any], str, str]] = [
        (
            Box,
            "box",
            "test_registry.Box is registered for files already, as 'test_registry.Box'; it "
            "cannot be 'box' too",
        ),
        (
            another,
            "test_registry.Box",
            "The name 'test_registry.Box' is registered for files already, for "
            "tests.serialization.test_registry.Box; tests.serialization.test_registry.Another need",
        ),
        (another, "test_registry.JaxBox", "for serialized_name `test_registry.JaxBox`"),
        (JaxBox, "test_registry.AnotherJaxBox", "was with serialized_name `test_registry.JaxBox`"),
    ]
    for kind, name, message in tries:
        with pytest.raises(SerializationError, match=message):
            register(kind, name)
    with pytest.raises(SerializationError, match=r"test_registry.Pair"):
        register_namedtuple_serialization(Pair, serialized_name="pair")
    assert issubclass(SerializationError, ValueError)
    # Nothing of it was kept.
    assert serialize_node_type(tree_spec(another(1, "x"))) is None
    register(another, "test_registry.Another")
    assert serialize_node_type(tree_spec(another(1, "x"))) == ("test_registry.Another", b"x")


def test_what_jax_knows_by_the_same_name_can_be_registered_here() -> None:
    kind = new_box("Both")
    register_in_jax(kind, "test_registry.Both")
    register(kind, "test_registry.Both")
    assert serialize_node_type(tree_spec(kind(1, "x"))) == ("test_registry.Both", b"x")


def test_static_data_are_those_of_jax_export() -> None:
    kind = new_box("KnownInJax")
    register_in_jax(kind, "test_registry.KnownInJax")
    with pytest.raises(SerializationError) as caught:
        register_pytree_node_serialization(
            kind,
            serialized_name="test_registry.KnownInJax",
            from_children=lambda label, children: kind(children[0], label),
        )
    assert str(caught.value) == (
        "jax.export knows tests.serialization.test_registry.KnownInJax as "
        "'test_registry.KnownInJax', with functions for its static data. Give the same "
        "serialize_auxdata and deserialize_auxdata here: without them, files would hold other "
        "static data than jax.export reads."
    )
    assert serialize_node_type(tree_spec(kind(1, "x"))) == ("test_registry.KnownInJax", b"x")
    # Read before a from_children was there.
    codec = make_node_codec("test_registry.KnownInJax", b"x", (LEAF,))
    assert codec is not None
    assert codec.unflatten([1]).label == "x"
    register(
        kind,
        "test_registry.KnownInJax",
        from_children=lambda label, children: kind(children[0], f"{label}, built"),
    )
    assert codec.unflatten([1]).label == "x, built"


def test_jax_export_makes_nodes_as_a_completed_registration() -> None:
    kind = new_box("CompletedInJax")
    register(kind, "test_registry.CompletedInJax")
    data = jax.export.export(jax.jit(lambda b: b.content))(kind(1.0, "in")).serialize()
    made: list[Any] = []

    def build(label: str, children: Any) -> Any:
        made.append(label)
        return kind(children[0], label)

    assert jax.export.deserialize(data).call(kind(1.0, "in")) == 1
    assert not made
    register_pytree_node_serialization(
        kind, serialized_name="test_registry.CompletedInJax", from_children=build
    )
    assert jax.export.deserialize(data).call(kind(1.0, "in")) == 1
    assert made == ["in"]


def test_wrong_registrations() -> None:
    with pytest.raises(SerializationError, match=r"builtins.dict is not a named tuple: use regist"):
        register_namedtuple_serialization(dict, serialized_name="dict")
    not_a_type: Any = (1, 2)
    with pytest.raises(SerializationError, match=r"must be a type. Got: \(1, 2\) of type tuple"):
        register_namedtuple_serialization(not_a_type, serialized_name="test_registry.pair")
    with pytest.raises(SerializationError, match=r"must be a type. Got: \(1, 2\) of type tuple"):
        register_pytree_node_serialization(not_a_type, serialized_name="test_registry.pair")
    with pytest.raises(SerializationError, match=r"must be text that is not empty. Got: ''"):
        register(new_box("Nameless"), "")
    with pytest.raises(
        SerializationError, match=r"jax.export does not accept \S+ as '.*': If `from_children` is"
    ):
        register(type("Unknown", (), {}), "test_registry.Unknown")


@pytest.mark.parametrize(
    ("argument", "others"),
    [
        ("from_children", {}),
        ("to_children", {}),
        ("serialize_auxdata", {"deserialize_auxdata": bytes.decode}),
        ("deserialize_auxdata", {"serialize_auxdata": str.encode}),
    ],
)
def test_functions_of_registrations_can_be_called(argument: str, others: dict[str, Any]) -> None:
    kind = new_box("Elliptic")
    options: dict[str, Any] = {argument: ..., **others}
    with pytest.raises(SerializationError) as caught:
        register_pytree_node_serialization(kind, serialized_name="elliptic", **options)
    assert str(caught.value) == (
        f"{argument} of tests.serialization.test_registry.Elliptic must be a function. "
        "Got: Ellipsis of type ellipsis"
    )


def test_it_is_a_decorator_s_return_value() -> None:
    kind = namedtuple("kind", "a")
    assert register_namedtuple_serialization(kind, serialized_name="test_registry.kind") is kind


WITHOUT_JAX = """
from collections import OrderedDict, namedtuple
from jax2tf_bridge.errors import SerializationError, StructureError, FileFormatError
from jax2tf_bridge.portable import LEAF, TreeSpec
from jax2tf_bridge import register_namedtuple_serialization, register_pytree_node_serialization
from jax2tf_bridge.serialization._stored_types import make_node_codec, serialize_node_type

class Box:
    def __init__(self, content, label):
        self.content, self.label = content, label

how = dict(serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode)
try:
    register_pytree_node_serialization(Box, serialized_name="Box", **how)
except SerializationError as e:
    print(e)
build = lambda label, children: Box(children[0], label)
register_pytree_node_serialization(Box, serialized_name="Box", from_children=build, **how)
codec = make_node_codec("Box", b"red", (LEAF,))
box = codec.unflatten([3])
print(type(box).__name__, box.content, box.label, codec.static)
try:
    codec.flatten(box)
except StructureError as e:
    print(e)

class Crate(Box):
    pass

register_pytree_node_serialization(
    Crate,
    serialized_name="Crate",
    from_children=lambda label, children: Crate(children[0], label),
    to_children=lambda crate: [crate.content],
    **how,
)
codec = make_node_codec("Crate", b"red", (LEAF,))
spec = TreeSpec("custom", "Crate", (), (LEAF,), codec, "Crate", b"red")
print(spec.flatten(Crate(5, "blue")), spec.unflatten(iter([7])).content, serialize_node_type(spec))
print(serialize_node_type(TreeSpec("custom", "Crate", (), (LEAF,), codec)))
Pair = namedtuple("Pair", "x y")
register_namedtuple_serialization(Pair, serialized_name="Pair")
print(make_node_codec("Pair", b'["y", "x"]', (LEAF,) * 2).unflatten([1, 2]))
codec = make_node_codec("collections.OrderedDict", b'["b", "a"]', (LEAF,) * 2)
missing = make_node_codec("nobody", b"", (LEAF,))
print(codec.unflatten([1, 2]), codec.flatten(OrderedDict(b=1, a=2)), missing)
try:
    make_node_codec("Box", b"\\xff", (LEAF,))
except FileFormatError as e:
    print(type(e.__cause__).__name__)
"""


def test_without_jax() -> None:
    lines = run_python(WITHOUT_JAX, without_jax=True).splitlines()
    assert lines == [
        "__main__.Box cannot be registered without from_children where JAX is not imported: pass "
        "from_children, or import jax and register the type with "
        "jax.tree_util.register_pytree_node first.",
        "Box 3 red red",
        "A __main__.Box cannot be flattened without JAX: it was registered without to_children. "
        "Pass to_children to register_pytree_node_serialization.",
        "[5] 7 ('Crate', b'red')",
        "('Crate', b'red')",
        "Pair(x=2, y=1)",
        "OrderedDict({'b': 1, 'a': 2}) [1, 2] None"
        if "OrderedDict({'b': 1, 'a': 2})" in str(OrderedDict(b=1, a=2))
        else "OrderedDict([('b', 1), ('a', 2)]) [1, 2] None",
        "UnicodeDecodeError",
    ]


BEFORE_JAX = """
import sys
from collections import namedtuple
from jax2tf_bridge import register_namedtuple_serialization
from jax2tf_bridge.serialization import forward_registrations

assert "jax" not in sys.modules
Pair = namedtuple("Pair", "x y")
register_namedtuple_serialization(Pair, serialized_name="Pair")
import jax
import jax.export
exported = jax.export.export(jax.jit(lambda p: p))(Pair(1, 2))
forward_registrations()
forward_registrations()
print(jax.export.deserialize(exported.serialize()).in_tree)
"""


@pytest.mark.slow
def test_what_was_registered_before_jax_was_imported() -> None:
    assert "Pair" in run_python(BEFORE_JAX)


def test_leaves_have_no_serialization() -> None:
    codec = NodeCodec(Box, lambda b: [b.content], lambda c: Box(c[0], "red"), "red")
    assert serialize_node_type(TreeSpec("custom", "Box", (), (LEAF,), codec)) == (
        "test_registry.Box",
        b"red",
    )
