"""Pickles objects for another process, by cloudpickle with reducers for the objects of JAX.

Pickles refer to functions of this module by name, so both ends need the same version of the bridge.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jax2tf_bridge.colocated._jax_compat import (
    find_cached_function_name,
    import_cached_function,
    list_all_backends_devices,
    list_default_backend_devices,
)
from jax2tf_bridge.colocated._pickle_errors import find_importable_name, make_not_picklable_error
from jax2tf_bridge.errors import DeviceError, DTypeError, MissingDependencyError, NotPicklableError


def dumps(obj: Any) -> bytes:
    """Pickles an object for `loads` in another process.

    Identical objects are pickled once, as are equal meshes and equal shardings.

    Raises:
      NotPicklableError: the object cannot be sent. The message names the captured part that is the
        cause.
      MissingDependencyError: cloudpickle is not installed.
    """
    dump = _make_dump()
    file = io.BytesIO()
    try:
        dump(obj, file)
    except MemoryError:
        raise
    except Exception as e:
        raise make_not_picklable_error(obj, e, dump) from e
    return file.getvalue()


def loads(data: bytes | memoryview) -> Any:
    """Unpickles the bytes that `dumps` returned.

    Unpickling can run any code. Call this only for bytes that are known to come from the peer.

    Raises:
      DeviceError: the object contains devices that this process does not have.
      DTypeError: the object contains an array with a 64-bit dtype, which this process has not
        enabled.
      MissingDependencyError: cloudpickle is not installed.
    """
    _import_cloudpickle()
    try:
        return pickle.loads(data)
    except (ImportError, AttributeError) as e:
        e.add_note(
            "This was raised while a message from another process was read. Functions and classes "
            "of importable modules are sent by name: this process needs the same modules on its "
            "sys.path, in the same versions."
        )
        raise


def _make_dump() -> Callable[[Any, Any], None]:
    """Makes a function that pickles an object into a binary file."""
    cloudpickle = _import_cloudpickle()
    by_value = frozenset(cloudpickle.list_registry_pickle_by_value())

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc,name-defined]
        """Pickler of one message. Remembers objects, to replace later ones that are equal."""

        def __init__(self, file: Any) -> None:
            super().__init__(file)
            self.firsts: dict[tuple[type, Any], Any] = {}

        def reducer_override(self, obj: Any) -> Any:
            if type(obj) in DEDUPLICATED_TYPES:
                first = self.firsts.setdefault((type(obj), obj), obj)
                if first is not obj:
                    # The pickle contains the first object already, so pickle writes a reference.
                    return return_first, (first,)
            reduced = reduce_jax(obj, by_value)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    def dump(obj: Any, file: Any) -> None:
        Pickler(file).dump(obj)

    return dump


def _import_cloudpickle() -> ModuleType:
    try:
        import cloudpickle
    except ModuleNotFoundError as e:
        if e.name != "cloudpickle":
            raise
        raise MissingDependencyError(
            "cloudpickle", "parallel", "Sending objects to another process"
        ) from e
    module: ModuleType = cloudpickle
    return module


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
        make = functools.partial(NamedSharding, memory_kind=obj.memory_kind)
        return make, (obj.mesh, obj.spec)
    if kind is SingleDeviceSharding:
        (device,) = obj.device_set
        return _rebuild_single_device_sharding, (device.id, obj.memory_kind)
    if isinstance(obj, jax.Device):
        return _rebuild_device, (obj.id,)
    name = find_cached_function_name(obj)
    if name is not None:
        return import_cached_function, name
    if isinstance(obj, _Cached):
        if _find_name_by_reference(obj, by_value) is not None:
            return NotImplemented
        # cloudpickle would send only the name, which other processes cannot import from __main__.
        return _rebuild_cached, (obj.__wrapped__, obj.cache_parameters())
    if not isinstance(obj, type) and kind.__module__.startswith(("jax.", "jaxlib.")):
        # Results of jit, custom_jvp and similar are sent by name if they can be imported.
        importable_name = _find_name_by_reference(obj, by_value)
        if importable_name is not None:
            return importable_name
    if kind is jax.custom_vjp:
        # Its own __reduce__ fails in JAX 0.10, since its constructor requires a function.
        return jax.custom_vjp, (obj.fun,), vars(obj)
    return NotImplemented


def _reduce_array(obj: jax.Array) -> Reduced:
    if jax.dtypes.issubdtype(obj.dtype, jax.dtypes.prng_key):
        impl = jax.random.key_impl(obj)
        if not isinstance(impl, str):
            raise NotPicklableError(
                f"Keys of {impl} cannot be sent to another process, because the implementation has "
                "no registered name. Send jax.random.key_data(keys), and wrap it there."
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


def _find_name_by_reference(obj: Any, by_value: Container[str]) -> str | None:
    """Returns `find_importable_name`, or None in modules that are pickled by value."""
    name = find_importable_name(obj)
    if name is None:
        return None
    packages = itertools.accumulate(obj.__module__.split("."), "{}.{}".format)
    return None if any(package in by_value for package in packages) else name


def _rebuild_cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _rebuild_mesh(ids: Sequence[int], shape: Sequence[int], names: Any, types: Any) -> Mesh:
    devices = np.empty(shape, dtype=object)
    if ids:
        devices.reshape(-1)[:] = get_cpu_devices(ids)
    return Mesh(devices, names, axis_types=types)


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
        verb = "is" if len(missing) == 1 else "are"
        raise DeviceError(
            f"There {verb} no CPU {_format_devices(missing)} in this process, which "
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
                f"{device!r}, so a device that was sent by its id is ambiguous. List only one "
                "platform with CPU devices in JAX_PLATFORMS."
            )
    return device_by_id


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
