"""Over a mesh of one device, shard_map and all collectives run in TensorFlow as in JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import jax2tf_bridge as bridge
from jax2tf_bridge.errors import ShardingError
from tests.fresh_process import run_python
from tests.sharding.meshes import X, by_parts, mesh

ONE = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("x", "y"))

CASES: dict[str, Callable[[Any], Any]] = {
    "no collective": lambda a: a * 2,
    "psum": lambda a: lax.psum(a, ("x", "y")),
    "psum of several": lambda a: sum(lax.psum((a, 2 * a), "x")),
    "pmean": lambda a: lax.pmean(a, "x"),
    "all_gather": lambda a: lax.all_gather(a, "x"),
    "all_gather tiled": lambda a: lax.all_gather(a, "x", axis=1, tiled=True),
    "ppermute": lambda a: lax.ppermute(a, "x", [(0, 0)]),
    "ppermute to nobody": lambda a: lax.ppermute(a, "x", []) + a,
    "all_to_all": lambda a: lax.all_to_all(a[None], "x", 0, 0),
    "all_to_all tiled": lambda a: lax.all_to_all(a, "x", 0, 1, tiled=True),
    "psum_scatter": lambda a: lax.psum_scatter(a, "x", tiled=True),
    "axis_index": lambda a: a * (1 + lax.axis_index(("x", "y"))),
    "axis_size": lambda a: a * lax.axis_size("x"),
}
WITHOUT_GRADIENT: dict[str, Callable[[Any], Any]] = {
    "pmax": lambda a: lax.pmax(a, "x"),
    "pmin": lambda a: lax.pmin(a, ("x", "y")),
}


def mapped(function: Callable[[Any], Any]) -> Any:
    spec = PartitionSpec("x", "y")
    return jax.jit(
        jax.shard_map(function, mesh=ONE, in_specs=spec, out_specs=PartitionSpec(), check_vma=False)
    )


@pytest.mark.parametrize("name", [*CASES, *WITHOUT_GRADIENT])
def test_values(name: str) -> None:
    function = mapped({**CASES, **WITHOUT_GRADIENT}[name])
    portable = bridge.export(function)(X)
    assert portable.module.nr_devices == 1
    assert portable.platforms == ("cpu", "cuda", "rocm", "tpu")
    assert portable.tensorflow_releases[0] == "2.15"
    found = tf.function(bridge.to_tf(portable, with_gradient=False))(X)
    np.testing.assert_allclose(found, function(X), rtol=1e-6)


@pytest.mark.parametrize("name", ["psum", "all_gather", "ppermute", "psum_scatter", "axis_index"])
def test_gradients(name: str) -> None:
    function = mapped(CASES[name])
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(bridge.convert(function)(x) ** 2)
    expected = jax.grad(lambda a: jnp.sum(function(a) ** 2))(X)
    np.testing.assert_allclose(tape.gradient(total, x), expected, rtol=1e-5)


def test_open_sizes() -> None:
    function = mapped(lambda a: lax.psum(lax.all_gather(a, "x", tiled=True), "y"))
    converted = bridge.convert(function, polymorphic_shapes="(b, 8)")
    np.testing.assert_allclose(converted(X[:3]), X[:3], rtol=1e-6)


def test_a_permutation_to_nobody_gives_zeros_of_every_kind() -> None:
    def nothing(a: Any) -> Any:
        kinds = (a, a > 1, a.astype(jnp.int32), a + 1j)
        return tuple(lax.ppermute(kind, "x", []) for kind in kinds)

    for zeros in bridge.to_tf(bridge.export(mapped(nothing))(X), with_gradient=False)(X):
        assert not np.any(zeros.numpy())


def test_a_function_of_jax_runs_too() -> None:
    function = mapped(lambda a: lax.all_gather(a, "x", tiled=True))
    theirs = jax.export.export(function, platforms=["cpu"])(X)
    portable = bridge.from_exported(theirs)
    np.testing.assert_allclose(bridge.to_tf(portable)(X), X, rtol=1e-6)


_PERTURBED = """
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from jax2tf_bridge import export

one = Mesh(np.array(jax.devices()[:1]), ("x",))
f = jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=one, in_specs=P("x"), out_specs=P())
print(export(f)(np.ones(4, np.float32)).module.nr_devices)
"""


@pytest.mark.slow
def test_operations_that_were_erased_are_left_alone() -> None:
    """With memory that is filled when it is freed, so that reading it shows."""
    assert run_python(_PERTURBED, env={"MALLOC_PERTURB_": "165"}) == "1"


def test_exports_for_one_device_that_speak_of_several_are_refused() -> None:
    spec = PartitionSpec("x", "y")
    parts = jax.shard_map(
        lambda a: lax.psum(a, "x"), mesh=mesh(), in_specs=spec, out_specs=PartitionSpec(None, "y")
    )
    exported = jax.export.export(jax.jit(parts), platforms=["cpu"])(X)
    if exported.nr_devices > 1:
        pytest.skip("this JAX exports it for the devices of the mesh")
    with pytest.raises(ShardingError, match=r"parts|<lambda>.* mesh of several devices"):
        bridge.from_exported(exported)


def test_jax_gets_computations_on_parts_as_its_own_operation() -> None:
    """XLA would end the process on custom calls, for several platforms or open sizes."""
    several: dict[str, Any] = {}
    for options in (several, {"platforms": ["cpu"], "polymorphic_shapes": "(8*b, 8)"}):
        portable = bridge.export(by_parts(), **options)(X)
        if b"xla.sdy.GlobalToLocalShape" not in portable.module.data:
            pytest.skip("this JAX writes computations by parts in another way")
        module = bridge.to_exported(portable).mlir_module()
        assert "sdy.manual_computation" in module
        assert "GlobalToLocalShape" not in module
        assert "LocalToGlobalShape" not in module
