"""Shardings of a portable function's values, and of its VJP's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

import jax2tf_bridge as bridge
from jax2tf_bridge import PortableFunction
from jax2tf_bridge.errors import ShardingError
from jax2tf_bridge.portable import Sharding
from jax2tf_bridge.serialization.jax_exported import REPLICATED, to_op_sharding
from tests.sharding.meshes import X, by_parts, mesh, over, product, spread_product


def words(shardings: tuple[Sharding | None, ...]) -> list[bytes | None]:
    """In XLA's words, which all releases of JAX share."""
    return [None if s is None else to_op_sharding(s, 2) for s in shardings]


def exported(function: Any, *args: Any) -> PortableFunction:
    return bridge.export(function, platforms=["cpu"])(*args)


def test_a_function_says_how_arguments_and_results_are_spread() -> None:
    portable = exported(spread_product(), X, X)
    assert portable.module.nr_devices == 8
    ins, outs = words(portable.in_shardings), words(portable.out_shardings)
    assert None not in (*ins, *outs)
    assert len({*ins, *outs}) == 3


def test_on_every_device_as_a_whole_is_not_the_same_as_not_said() -> None:
    function = jax.jit(product, in_shardings=(over("x"), None), out_shardings=over())
    portable = exported(function, X, X)
    assert [s is None for s in portable.in_shardings] == [False, True]
    assert words(portable.out_shardings) == [REPLICATED]
    again = bridge.deserialize(bridge.serialize(portable))
    assert again.in_shardings == portable.in_shardings
    assert again.out_shardings == portable.out_shardings


def test_a_vjp_is_spread_as_its_function() -> None:
    portable = exported(spread_product(), X, X)
    vjp = portable.vjp()
    assert vjp.module.nr_devices == 8
    given = words((*portable.in_shardings, *portable.out_shardings))
    assert words(vjp.in_shardings) == given
    assert words(vjp.out_shardings) == words(portable.in_shardings)
    second = vjp.vjp()
    assert words(second.out_shardings) == given


def test_values_without_a_sharding_have_none_in_the_vjp() -> None:
    function = jax.jit(product, in_shardings=(over("x"), None))
    portable = exported(function, X, X)
    vjp = portable.vjp()
    rows = words(portable.in_shardings)[0]
    assert words(vjp.in_shardings) == [rows, None, None]
    assert words(vjp.out_shardings) == [rows, None]


def test_an_argument_that_the_module_dropped_has_no_sharding_in_the_vjp() -> None:
    function = jax.jit(lambda a, unused, w: a * w, in_shardings=(over("x"), over("y"), None))
    portable = exported(function, X, X, X)
    assert portable.module.kept_arguments == (0, 2)
    rows = words(portable.in_shardings)[0]
    assert words(portable.vjp().out_shardings) == [rows, None, None]


def test_four_bit_arguments_keep_the_shardings_of_all() -> None:
    function = jax.jit(
        lambda a, i: a * i.astype(a.dtype),
        in_shardings=(over("x"), over("x")),
        out_shardings=over("x"),
    )
    portable = exported(function, X, jax.ShapeDtypeStruct((8, 8), "int4"))
    rows = words(exported(jax.jit(jnp.sin, in_shardings=over("x")), X).in_shardings)
    assert words((*portable.in_shardings, *portable.out_shardings)) == rows * 3


@pytest.mark.skipif(
    jax.__version_info__ < (0, 10), reason="JAX cannot export for a mesh of this kind"
)
def test_sums_that_are_still_to_be_done_are_kept() -> None:
    explicit = AbstractMesh((8,), ("x",), axis_types=(AxisType.Explicit,))

    unreduced = NamedSharding(explicit, PartitionSpec(None, None, unreduced={"x"}))

    def partial(a: Any, b: Any) -> Any:
        return jnp.einsum("ij,jk->ik", a, b, out_sharding=unreduced)

    def spec(*axes: Any) -> Any:
        sharding = NamedSharding(explicit, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct((8, 8), np.float32, sharding=sharding)

    with jax.sharding.use_abstract_mesh(explicit):
        portable = exported(
            jax.jit(partial, out_shardings=unreduced), spec(None, "x"), spec("x", None)
        )
    for again in (portable, bridge.deserialize(bridge.serialize(portable))):
        (sharding,) = again.out_shardings
        assert sharding is not None
        assert (sharding.partitions, sharding.unreduced) == (((), ()), ("x",))
        in_jax: Any = bridge.to_exported(again).out_shardings_jax(explicit)[0]
        assert in_jax.spec.unreduced == {"x"}


def test_open_sizes_may_be_spread_where_they_divide() -> None:
    portable = bridge.export(
        jax.jit(jnp.sin, in_shardings=over("x")), polymorphic_shapes="(2*b, 8)", platforms=["cpu"]
    )(X)
    assert words(portable.in_shardings) == words(
        exported(jax.jit(jnp.sin, in_shardings=over("x")), X).in_shardings
    )
    assert portable.vjp().module.nr_devices == 8


def test_the_spec_of_an_argument_counts_and_where_an_array_lies_does_not() -> None:
    spec = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=over("x"))
    portable = exported(jax.jit(jnp.sin), spec)
    assert portable.module.nr_devices == 8
    assert portable.in_shardings[0] is not None
    one = Mesh(np.array(jax.devices()[:1]), ("x",))
    array = jax.device_put(X, NamedSharding(one, PartitionSpec("x")))
    assert exported(jax.jit(jnp.sin), array).in_shardings == (None,)


def _of_an_argument(a: Any) -> Any:
    return jnp.sin(a)


def _of_an_inner_jit(a: Any) -> Any:
    return jax.jit(jnp.sin, in_shardings=over("x"))(a) + 1


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (_of_an_argument, jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=over("x"))),
        (_of_an_inner_jit, X),
    ],
)
def test_a_function_that_is_not_jitted_is_exported_as_if_it_were(
    function: Any, argument: Any
) -> None:
    portable = exported(function, argument)
    jitted = exported(jax.jit(function), argument)
    assert portable.module.nr_devices == jitted.module.nr_devices == 8
    assert portable.in_shardings == jitted.in_shardings
    assert portable.out_shardings == jitted.out_shardings


def test_what_jax_lowers_for_one_device_must_not_speak_of_several() -> None:
    constrained = jax.jit(lambda a: jax.lax.with_sharding_constraint(a * 2, over("x")))
    with pytest.raises(
        ShardingError, match=r"uses a mesh of several devices .* Give jax\.jit in_shard"
    ):
        exported(constrained, X)
    spec = PartitionSpec("x", "y")
    mapped = jax.shard_map(lambda a: a * 2, mesh=mesh(), in_specs=spec, out_specs=spec)
    with pytest.raises(ShardingError, match="uses a mesh of several devices"):
        exported(jax.jit(mapped), X)


def test_shard_map_is_exported_with_its_devices() -> None:
    portable = exported(by_parts(), X)
    assert portable.module.nr_devices == 8
    assert portable.vjp().module.nr_devices == 8


def _spread_sine() -> Any:
    sharding = NamedSharding(Mesh(jax.devices()[:1], ("x",)), PartitionSpec("x"))
    return jax.jit(jnp.sin, in_shardings=sharding, out_shardings=sharding)


@pytest.mark.parametrize("inner", [False, True])
def test_a_mesh_of_one_device_is_no_mesh(inner: bool) -> None:
    sine = _spread_sine()
    function = (lambda x: sine(x) * 1) if inner else sine
    np.testing.assert_allclose(bridge.convert(function)(X), np.sin(X), rtol=1e-5)
    portable = bridge.export(function)(X)
    assert b"sdy" not in portable.module.data
    assert portable.tensorflow_releases[0] == "2.15"
    (slope,) = bridge.to_tf(portable.vjp())(X, np.ones_like(X))
    np.testing.assert_allclose(slope, np.cos(X), rtol=1e-5)
