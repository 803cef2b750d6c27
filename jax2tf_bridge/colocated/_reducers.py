"""Pickles JAX's objects for another process, and rebuilds them there.

Messages name the functions of this module that rebuild: both ends have the same version.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jax2tf_bridge.colocated._devices import cpu_devices
from jax2tf_bridge.colocated._jax_compat import cached_function, cached_function_name
from jax2tf_bridge.colocated._pickle_children import importable_name
from jax2tf_bridge.errors import DTypeError, NotPicklableError

# As __reduce__ returns it: a function, its arguments and maybe a state; a name; NotImplemented.
Reduced: TypeAlias = Any

# Type of what functools.cache and lru_cache return; it has no public name.
_Cached = type(functools.lru_cache(len))

# Types that are immutable and hashable: equal objects are sent once.
MERGED = (Mesh, NamedSharding, SingleDeviceSharding)


def same(obj: Any) -> Any:
    """Returns `obj`: rebuilds an object that equals an earlier one of the message."""
    return obj


def reduce_jax(obj: Any, by_value: Container[str] = ()) -> Reduced:
    """Says how to pickle an object of JAX that JAX or cloudpickle would not pickle right.

    `by_value`: modules that cloudpickle was told to pickle by value.
    """
    kind = type(obj)
    if isinstance(obj, jax.core.Tracer):
        raise TypeError("it is traced: it has no value until the transformation around it is done")
    if isinstance(obj, jax.Array):
        return _reduce_array(obj)
    if kind is Mesh:
        # The empty mesh has None for a device.
        ids = tuple(device.id for device in obj.devices.flat if device is not None)
        return _mesh, (ids, obj.devices.shape, obj.axis_names, obj.axis_types)
    if kind is NamedSharding:
        return _named_sharding, (obj.mesh, obj.spec, obj.memory_kind)
    if kind is SingleDeviceSharding:
        (device,) = obj.device_set
        return _single_device_sharding, (device.id, obj.memory_kind)
    if isinstance(obj, jax.Device):
        return _device, (obj.id,)
    name = cached_function_name(obj)
    if name is not None:
        return cached_function, name
    if isinstance(obj, _Cached):
        if _own_name(obj, by_value) is not None:
            return NotImplemented
        # cloudpickle would send only the name, which in __main__ is unknown elsewhere.
        return _cached, (obj.__wrapped__, obj.cache_parameters())
    reduced = _reduce_by_name(obj, by_value)
    if reduced is NotImplemented and kind is jax.custom_vjp:
        # Its own way fails in JAX 0.10, where it cannot be made without a function.
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
        return _keys, (impl, np.asarray(jax.random.key_data(obj)), sharding)
    if obj.dtype.kind == "T":
        raise NotPicklableError(
            "Arrays of text cannot be sent, since JAX does not rebuild them. Send the text as a "
            "str or a numpy array; specs are read by deserialize_specs."
        )
    # JAX's own way, which keeps all but the devices.
    reduced: Any = obj.__reduce__()
    return _array, (*reduced, obj.dtype, obj.sharding if obj.committed else None)


def _reduce_by_name(obj: Any, by_value: Container[str]) -> Reduced:
    """Sends the results of jit, custom_jvp and the like at the top of a module by their names."""
    if isinstance(obj, type) or not type(obj).__module__.startswith(("jax.", "jaxlib.")):
        return NotImplemented
    name = _own_name(obj, by_value)
    return NotImplemented if name is None else name


def _own_name(obj: Any, by_value: Container[str]) -> str | None:
    """Returns `importable_name`; None also within modules that are pickled by value."""
    name = importable_name(obj)
    if name is None:
        return None
    parts = obj.__module__.split(".")
    packages = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return None if any(package in by_value for package in packages) else name


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _mesh(ids: Sequence[int], shape: Sequence[int], names: Any, types: Any) -> Mesh:
    devices = np.empty(shape, dtype=object)
    if ids:
        devices.reshape(-1)[:] = cpu_devices(ids)
    return Mesh(devices, names, axis_types=types)


def _named_sharding(mesh: Any, spec: Any, memory_kind: str | None) -> NamedSharding:
    return NamedSharding(mesh, spec, memory_kind=memory_kind)


def _single_device_sharding(device: int, memory_kind: str | None) -> SingleDeviceSharding:
    return SingleDeviceSharding(_device(device), memory_kind=memory_kind)


def _device(number: int) -> jax.Device:
    return cpu_devices([number])[0]


def _keys(impl: str, words: Any, sharding: jax.sharding.Sharding | None) -> jax.Array:
    return _placed(jax.random.wrap_key_data(words, impl=impl), sharding)


def _array(
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
    return _placed(array, sharding)


def _placed(array: jax.Array, sharding: jax.sharding.Sharding | None) -> jax.Array:
    return array if sharding is None else jax.device_put(array, sharding)
