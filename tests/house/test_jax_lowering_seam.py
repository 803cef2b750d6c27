"""Lowering rules do without each private name of JAX that they use."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax2tf_bridge import BridgeError, PortableFunction, export
from jax2tf_bridge.errors import PlatformError, UnsupportedByTargetError

# Private: a seam is what is tested.
from jax2tf_bridge.from_jax import _jax_compat_lowering
from jax2tf_bridge.from_jax._jax_compat_lowering import SEAM
from jax2tf_bridge.from_jax.lowering import make_lowering_overrides
from tests.from_jax.lowered import custom_calls, export_function
from tests.house.seams import take_away
from tests.house.test_jax_modules_seam import NAMES as MODULE_NAMES

MATRIX = np.diag(np.arange(1, 4, dtype=np.float32))
NO_RULES = [
    "_platforms_for_eqn",
    "lower_per_platform",
    "_lowerings",
    "_platform_specific_lowerings",
]


@pytest.fixture(autouse=True)
def _rules_are_made_anew() -> Iterator[None]:
    make_lowering_overrides.cache_clear()
    yield
    make_lowering_overrides.cache_clear()


def exported(f: Callable[..., Any], x: Any = MATRIX, **options: Any) -> PortableFunction:
    return export(f, platforms=["cpu"], **options)(x)


def refused(f: Callable[..., Any]) -> None:
    """Fails unless the function calls LAPACK, which the target has not."""
    make_lowering_overrides.cache_clear()
    with pytest.raises(UnsupportedByTargetError, match="no handler for the custom call 'lapack_"):
        exported(f)


def no_rules(without: Callable[[], None]) -> None:
    exported(jnp.linalg.inv)
    without()
    refused(jnp.linalg.inv)
    # Functions that need no rule of ours are as before.
    assert str(exported(lambda x: jnp.tanh(x) @ x).out_avals[0]) == "float32[3,3]"
    open_sizes = exported(lambda x: x[:, 1:], polymorphic_shapes="b, _")
    assert str(open_sizes.out_avals[0]) == "float32[b,2]"


def no_qr(without: Callable[[], None]) -> None:
    exported(jnp.linalg.qr)
    without()
    refused(jnp.linalg.qr)
    exported(jnp.linalg.inv)


def no_pivoted_qr(without: Callable[[], None]) -> None:
    def pivoted(x: Any) -> Any:
        return jax.scipy.linalg.qr(x, pivoting=True)

    exported(pivoted)
    without()
    refused(pivoted)
    exported(jnp.linalg.qr)


def no_ragged_dot(without: Callable[[], None]) -> None:
    def batched(x: jax.Array) -> jax.Array:
        weights = jnp.ones((x.shape[0], 1, 3, 2), x.dtype)
        sizes = jnp.full((x.shape[0], 1), 3, jnp.int32)
        return jax.vmap(jax.lax.ragged_dot)(x, weights, sizes)

    def of_open_batch() -> None:
        make_lowering_overrides.cache_clear()
        x = np.ones((2, 3, 3), np.float32)
        export(batched, platforms=["cpu", "cuda"], polymorphic_shapes="(b, 3, 3)")(x)

    of_open_batch()
    without()
    with pytest.raises(BridgeError):
        of_open_batch()
    exported(jnp.linalg.qr)


def no_reduce_scatter(without: Callable[[], None]) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    spec = jax.sharding.PartitionSpec()

    def scattered(x: jax.Array) -> Any:
        def part(x: jax.Array) -> Any:
            return jax.lax.psum_scatter(x, "i", scatter_dimension=1)

        return jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)

    def of_open_batch() -> None:
        make_lowering_overrides.cache_clear()
        exported(scattered, np.ones((2, 1, 3), np.float32), polymorphic_shapes="(b, 1, 3)")

    of_open_batch()
    without()
    with pytest.raises(BridgeError):
        of_open_batch()
    exported(jnp.linalg.qr)


def no_composite(without: Callable[[], None]) -> None:
    double = jax.lax.composite(lambda x: x * 2, "tests.double")

    def for_every_platform() -> str:
        make_lowering_overrides.cache_clear()
        try:
            return str(export(double)(MATRIX).out_avals[0])
        except BridgeError as e:
            return type(e).__name__

    assert for_every_platform() == "float32[3,3]"
    without()
    by_jax = "float32[3,3]" if jax.__version_info__ >= (0, 12) else "PlatformError"
    assert for_every_platform() == by_jax
    exported(jnp.linalg.qr)


def no_eigh(without: Callable[[], None]) -> None:
    def calls() -> set[str]:
        make_lowering_overrides.cache_clear()
        return custom_calls(export_function(jnp.linalg.eigh, MATRIX))

    assert calls() == {"Eigh"}
    without()
    assert calls() == set()


def written_constants(without: Callable[[], None]) -> None:
    array = np.arange(4096, dtype=np.float32)

    def asked() -> bool:
        found: list[Any] = []
        with _jax_compat_lowering.take_constants(found.append):
            jax.jit(lambda x: x + array).lower(array)
        return any(np.shape(value) == array.shape for value in found)

    assert asked()
    without()
    assert not asked()


def no_pure_callback(without: Callable[[], None]) -> None:
    hidden_callback_is_refused(without, jax.pure_callback)


def no_io_callback(without: Callable[[], None]) -> None:
    hidden_callback_is_refused(without, jax.experimental.io_callback)


def hidden_callback_is_refused(without: Callable[[], None], call: Callable[..., Any]) -> None:
    hidden = Primitive("tests_hidden_callback")
    hidden.def_abstract_eval(lambda x: x)
    rule = mlir.lower_fun(lambda x: call(np.sin, x, x), multiple_results=False)
    mlir.register_lowering(hidden, rule)

    def error() -> str:
        with pytest.raises(BridgeError) as caught:
            exported(hidden.bind)
        return str(caught.value)

    ours = f"calls back to Python by .*{call.__name__} within a primitive of a library"
    assert re.search(ours, error())
    without()
    assert not re.search(ours, error())


def obeyed_convention(without: Callable[[], None]) -> None:
    flag = "jax_export_calling_convention_version"
    before = getattr(jax.config, flag)
    jax.config.update(flag, 8)
    try:
        assert exported(jnp.sin).platforms == ("cpu",)
        without()
        with pytest.raises(PlatformError, match="calling convention version 8 is outside"):
            exported(jnp.sin)
    finally:
        jax.config.update(flag, before)


BEHAVIOURS: dict[str, Callable[[Callable[[], None]], None]] = {
    **dict.fromkeys(NO_RULES, no_rules),
    "geqrf_p": no_qr,
    "geqp3_p": no_pivoted_qr,
    "ragged_dot_general_p": no_ragged_dot,
    "composite_p": no_composite,
    "pure_callback_p": no_pure_callback,
    "io_callback_p": no_io_callback,
    "reduce_scatter_p": no_reduce_scatter,
    "custom_call": no_eigh,
    "eval_dynamic_shape_as_tensor": no_eigh,
    "_constant_handlers": written_constants,
    "jax_export_calling_convention_version": obeyed_convention,
}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_without_the_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """First with the name, then without it: a test that sees no difference would prove nothing."""
    BEHAVIOURS[name](lambda: take_away(monkeypatch, SEAM, name))


def test_every_name_has_a_test() -> None:
    assert {entry.name for entry in SEAM} == {*BEHAVIOURS, *MODULE_NAMES}
