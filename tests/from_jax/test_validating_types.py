"""Pytree types whose constructors check their children: exported, called, stored, read."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import jax2tf_bridge as bridge
from jax2tf_bridge import PortableFunction, to_exported
from jax2tf_bridge.errors import StructureError
from jax2tf_bridge.jax_export import export as bridge_export
from jax2tf_bridge.portable import LEAF, TreeSpec
from tests.checking_types import Shaped, Strict, Stricter

X = np.arange(3, dtype=np.float32)


class Crate:
    """Registered for files, and not with JAX."""


bridge.register_pytree_node_serialization(
    Partial,
    serialized_name="test_validating_types.Partial",
    serialize_auxdata=lambda f: f.__name__.encode(),
    deserialize_auxdata=lambda data: getattr(jnp, data.decode()),
)


def double(node: Any) -> Any:
    return type(node)(2 * node.x)


def in_jax(portable: PortableFunction) -> Any:
    return jax.export.deserialize(bytearray(bridge.serialize_exported(portable)))


WAYS: list[Callable[[PortableFunction], Any]] = [
    to_exported,
    lambda portable: to_exported(bridge.deserialize(bridge.serialize(portable))),
    lambda portable: to_exported(pickle.loads(pickle.dumps(portable))),
    lambda portable: to_exported(bridge.from_exported(to_exported(portable))),
    lambda portable: to_exported(bridge.deserialize(bridge.serialize_exported(portable))),
    in_jax,
]
NAMES = ["call", "file", "pickle", "exported", "JAX's file", "in JAX"]


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
@pytest.mark.parametrize("kind", [Shaped, Strict])
def test_they_are_called_on_every_way(kind: Any, way: Callable[[Any], Any]) -> None:
    if way is in_jax and kind is Shaped and jax.__version_info__ < (0, 9):
        pytest.skip("JAX 0.8 reads its files by making such types from numbers")
    portable = bridge.export(double, platforms=["cpu"])(kind(X))
    result = way(portable).call(kind(X))
    assert type(result) is kind
    assert result.x.tolist() == [0, 2, 4]


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_partials_are_called_on_every_way(way: Callable[[Any], Any]) -> None:
    def f(add: Any, x: Any) -> Any:
        return add(x), Partial(jnp.multiply, x)

    portable = bridge.export(f, platforms=["cpu"])(Partial(jnp.add, X), X)
    total, multiply = way(portable).call(Partial(jnp.add, X), X)
    assert total.tolist() == [0, 2, 4]
    assert multiply(X).tolist() == [0, 1, 4]


def test_exported_functions_of_jax_s_own_are_read() -> None:
    exported = jax.export.export(jax.jit(lambda f, s: f(s.x)), platforms=["cpu"])(
        Partial(jnp.add, X), Shaped(X)
    )
    portable = bridge.from_exported(exported)
    assert to_exported(portable).call(Partial(jnp.add, X), Shaped(X)).tolist() == [0, 2, 4]
    assert portable.in_paths() == ("x0[0][0]", "x1[0]")


def test_what_auto_finds_is_told_in_texts() -> None:
    portable = bridge.export(double, polymorphic_shapes=bridge.AUTO, platforms=["cpu"])(Strict(X))
    assert portable.polymorphic_shapes == {"node[0]": "(b,)"}


def test_a_constructor_that_refuses_abstract_values_is_told() -> None:
    with pytest.raises(StructureError) as caught:
        bridge.export(double)(Stricter(X))
    name = "tests.checking_types.Stricter"
    assert str(caught.value) == (
        f"A {name} cannot be made of abstract arrays, which have a shape and dtype but no values: "
        "its constructor refuses them with TypeError: Strict wants an array, got ArraySpec. "
        "Register the type with a from_children that checks nothing:\n"
        "import tests.checking_types\n"
        "from jax2tf_bridge import register_pytree_node_serialization\n"
        "def make_stricter(static, children):\n"
        f"    instance = object.__new__({name})\n"
        "    vars(instance).update(x=children[0])\n"
        "    return instance\n"
        f"register_pytree_node_serialization({name}, serialized_name='{name}', "
        "from_children=make_stricter)"
    )
    assert isinstance(caught.value.__cause__, TypeError)


def test_types_that_jax_does_not_know() -> None:
    bridge.register_pytree_node_serialization(
        Crate,
        serialized_name="test_validating_types.Crate",
        from_children=lambda static, children: Crate(),
    )
    portable = bridge.export(jnp.sin, platforms=["cpu"])(X)
    tree = TreeSpec("custom", "Crate", (), (LEAF,), None, "test_validating_types.Crate", b"null")
    with pytest.raises(StructureError) as caught:
        to_exported(replace(portable, out_tree=tree)).call(X)
    assert str(caught.value) == (
        "sin has a Crate, which JAX does not know as a pytree here: register Crate with "
        "jax.tree_util.register_pytree_node before the call."
    )


def test_jax_export_makes_them_as_well() -> None:
    exported = bridge_export(jax.jit(double), platforms=["cpu"])(Strict(jnp.asarray(X)))
    assert exported.call(Strict(X)).x.tolist() == [0, 2, 4]
