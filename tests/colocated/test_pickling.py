"""Objects are sent by name, by value, once; and errors say what is missing for it."""

import sys
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import tests.colocated.jitted as module
from jax2tf_bridge.colocated import Channel
from jax2tf_bridge.errors import DTypeError, MissingDependencyError


def pair() -> tuple[Channel, Channel]:
    parent = Channel.with_new_token()
    return parent, Channel(parent.token, end="worker")


def there_and_back(obj: Any) -> Any:
    parent, worker = pair()
    return worker.unpack(parent.pack(obj))


def test_transformed_functions_of_modules_go_by_name() -> None:
    for function in (module.jitted, module.with_vjp, module.with_jvp, jnp.sin, jax.nn.relu):
        assert there_and_back(function) is function
    assert len(Channel.with_new_token().pack(module.jitted)) < 150


def test_a_module_registered_by_value_goes_by_value() -> None:
    cloudpickle.register_pickle_by_value(module)
    try:
        found = there_and_back(module.jitted)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert found is not module.jitted
    assert found(3.0) == 6.0


def test_equal_shardings_are_sent_once() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    one = [NamedSharding(mesh, PartitionSpec("x"))]
    many = [NamedSharding(mesh, PartitionSpec("x")) for _ in range(1000)]
    parent, worker = pair()
    small, large = parent.pack(one), parent.pack(many)
    assert len(large) - len(small) < 10 * len(many)
    assert worker.unpack(small) == one
    found = worker.unpack(large)
    assert found == many
    assert all(sharding is found[0] for sharding in found)
    # In another message they are others again, whatever came before.
    assert worker.unpack(parent.pack(one)) == one


def test_what_differs_stays_different() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    shardings = [
        NamedSharding(mesh, PartitionSpec("x")),
        NamedSharding(mesh, PartitionSpec()),
        NamedSharding(mesh, PartitionSpec("x"), memory_kind="pinned_host"),
        NamedSharding(Mesh(mesh.devices, ("y",)), PartitionSpec("y")),
        NamedSharding(mesh.abstract_mesh, PartitionSpec("x")),
    ]
    assert there_and_back(shardings * 2) == shardings * 2


def test_meshes_of_every_kind() -> None:
    devices = np.array(jax.devices()[:1])
    for mesh in (
        Mesh(devices.reshape(1, 1, 1), ("a", "b", "c"), axis_types=tuple(AxisType)[:3]),
        Mesh(devices.reshape(()), ()),
        Mesh(np.empty((), object), ()),
    ):
        found = there_and_back(mesh)
        assert found == mesh
        assert (found.axis_types, found.shape) == (mesh.axis_types, mesh.shape)


def test_device_lists_and_what_holds_one() -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec("x"))
    layout = Format(Layout((0,)), sharding)
    assert there_and_back(layout) == layout
    (one,) = there_and_back(jax.devices()[:1])
    assert one is jax.devices()[0]


def test_identity_is_kept_within_a_message() -> None:
    array, values = jnp.ones(3), [1]
    found = there_and_back({"a": array, "b": [array, values], "c": values})
    assert found["a"] is found["b"][0]
    assert found["c"] is found["b"][1]


def test_64_bits_need_to_be_enabled_at_both_ends() -> None:
    parent, worker = pair()
    with jax.enable_x64(True):
        assert worker.unpack(parent.pack(jnp.arange(3))).dtype == np.int64
        message = parent.pack(jnp.arange(3))
    with pytest.raises(DTypeError, match=r"array of int64 came .* would be int32.*JAX_ENABLE_X64"):
        worker.unpack(message)


def test_symbolic_shapes_and_structures() -> None:
    struct = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 2*b"), np.float32)
    found = there_and_back(struct)
    assert str(found.shape) == str(struct.shape)
    structure = jax.tree.structure({"a": [1, (2, None)]})
    assert there_and_back(structure) == structure


def test_missing_modules_get_a_hint() -> None:
    parent, worker = pair()
    message = parent.pack(module.jitted)
    sys.modules["tests.colocated.jitted"], kept = None, module  # type: ignore[assignment]
    try:
        with pytest.raises(ModuleNotFoundError) as caught:
            worker.unpack(message)
    finally:
        sys.modules["tests.colocated.jitted"] = kept
    assert "needs the same modules on its sys.path" in caught.value.__notes__[0]


def test_without_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, worker = pair()
    message = parent.pack(1)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    for call in (lambda: parent.pack(1), lambda: worker.unpack(message)):
        with pytest.raises(MissingDependencyError, match=r"jax2tf-bridge\[parallel\]") as caught:
            call()
        assert "needs cloudpickle, which is not installed here" in str(caught.value)
    # Bytes need none.
    assert Channel(parent.token, end="worker").token == parent.token
    other, other_worker = pair()
    assert other_worker.verify(other.sign(b"x")) == b"x"
