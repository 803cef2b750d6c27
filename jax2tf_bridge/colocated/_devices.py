"""Finds CPU devices of this process by id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax

from jax2tf_bridge.colocated._jax_compat import (
    all_backends_devices,
    default_backend_devices,
)
from jax2tf_bridge.errors import DeviceError


def cpu_devices(ids: Sequence[int]) -> list[jax.Device]:
    """Returns the CPU devices with these ids, in the same order.

    Searches the default backend first, and all other backends only if it has no CPU devices.

    Raises:
      DeviceError: an id belongs to no device or to two, or this process has no CPU devices.
    """
    devices = _index_by_id(default_backend_devices()) or _index_by_id(all_backends_devices())
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
