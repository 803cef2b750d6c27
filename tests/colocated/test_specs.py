"""Specs as arrays of text: what they take, what they refuse."""

import base64
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jax2tf_bridge.colocated import Channel, deserialize_specs, serialize_specs
from jax2tf_bridge.errors import DeviceError, DTypeError, SerializationError, UntrustedMessageError

SPEC = jax.ShapeDtypeStruct((2, 3), jnp.float32)


def pair() -> tuple[Channel, Channel]:
    parent = Channel.with_new_token()
    return parent, Channel(parent.token, end="worker")


def test_specs_of_every_kind() -> None:
    parent, worker = pair()
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"), memory_kind="pinned_host")
    specs = {
        "tree": [SPEC, (jax.ShapeDtypeStruct((), jnp.int4), None)],
        "sharded": jax.ShapeDtypeStruct((4,), jnp.bfloat16, sharding=sharding),
        "single": jax.ShapeDtypeStruct((), bool, sharding=SingleDeviceSharding(jax.devices()[0])),
        "keys": jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3)),
        "weak": jax.ShapeDtypeStruct((), jnp.float32, weak_type=True),
        "empty": {},
    }
    array = serialize_specs(specs, mesh, parent)
    assert (array.shape, str(array.dtype)) == ((), "StringDType()")
    found = deserialize_specs(array, worker)
    assert found == specs
    assert found["sharded"].sharding.memory_kind == "pinned_host"


@pytest.mark.parametrize("kind", ["mesh", "sharding", "list", "generator"])
def test_devices_are_a_mesh_a_sharding_or_a_list(kind: str) -> None:
    parent, worker = pair()
    device = jax.devices()[0]
    devices: Any = {
        "mesh": Mesh(np.array([device]), ("x",)),
        "sharding": SingleDeviceSharding(device),
        "list": [device, device],
        "generator": (d for d in [device]),
    }[kind]
    array = serialize_specs([SPEC], devices, parent)
    assert array.sharding.device_set == {device}
    assert deserialize_specs(array, worker) == [SPEC]


def test_specs_are_read_in_any_order_each_once() -> None:
    parent, worker = pair()
    arrays = [serialize_specs((SPEC,) * n, jax.devices()[:1], parent) for n in range(3)]
    message = parent.pack("beside them")
    for n in (2, 0, 1):
        assert deserialize_specs(arrays[n], worker) == (SPEC,) * n
    assert worker.unpack(message) == "beside them"
    with pytest.raises(UntrustedMessageError, match="Specs 1 were read before"):
        deserialize_specs(arrays[1], worker)


def test_values_are_no_specs() -> None:
    parent, _ = pair()
    with pytest.raises(
        SerializationError, match=r"specs\['a'\]\[1\] must be a jax.ShapeDtypeStruct"
    ) as e:
        serialize_specs({"a": [SPEC, 3.0]}, jax.devices()[:1], parent)
    assert "Got: a float" in str(e.value)


def test_specs_are_made_of_values_as_the_message_says() -> None:
    parent, worker = pair()
    x: Any = jnp.ones((2, 3))
    with pytest.raises(SerializationError) as caught:
        serialize_specs([x], jax.devices()[:1], parent)
    advice = "jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)"
    assert advice in str(caught.value)
    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)]
    assert deserialize_specs(serialize_specs(specs, jax.devices()[:1], parent), worker) == specs


def test_devices_of_other_processes_only() -> None:
    class Elsewhere:
        id, process_index = 0, 1

    parent, _ = pair()
    others: list[Any] = [[], [Elsewhere()], Mesh(np.empty((), object), ())]
    for devices in others:
        with pytest.raises(DeviceError, match="None of these devices belongs to this process"):
            serialize_specs([SPEC], devices, parent)


def _text(text: str) -> Any:
    return jax.device_put(np.array(text, np.dtypes.StringDType()), jax.devices()[0])


def test_other_arrays_are_refused() -> None:
    parent, worker = pair()
    stranger = Channel.with_new_token()
    cases: list[tuple[Any, str]] = [
        (_text("no base64 !"), "was not written by serialize_specs"),
        (_text("ü"), "was not written by serialize_specs"),
        (_text(""), "these 0 bytes are not a message"),
        (
            _text(base64.b64encode(parent.pack(1)).decode()),
            "has an object, but a tree of specs was expected",
        ),
        (serialize_specs([SPEC], jax.devices()[:1], stranger), "not signed with this channel's"),
        (jnp.ones(3), r"Got: an array of float32\[3\]"),
        (np.ones(()), r"Got: an array of float64\[\]"),
        ("text", "Got: str"),
    ]
    for array, text in cases:
        with pytest.raises(UntrustedMessageError, match=text):
            deserialize_specs(array, worker)


def test_numpy_without_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, worker = pair()
    array = serialize_specs([SPEC], jax.devices()[:1], parent)
    monkeypatch.delattr(np.dtypes, "StringDType")
    for call in (
        lambda: serialize_specs([SPEC], jax.devices()[:1], parent),
        lambda: deserialize_specs(array, worker),
    ):
        with pytest.raises(DTypeError, match=r"StringDType, which came with NumPy 2\.0") as caught:
            call()
        assert "or send the specs with Channel.pack" in str(caught.value)
