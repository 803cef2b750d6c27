"""Types that nobody registered for files: found where they are known, or registered later."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.optimize
import jax.scipy.stats
import numpy as np
import pytest

import jax2tf_bridge as bridge
from jax2tf_bridge import PortableFunction, to_exported
from jax2tf_bridge.errors import FileFormatError, StructureError
from jax2tf_bridge.from_jax.trees import tree_spec
from jax2tf_bridge.portable import LEAF, StoredType, TreeSpec

# One test counts calls of JAX. Others write and read static data that a file holds as bytes.
from jax2tf_bridge.serialization import _jax_registrations
from jax2tf_bridge.serialization._node_data import (
    read_definition,
    read_static,
    write_definition,
    write_static,
)
from jax2tf_bridge.serialization._stored_types import make_stored_codec
from tests.fresh_process import run_python

ONE = np.float32(1)
MATRIX = np.eye(2, dtype=np.float32)


def on_cpu(f: Callable[..., Any]) -> Callable[..., PortableFunction]:
    return bridge.export(f, platforms=["cpu"])


def through_file(portable: PortableFunction) -> PortableFunction:
    return bridge.deserialize(bridge.serialize(portable))


def through_pickle(portable: PortableFunction) -> PortableFunction:
    read: PortableFunction = pickle.loads(pickle.dumps(portable))
    return read


@pytest.mark.parametrize("stored", [through_file, through_pickle])
def test_results_of_jax_numpy_need_no_registration(stored: Callable[..., Any]) -> None:
    result = to_exported(stored(on_cpu(jnp.linalg.slogdet)(MATRIX))).call(2 * MATRIX)
    assert type(result) is type(jnp.linalg.slogdet(MATRIX))
    np.testing.assert_allclose(result.logabsdet, 2 * np.log(2), rtol=1e-6)


@pytest.mark.parametrize(
    "f",
    [
        jnp.linalg.qr,
        jnp.linalg.svd,
        jnp.linalg.eigh,
        jax.scipy.stats.mode,
        lambda x: jax.scipy.optimize.minimize(jnp.sum, x[0], method="BFGS"),
    ],
)
def test_named_tuples_of_jax_are_found_by_their_names(f: Callable[..., Any]) -> None:
    shapes = jax.eval_shape(f, MATRIX)
    spec = tree_spec(shapes)
    read = pickle.loads(pickle.dumps(spec))
    assert read == spec
    assert type(read.unflatten(iter(range(spec.leaf_count)))) is type(shapes)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("jax.moved.elsewhere.QRResult", True),
        ("QRResult", True),  # of files that say no more
        ("other.QRResult", False),
        ("jax.numpy.Nothing", False),
    ],
)
def test_the_module_of_jax_may_have_moved(name: str, found: bool) -> None:
    fields = ("Q", "R")
    spec = TreeSpec(
        "namedtuple", "QRResult", fields, (LEAF, LEAF), stored_type=StoredType(name, False)
    )
    codec = make_stored_codec(spec)
    assert (codec is not None and codec.node_type.__name__ == "QRResult") == found
    other = TreeSpec("namedtuple", "QRResult", ("Q",), (LEAF,), stored_type=spec.stored_type)
    assert make_stored_codec(other) is None


class Step(NamedTuple):
    """Registered by the pasted advice."""

    count: Any
    mean: Any


class Renamed(NamedTuple):
    """Registered under another name than where it is defined."""

    only: Any


class Changed(NamedTuple):
    only: Any


class Labelled:
    """A node whose static data are plain."""

    def __init__(self, value: Any, label: Any) -> None:
        self.value, self.label = value, label


class Active(Labelled):
    """A node whose static data are a function."""


class Closed(Labelled):
    """Like Active, but its deserialize_auxdata needs data."""


class Late(Labelled):
    """Like Closed, but registered after it was written."""


class Often(Labelled):
    """A node that a portable function has many times."""


class Pair(NamedTuple):
    first: Any
    second: Any


class InJax(NamedTuple):
    only: Any


class Moved(NamedTuple):
    only: Any


class Defined(NamedTuple):
    only: Any


def register_with_jax(kind: type[Labelled]) -> None:
    jax.tree_util.register_pytree_node(
        kind,
        lambda node: ((node.value,), node.label),
        lambda label, children: kind(children[0], label),
    )


register_with_jax(Labelled)
register_with_jax(Active)
register_with_jax(Closed)
register_with_jax(Late)
register_with_jax(Often)


def paste_advice(error: StructureError) -> list[str]:
    """Runs the calls that a message advises."""
    calls = re.findall(r"^  - (.*)$", str(error), re.MULTILINE)
    names = {"tests": importlib.import_module("tests"), **vars(bridge.serialization)}
    for call in calls:
        exec(call, names)
    return calls


def test_registering_what_the_error_says_makes_it_work() -> None:
    def f(step: Step) -> Any:
        return Step(step.count + 1, Labelled(step.mean, ("a", 2)))

    portable = on_cpu(f)(Step(ONE, ONE))
    assert through_file(portable).in_tree == portable.in_tree
    stored = [through_file(portable), through_pickle(portable)]
    module = "tests.serialization.test_unregistered_types"
    for read in stored:
        assert read.in_tree.children[0].children[0].codec is None
    with pytest.raises(StructureError) as caught:
        to_exported(stored[0]).call(Step(ONE, ONE))
    assert str(caught.value) == (
        "The arguments or results of f hold types that are not known here: Step, Labelled. "
        "Register them before the call:\n"
        f"  - register_namedtuple_serialization({module}.Step, serialized_name='{module}.Step')\n"
        f"  - register_pytree_node_serialization({module}.Labelled, "
        f"serialized_name='{module}.Labelled')"
    )
    assert len(paste_advice(caught.value)) == 2
    # Those that were read before, and those that are read now.
    for read in (*stored, through_file(portable), through_pickle(portable)):
        count, labelled = to_exported(read).call(Step(ONE, 5 * ONE))
        assert (count, labelled.value, labelled.label) == (2, 5, ("a", 2))
    assert to_exported(through_file(stored[0])).call(Step(ONE, ONE)).mean.label == ("a", 2)


def test_any_serialized_name_will_do() -> None:
    read = through_file(on_cpu(lambda r: r)(Renamed(ONE)))
    bridge.register_namedtuple_serialization(Renamed, serialized_name="my own name")
    assert to_exported(read).call(Renamed(ONE)) == Renamed(ONE)
    # It is registered by now, and so it is written.
    with_type = through_file(on_cpu(lambda r: r)(Renamed(ONE)))
    assert with_type.out_tree.serialized_name == "my own name"


def test_other_fields_where_it_is_read() -> None:
    bridge.register_namedtuple_serialization(Changed, serialized_name="changed.Type")
    stored = StoredType("changed.Type", is_registered=False)
    spec = TreeSpec("namedtuple", "Type", ("other",), (LEAF,), stored_type=stored)
    with pytest.raises(FileFormatError, match="has the fields only here and other in the file"):
        make_stored_codec(spec)


def test_static_data_that_are_not_plain() -> None:
    read = through_file(on_cpu(lambda a: Active(a.label(a.value), jnp.cos))(Active(ONE, jnp.sin)))
    with pytest.raises(StructureError) as caught:
        to_exported(read).call(Active(ONE, jnp.sin))
    assert (
        "Active', serialize_auxdata=..., deserialize_auxdata=...); deserialize_auxdata(None) "
        "must return the static data, which were not stored"
    ) in str(caught.value)
    bridge.register_pytree_node_serialization(
        Active,
        serialized_name="test_unregistered_types.Active",
        serialize_auxdata=lambda _: b"",
        deserialize_auxdata=lambda data: jnp.sin,
    )
    np.testing.assert_allclose(
        to_exported(read).call(Active(ONE, jnp.sin)).value, np.sin(1), rtol=1e-6
    )


def test_static_data_that_cannot_be_had() -> None:
    read = through_file(on_cpu(lambda c: c)(Closed(ONE, jnp.sin)))
    bridge.register_pytree_node_serialization(
        Closed,
        serialized_name="test_unregistered_types.Closed",
        serialize_auxdata=lambda label: label.__name__.encode(),
        deserialize_auxdata=lambda data: getattr(jnp, data.decode()),
    )
    with pytest.raises(FileFormatError) as caught:
        to_exported(read).call(Closed(ONE, jnp.sin))
    assert (
        "test_unregistered_types.Closed are not stored: its type was not registered when it was "
        "written, and they are not plain values. deserialize_auxdata(None) should have returned "
        "them, but raised AttributeError: 'NoneType' object has no attribute 'decode'. Register "
        "the type before the function is written, or have deserialize_auxdata return its static "
        "data for"
    ) in str(caught.value)


def test_a_registration_made_later_does_not_keep_a_function_from_being_read() -> None:
    portable = on_cpu(lambda late: {"late": late, "twice": 2 * late.value})(Late(ONE, jnp.sin))
    written, pickled = bridge.serialize(portable), pickle.dumps(portable)
    bridge.register_pytree_node_serialization(
        Late,
        serialized_name="test_unregistered_types.Late",
        serialize_auxdata=lambda label: label.__name__.encode(),
        deserialize_auxdata=lambda data: getattr(jnp, data.decode()),
    )
    for read in (bridge.deserialize(written), pickle.loads(pickled)):
        # In TensorFlow the children stand for it, as if it were not registered.
        assert read.out_tree.unflatten([1, 2]) == {"late": (1,), "twice": 2}
        assert through_file(read).out_tree.children[0].stored_type == (
            read.out_tree.children[0].stored_type
        )
        with pytest.raises(FileFormatError, match=r"The static data of a .*\.Late are not stored"):
            to_exported(read)


def by_class(name: str, fields: tuple[str, ...]) -> TreeSpec:
    """Returns the structure of a named tuple of a file that names its class alone."""
    return TreeSpec("namedtuple", name, fields, (LEAF,) * len(fields))


def type_of(spec: TreeSpec) -> type | None:
    """Finds the type of a node that was stored."""
    codec = make_stored_codec(spec)
    return None if codec is None else codec.node_type


class OldName(NamedTuple):
    only: Any


class First:
    """Has a class of the same name as Second has."""

    class Twice(NamedTuple):
        """Named tuple of one field, as all of these."""

        only: Any


class Second:
    """Has a class of the same name as First has."""

    class Twice(NamedTuple):
        """Has one field, like the other types here."""

        only: Any

    class Other(NamedTuple):
        """Has one field, like the other types here."""

        only: Any


def test_files_that_name_the_class_alone_find_no_other_class() -> None:
    bridge.register_namedtuple_serialization(Second.Other, serialized_name="OldName")
    jax.export.register_namedtuple_serialization(InJax, serialized_name="KnownToJax")
    assert type_of(by_class("OldName", ("only",))) is None
    assert type_of(by_class("KnownToJax", ("only",))) is None
    bridge.register_namedtuple_serialization(OldName, serialized_name="any name")
    assert type_of(by_class("OldName", ("only",))) is OldName
    assert type_of(by_class("OldName", ("other",))) is None
    assert type_of(TreeSpec("custom", "OldName", (), (LEAF,))) is None


def test_several_classes_of_the_name_that_a_file_has() -> None:
    bridge.register_namedtuple_serialization(First.Twice, serialized_name="first")
    spec = by_class("Twice", ("only",))
    assert type_of(spec) is First.Twice
    bridge.register_namedtuple_serialization(Second.Twice, serialized_name="second")
    with pytest.raises(FileFormatError) as caught:
        make_stored_codec(spec)
    module = __name__
    assert str(caught.value) == (
        "The type Twice is stored by the name of its class alone, and several types of that name "
        f"are registered: {module}.First.Twice, {module}.Second.Twice. Read it in a process that "
        "registers only the right one, or write the function again: files now say where a type is "
        "defined."
    )


def test_where_a_type_is_defined_is_asked_before_names_that_were_registered() -> None:
    name = f"{__name__}.Defined"
    bridge.register_namedtuple_serialization(Moved, serialized_name=name)
    spec = replace(by_class("Defined", ("only",)), stored_type=StoredType(name, False))
    assert type_of(spec) is Moved
    bridge.register_namedtuple_serialization(Defined, serialized_name="defined")
    assert type_of(spec) is Defined


@pytest.mark.parametrize("write", [bridge.serialize, pickle.dumps])
@pytest.mark.parametrize("node", [Often(ONE, jnp.cos), Pair(ONE, ONE)], ids=["custom", "tuple"])
def test_a_type_is_looked_up_once_a_file(
    write: Callable[..., Any], node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    portable = on_cpu(lambda nodes: nodes[0])([node] * 9)
    asked, ask = [], _jax_registrations.serialize_node_type_with_jax

    def counting(spec: TreeSpec) -> tuple[str, bytes] | None:
        asked.append(spec.name)
        return ask(spec)

    monkeypatch.setattr(_jax_registrations, "serialize_node_type_with_jax", counting)
    write(portable)
    # Once for the arguments, and once for the results.
    assert 1 <= len(asked) <= 2


def test_deep_copies_keep_types_and_vjps() -> None:
    portable = on_cpu(lambda step: Step(step.mean, Active(step.count, jnp.sin)))(Step(ONE, ONE))
    (copied,), (alone,) = copy.deepcopy(([portable], [portable.out_tree]))
    assert copied.vjp().name == portable.vjp().name
    for tree in (copied.out_tree, alone):
        step = tree.unflatten(iter([1, 2]))
        assert (type(step), type(step.mean)) == (Step, Active)
        assert step.mean.label is jnp.sin


@pytest.mark.parametrize("pickler", [pickle.Pickler, pickle._Pickler])
def test_picklers_with_a_table_of_their_own_keep_types(pickler: Any) -> None:
    written = io.BytesIO()
    with_table = pickler(written)
    with_table.dispatch_table = {}
    with_table.dump(tree_spec(jnp.linalg.slogdet(MATRIX)))
    read = pickle.loads(written.getvalue())
    assert type(read.unflatten(iter([1, 2]))) is type(jnp.linalg.slogdet(MATRIX))


PLAIN = [None, True, 3, 2.5, float("inf"), "ä", b"\0\xff", (), (1, ("x",)), [1, [2]], {"a": (1,)}]


@pytest.mark.parametrize("static", [*PLAIN, {(1, b"k"): [None]}, {"tuple": {"bytes": "00"}}])
def test_plain_static_data_come_back(static: Any) -> None:
    written = write_static(static)
    assert written is not None
    assert read_static(written) == static
    known = StoredType("a.Type", is_registered=False, auxdata=written)
    assert read_definition(write_definition(known)) == known


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    "static", [jnp.sin, object(), np.float32(1), Step(1, 2), (int,), {1: set()}, nested(20)]
)
def test_other_static_data_are_not_written(static: Any) -> None:
    assert write_static(static) is None


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff", b'{"a": 1}', b"{}", b'{"bytes": 3}', b'{"tuple": 1}', b'{"dict": [1]}'),
        *(b"[" * 100_000, b"[" * 40 + b"]" * 40),
    ],
)
def test_damaged_static_data(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected plain values in JSON"):
        read_static(data)
    assert read_definition(data) is None


def test_without_jax_they_are_named_tuples_of_the_same_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    portable = on_cpu(jnp.linalg.slogdet)(MATRIX)
    written, pickled = bridge.serialize(portable), pickle.dumps(portable)
    monkeypatch.setattr(_jax_registrations, "is_imported", lambda: False)
    for read in (bridge.deserialize(written), pickle.loads(pickled)):
        assert str(read.out_tree) == "SlogdetResult(*, *)"
        result = read.out_tree.unflatten(iter([1, 2]))
        assert repr(result) == "SlogdetResult(sign=1, logabsdet=2)"
        assert not type(result).__module__.startswith("jax.")


OPTAX = """
import sys, re
import jax, numpy as np, optax
from jax2tf_bridge import *
from jax2tf_bridge import errors

params = {"w": np.ones(3, np.float32)}
transform = optax.adam(1e-3)
state = transform.init(params)
if sys.argv[1] == "write":
    record = export(transform.update, platforms=["cpu"])(params, state, params)
    write_function(sys.argv[2], record)
else:
    record = read_function(sys.argv[2])
    try:
        to_exported(record).call(params, state, params)
    except errors.StructureError as e:
        calls = re.findall("  - (.*)", str(e))
    print(*calls, sep="\\n")
    for call in calls:
        exec(call)
    updates, new = to_exported(record).call(params, state, params)
    print(type(new[0]) is type(state[0]), int(new[0].count), updates["w"])
"""


@pytest.mark.slow
def test_states_of_optax_from_another_process(tmp_path: Any) -> None:
    pytest.importorskip("optax")
    path = str(tmp_path / "update.jaxfn")
    run_python(OPTAX, "write", path)
    assert run_python(OPTAX, "read", path).splitlines() == [
        "register_namedtuple_serialization(optax.ScaleByAdamState, "
        "serialized_name='optax.ScaleByAdamState')",
        "register_namedtuple_serialization(optax.EmptyState, serialized_name='optax.EmptyState')",
        "True 1 [-0.00099999 -0.00099999 -0.00099999]",
    ]
