"""CPU devices are found by their ids: in the default backend first, then in all."""

from dataclasses import dataclass

import jax
import pytest

# No machine of the tests has several backends, so their devices are replaced.
from jax2tf_bridge.colocated import _pickling
from jax2tf_bridge.colocated._pickling import get_cpu_devices
from jax2tf_bridge.errors import DeviceError


@dataclass(frozen=True)
class Device:
    """Stand-in for a device, since no machine here has several backends."""

    id: int
    device_kind: str = "cpu"
    backend: str = "default"


def have(
    monkeypatch: pytest.MonkeyPatch, default: list[Device], others: list[Device] | None = None
) -> None:
    monkeypatch.setattr(_pickling, "list_default_backend_devices", lambda: default)
    monkeypatch.setattr(_pickling, "list_all_backends_devices", lambda: default + (others or []))


def test_this_process() -> None:
    first = jax.devices("cpu")[0]
    assert get_cpu_devices([first.id]) == [first]
    assert get_cpu_devices([]) == []


def test_the_default_backend_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, [Device(0), Device(1)], [Device(0, backend="other")])
    assert get_cpu_devices([1, 0, 1]) == [Device(1), Device(0), Device(1)]


def test_then_all_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [Device(0, backend="cpu"), Device(0, "H100", "tpu"), Device(1, backend="cpu")]
    have(monkeypatch, [Device(0, "H100"), Device(1, "H100")], others)
    assert get_cpu_devices([1, 0]) == [others[2], others[0]]


def test_devices_of_several_kinds_in_one_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, [Device(0, "TPU v5"), Device(0)])
    assert get_cpu_devices([0]) == [Device(0)]


def test_ids_that_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, [Device(i) for i in (0, 1, 2, 5)])
    with pytest.raises(DeviceError) as caught:
        get_cpu_devices([0, 7, 3])
    assert str(caught.value) == (
        "There are no CPU devices 3, 7 in this process, which has devices 0 to 2, 5. Start it with "
        "as many devices as the sender has, for instance with "
        "XLA_FLAGS=--xla_force_host_platform_device_count=8, or send meshes and shardings over "
        "fewer devices."
    )
    with pytest.raises(DeviceError, match="There is no CPU device 4 in this process"):
        get_cpu_devices([4])


def test_two_devices_with_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, [Device(0, "gpu")], [Device(0, backend="a"), Device(0, backend="b")])
    with pytest.raises(
        DeviceError, match="Two CPU devices of this process have the id 0"
    ) as caught:
        get_cpu_devices([0])
    assert "backend='a'" in str(caught.value)
    assert "backend='b'" in str(caught.value)


def test_no_cpu_device_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, [Device(0, "gpu")])
    with pytest.raises(DeviceError, match=r"no CPU device.*JAX_PLATFORMS"):
        get_cpu_devices([0])
