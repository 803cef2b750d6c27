"""Finds CPU devices of this process by their ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax

from jax2tf_bridge.colocated._jax_compat import (
    all_backends_devices,
    default_backend_devices,
)
from jax2tf_bridge.errors import DeviceError


def cpu_devices(ids: Sequence[int]) -> list[jax.Device]:
    """Returns the CPU devices with these ids, in their order.

    They are looked for in the default backend, and only if it has none in all backends.

    Raises:
      DeviceError: there is none with such an id, or are two, or there is no CPU device at all.
    """
    found = _by_id(default_backend_devices()) or _by_id(all_backends_devices())
    if not found:
        raise DeviceError(
            "This process has no CPU device to rebuild arrays and shardings of another process on. "
            'Add cpu to JAX_PLATFORMS, as "cuda,cpu".'
        )
    missing = sorted(set(ids) - set(found))
    if missing:
        raise DeviceError(
            f"There {_is(missing)} no CPU {_devices(missing)} in this process, which has "
            f"{_devices(found)}. Start it with as many devices as the sender has, for instance "
            f"with XLA_FLAGS=--xla_force_host_platform_device_count={max(missing) + 1}, or send "
            "meshes and shardings over fewer devices."
        )
    return [found[i] for i in ids]


def _by_id(devices: Iterable[jax.Device]) -> dict[int, jax.Device]:
    found: dict[int, jax.Device] = {}
    for device in devices:
        if device.device_kind != "cpu":
            continue
        other = found.setdefault(device.id, device)
        if other is not device:
            raise DeviceError(
                f"Two CPU devices of this process have the id {device.id}: {other!r} and "
                f"{device!r}, so a device that was sent by its id is ambiguous. Name only one of "
                "the platforms that bring CPU devices in JAX_PLATFORMS."
            )
    return found


def _is(ids: Sequence[int]) -> str:
    return "is" if len(ids) == 1 else "are"


def _devices(ids: Iterable[int]) -> str:
    """Writes ids as "device 3" or "devices 0 to 3, 7"."""
    numbers = sorted(ids)
    spans: list[list[int]] = []
    for i in numbers:
        if spans and spans[-1][1] == i - 1:
            spans[-1][1] = i
        else:
            spans.append([i, i])
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in spans]
    return f"{'device' if len(numbers) == 1 else 'devices'} {', '.join(texts)}"
