"""Writes shapes, dtypes and shardings as an array of text, which goes wherever arrays go."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

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
      specs: a pytree of jax.ShapeDtypeStruct, with shardings or without.
      devices: where the array is to be; of these, on the ones of this process.
      channel: its other end can read the array, once.

    Returns:
      A scalar of numpy's StringDType, replicated over the devices: the message, signed, as base64.

    Raises:
      DTypeError: NumPy is older than 2.0, which has no StringDType.
      DeviceError: none of the devices belongs to this process.
      SerializationError: a leaf is something else.
      NotPicklableError: the structure or a sharding cannot be sent.
    """
    string = _string_dtype()
    for path, leaf in jax.tree_util.tree_leaves_with_path(specs):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            place = jax.tree_util.keystr(path)
            raise SerializationError(
                f"specs{place} must be a jax.ShapeDtypeStruct. Got: a {type(leaf).__qualname__}. "
                "Make specs by jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), or "
                "send the values by Channel.pack."
            )
    own = _addressable(devices)
    text = np.array(base64.b64encode(channel.pack_specs(specs)).decode("ascii"), string)
    # One by one: text that JAX replicates in one device_put cannot be read back.
    copies = [jax.device_put(text, device) for device in own]
    sharding = NamedSharding(Mesh(np.array(own), ("devices",)), PartitionSpec())
    return jax.make_array_from_single_device_arrays((), sharding, copies)


def deserialize_specs(array: jax.Array, channel: Channel) -> Any:
    """Reads the pytree of jax.ShapeDtypeStruct that the channel's other end made the array from.

    Raises:
      UntrustedMessageError: it is another array, or was read before; nothing was unpickled.
      DeviceError: a sharding names devices that this process does not have.
      DTypeError: NumPy is older than 2.0, which has no StringDType.
    """
    string = _string_dtype()
    dtype, shape = getattr(array, "dtype", None), getattr(array, "shape", None)
    if not isinstance(array, jax.Array) or not isinstance(dtype, type(string)) or shape != ():
        got = f"an array of {dtype}{list(shape)}" if shape is not None else type(array).__qualname__
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


def _string_dtype() -> np.dtype[Any]:
    kind = getattr(np.dtypes, "StringDType", None)
    if kind is None:
        raise DTypeError(
            f"Specs as arrays need numpy's StringDType, which came with NumPy 2.0; NumPy "
            f"{np.__version__} is installed. Upgrade it, or send the specs with Channel.pack."
        )
    dtype: np.dtype[Any] = kind()
    return dtype


def _addressable(devices: Mesh | Sharding | Iterable[jax.Device]) -> list[jax.Device]:
    """Selects the devices of this process, in their order, each once."""
    if isinstance(devices, Mesh):
        # The empty mesh has None for a device.
        every: Iterable[jax.Device] = [d for d in devices.devices.flat if d is not None]
    elif isinstance(devices, Sharding):
        every = sorted(devices.device_set, key=lambda device: device.id)
    else:
        every = devices
    process = jax.process_index()
    found = [d for d in dict.fromkeys(every) if d.process_index == process]
    if not found:
        raise DeviceError(
            "None of the given devices belongs to this process. Pass some of jax.local_devices(): "
            f"{jax.local_devices()}."
        )
    return found
