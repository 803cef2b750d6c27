"""Writes shapes, dtypes and shardings as an array of text, which can be sent like other arrays."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.colocated._channel import Channel
from jax2tf_bridge.errors import (
    DeviceError,
    DTypeError,
    SerializationError,
    UntrustedMessageError,
)


def serialize_specs(
    specs: Any, devices: Mesh | Sharding | Iterable[jax.Device], channel: Channel
) -> jax.Array:
    """Writes specs as an array for the process at the other end of the channel.

    Args:
      specs: a pytree of jax.ShapeDtypeStruct, with or without shardings.
      devices: the devices to place the array on. Devices of other processes are ignored.
      channel: the channel to the process that reads the array. It can read the array once.

    Returns:
      A scalar of numpy's StringDType, replicated over the devices. Its text is the signed message
      in base64.

    Raises:
      DTypeError: NumPy is older than 2.0, and has no StringDType.
      DeviceError: none of the devices belongs to this process.
      SerializationError: a leaf is not a jax.ShapeDtypeStruct.
      NotPicklableError: the structure or a sharding cannot be sent.
    """
    string_dtype = _make_string_dtype()
    for path, leaf in jax.tree_util.tree_leaves_with_path(specs):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            place = jax.tree_util.keystr(path)
            raise SerializationError(
                f"specs{place} must be a jax.ShapeDtypeStruct. Got: a {type(leaf).__qualname__}. "
                "Make specs by jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), or "
                "send the values by Channel.pack."
            )
    local_devices = _list_local_devices(devices)
    text = np.array(base64.b64encode(channel.pack_specs(specs)).decode("ascii"), string_dtype)
    # One device_put per device: JAX cannot read back text that it replicates in a single one.
    copies = [jax.device_put(text, device) for device in local_devices]
    sharding = NamedSharding(Mesh(np.array(local_devices), ("devices",)), PartitionSpec())
    return jax.make_array_from_single_device_arrays((), sharding, copies)


def deserialize_specs(array: jax.Array, channel: Channel) -> Any:
    """Reads the pytree of jax.ShapeDtypeStruct that the other end of the channel wrote.

    Raises:
      UntrustedMessageError: the array is not from `serialize_specs` at the other end, or was read
        before. Nothing of it was unpickled.
      DeviceError: a sharding contains devices that this process does not have.
      DTypeError: NumPy is older than 2.0, and has no StringDType.
    """
    string_dtype = _make_string_dtype()
    dtype, shape = getattr(array, "dtype", None), getattr(array, "shape", None)
    if not isinstance(array, jax.Array) or not isinstance(dtype, type(string_dtype)) or shape != ():
        got = type(array).__qualname__
        if shape is not None:
            got = f"an array of {array_type_text(dtype, shape)}"
        raise UntrustedMessageError(
            f"deserialize_specs needs a scalar jax.Array of StringDType. Got: {got}. Pass the "
            "array that serialize_specs made."
        )
    text = array.addressable_shards[0].data.item()
    try:
        message = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UntrustedMessageError(
            "The text of this array was not written by serialize_specs. Nothing of it was "
            "unpickled. Pass the array that serialize_specs made."
        ) from None
    return channel.unpack_specs(message)


def _make_string_dtype() -> np.dtype[Any]:
    dtype_class = getattr(np.dtypes, "StringDType", None)
    if dtype_class is None:
        raise DTypeError(
            f"Specs as arrays need numpy's StringDType, which came with NumPy 2.0; NumPy "
            f"{np.__version__} is installed. Upgrade it, or send the specs with Channel.pack."
        )
    dtype: np.dtype[Any] = dtype_class()
    return dtype


def _list_local_devices(devices: Mesh | Sharding | Iterable[jax.Device]) -> list[jax.Device]:
    """Returns the distinct devices that belong to this process, in order."""
    if isinstance(devices, Mesh):
        # An empty mesh contains None instead of devices.
        candidates: Iterable[jax.Device] = [d for d in devices.devices.flat if d is not None]
    elif isinstance(devices, Sharding):
        candidates = sorted(devices.device_set, key=lambda device: device.id)
    else:
        candidates = devices
    process = jax.process_index()
    local = [d for d in dict.fromkeys(candidates) if d.process_index == process]
    if not local:
        raise DeviceError(
            "None of the given devices belongs to this process. Pass some of jax.local_devices(): "
            f"{jax.local_devices()}."
        )
    return local
