"""Pickles objects of JAX for another process, and rebuilds them there.

Pickles refer to functions of this module by name, so both ends need the same version of the bridge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jax2tf_bridge.colocated._jax_compat import (
    cached_function,
    cached_function_name,
    list_all_backends_devices,
    list_default_backend_devices,
)
from jax2tf_bridge.colocated._pickle_errors import find_importable_name
from jax2tf_bridge.errors import DeviceError, DTypeError, NotPicklableError

# A result of __reduce__: a function with its arguments and optionally a state, or a name. It may
# also be NotImplemented, for the default.
Reduced: TypeAlias = Any

# Type of the results of functools.cache and lru_cache, which has no public name.
_Cached = type(functools.lru_cache(len))

# Types that are immutable and hashable, so that equal objects need to be sent only once.
DEDUPLICATED_TYPES = (Mesh, NamedSharding, SingleDeviceSharding)


def return_first(obj: Any) -> Any:
    """Returns `obj`. Pickles call it to rebuild an object that equals an earlier one."""
    return obj


def reduce_jax(obj: Any, by_value: Container[str] = ()) -> Reduced:
    """Reduces objects that JAX or cloudpickle would pickle wrongly; NotImplemented for others.

    `by_value` has the modules that cloudpickle is configured to pickle by value.
    """
    kind = type(obj)
    if isinstance(obj, jax.core.Tracer):
        raise TypeError("it is traced: it has no value until the transformation around it is done")
    if isinstance(obj, jax.Array):
        return _reduce_array(obj)
    if kind is Mesh:
        # An empty mesh contains None instead of devices.
        ids = tuple(device.id for device in obj.devices.flat if device is not None)
        return _rebuild_mesh, (ids, obj.devices.shape, obj.axis_names, obj.axis_types)
    if kind is NamedSharding:
        return _rebuild_named_sharding, (obj.mesh, obj.spec, obj.memory_kind)
    if kind is SingleDeviceSharding:
        (device,) = obj.device_set
        return _rebuild_single_device_sharding, (device.id, obj.memory_kind)
    if isinstance(obj, jax.Device):
        return _rebuild_device, (obj.id,)
    name = cached_function_name(obj)
    if name is not None:
        return cached_function, name
    if isinstance(obj, _Cached):
        if _find_name_by_reference(obj, by_value) is not None:
            return NotImplemented
        # cloudpickle would send only the name, which other processes cannot import from __main__.
        return _rebuild_cached, (obj.__wrapped__, obj.cache_parameters())
    reduced = _reduce_by_name(obj, by_value)
    if reduced is NotImplemented and kind is jax.custom_vjp:
        # Its own __reduce__ fails in JAX 0.10, since its constructor requires a function.
        return jax.custom_vjp, (obj.fun,), vars(obj)
    return reduced


def _reduce_array(obj: jax.Array) -> Reduced:
    if jax.dtypes.issubdtype(obj.dtype, jax.dtypes.prng_key):
        impl = jax.random.key_impl(obj)
        if not isinstance(impl, str):
            raise NotPicklableError(
                f"Keys of {impl} cannot be sent to another process, which does not know this "
                "implementation by a name. Send jax.random.key_data(keys), and wrap it there."
            )
        sharding = obj.sharding if obj.committed else None
        return _rebuild_keys, (impl, np.asarray(jax.random.key_data(obj)), sharding)
    if obj.dtype.kind == "T":
        raise NotPicklableError(
            "Arrays of text cannot be sent, since JAX does not rebuild them. Send the text as a "
            "str or a numpy array; specs are read by deserialize_specs."
        )
    # JAX's own __reduce__ keeps everything but the devices.
    reduced: Any = obj.__reduce__()
    return _rebuild_array, (*reduced, obj.dtype, obj.sharding if obj.committed else None)


def _reduce_by_name(obj: Any, by_value: Container[str]) -> Reduced:
    """Reduces results of jit, custom_jvp and similar to their names, if they can be imported."""
    if isinstance(obj, type) or not type(obj).__module__.startswith(("jax.", "jaxlib.")):
        return NotImplemented
    name = _find_name_by_reference(obj, by_value)
    return NotImplemented if name is None else name


def _find_name_by_reference(obj: Any, by_value: Container[str]) -> str | None:
    """Returns `find_importable_name`, or None in modules that are pickled by value."""
    name = find_importable_name(obj)
    if name is None:
        return None
    parts = obj.__module__.split(".")
    packages = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return None if any(package in by_value for package in packages) else name


def _rebuild_cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _rebuild_mesh(ids: Sequence[int], shape: Sequence[int], names: Any, types: Any) -> Mesh:
    devices = np.empty(shape, dtype=object)
    if ids:
        devices.reshape(-1)[:] = get_cpu_devices(ids)
    return Mesh(devices, names, axis_types=types)


def _rebuild_named_sharding(mesh: Any, spec: Any, memory_kind: str | None) -> NamedSharding:
    return NamedSharding(mesh, spec, memory_kind=memory_kind)


def _rebuild_single_device_sharding(device: int, memory_kind: str | None) -> SingleDeviceSharding:
    return SingleDeviceSharding(_rebuild_device(device), memory_kind=memory_kind)


def _rebuild_device(number: int) -> jax.Device:
    return get_cpu_devices([number])[0]


def _rebuild_keys(impl: str, words: Any, sharding: jax.sharding.Sharding | None) -> jax.Array:
    return _put_on(jax.random.wrap_key_data(words, impl=impl), sharding)


def _rebuild_array(
    make: Callable[..., jax.Array],
    values: Any,
    dtype: Any,
    sharding: jax.sharding.Sharding | None,
) -> jax.Array:
    array = make(*values)
    if array.dtype != dtype:
        raise DTypeError(
            f"An array of {dtype} came from another process and would be {array.dtype} here. Set "
            "JAX_ENABLE_X64 to the same value in both processes."
        )
    return _put_on(array, sharding)


def _put_on(array: jax.Array, sharding: jax.sharding.Sharding | None) -> jax.Array:
    return array if sharding is None else jax.device_put(array, sharding)


def get_cpu_devices(ids: Sequence[int]) -> list[jax.Device]:
    """Returns the CPU devices with these ids, in the same order.

    Searches the default backend first, and all other backends only if it has no CPU devices.

    Raises:
      DeviceError: an id belongs to no device or to two, or this process has no CPU devices.
    """
    devices = _index_by_id(list_default_backend_devices()) or _index_by_id(
        list_all_backends_devices()
    )
    if not devices:
        raise DeviceError(
            "This process has no CPU device to rebuild arrays and shardings of another process on. "
            'Add cpu to JAX_PLATFORMS, as "cuda,cpu".'
        )
    missing = sorted(set(ids) - set(devices))
    if missing:
        raise DeviceError(
            f"There {_is_or_are(missing)} no CPU {_format_devices(missing)} in this process, which "
            f"has {_format_devices(devices)}. Start it with as many devices as the sender has, for "
            "instance with "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={max(missing) + 1}, or send "
            "meshes and shardings over fewer devices."
        )
    return [devices[i] for i in ids]


def _index_by_id(devices: Iterable[jax.Device]) -> dict[int, jax.Device]:
    device_by_id: dict[int, jax.Device] = {}
    for device in devices:
        if device.device_kind != "cpu":
            continue
        first = device_by_id.setdefault(device.id, device)
        if first is not device:
            raise DeviceError(
                f"Two CPU devices of this process have the id {device.id}: {first!r} and "
                f"{device!r}, so a device that was sent by its id is ambiguous. Name only one of "
                "the platforms that bring CPU devices in JAX_PLATFORMS."
            )
    return device_by_id


def _is_or_are(ids: Sequence[int]) -> str:
    return "is" if len(ids) == 1 else "are"


def _format_devices(ids: Iterable[int]) -> str:
    """Formats ids as "device 3" or "devices 0 to 3, 7"."""
    numbers = sorted(ids)
    spans: list[list[int]] = []
    for i in numbers:
        if spans and spans[-1][1] == i - 1:
            spans[-1][1] = i
        else:
            spans.append([i, i])
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in spans]
    return f"{'device' if len(numbers) == 1 else 'devices'} {', '.join(texts)}"
