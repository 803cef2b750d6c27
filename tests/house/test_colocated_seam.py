"""Sending functions and devices does without each private name of JAX that it uses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend import backend

# Private: a seam is what is tested.
from jax2tf_bridge.colocated import Channel, _jax_compat
from jax2tf_bridge.colocated._jax_compat import SEAM
from jax2tf_bridge.errors import NotPicklableError
from tests.house.seams import take_away


def there_and_back(obj: Any) -> Any:
    parent = Channel.with_new_token()
    return Channel(parent.token, end="worker").unpack(parent.pack(obj))


def _cache(without: Callable[[], None]) -> None:
    function = jax.checkpoint(lambda x: jnp.sin(x) ** 2)
    assert jax.grad(there_and_back(function))(1.0) == jax.grad(function)(1.0)
    without()
    with pytest.raises(NotPicklableError, match="WeakrefLRUCache"):
        there_and_back(function)
    assert there_and_back(jax.jit(lambda x: x * 2))(3.0) == 6.0


BEHAVIOURS: dict[str, Callable[[Callable[[], None]], None]] = {
    "WeakrefLRUCache": _cache,
}


@pytest.mark.parametrize("name", [entry.name for entry in SEAM])
def test_without_the_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """First with the name, then without it: a test that sees no difference would prove nothing."""
    BEHAVIOURS[name](lambda: take_away(monkeypatch, SEAM, name))


class Backend:
    """A backend with devices of two kinds, such as no machine here has."""

    def devices(self) -> list[str]:
        return ["tpu"]

    def _get_all_devices(self) -> list[str]:
        return ["tpu", "cpu"]


def test_devices_of_other_kinds_without_the_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "backends", lambda: {"tpu": Backend()})
    assert _jax_compat.list_all_backends_devices() == ["tpu", "cpu"]
    own = _jax_compat.list_default_backend_devices()
    assert jax.devices()[0] in own
    monkeypatch.setattr(_jax_compat, "_ALL_DEVICES", "no_such_attribute")
    assert _jax_compat.list_all_backends_devices() == ["tpu"]
    assert _jax_compat.list_default_backend_devices() == jax.devices()


def test_only_functions_that_jax_keeps_in_a_module_have_a_name() -> None:
    assert _jax_compat.find_cached_function_name(len) is None
    assert _jax_compat.find_cached_function_name(jnp.sin) is None
