"""Gather and scatter for readers of StableHLO below 1.1.0: no batching dimensions."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.extend import core as jax_core

from jax2tf_bridge import Target, from_exported, retarget
from jax2tf_bridge import export as bridge_export
from jax2tf_bridge.errors import UnsupportedByTargetError
from jax2tf_bridge.from_jax.lowering import make_lowering_overrides
from jax2tf_bridge.from_jax.stablehlo import StableHloModule
from tests.from_jax.lowered import (
    ALL,
    WIDEST,
    Function,
    check_everywhere,
    export_function,
    serialized,
)

SINCE = (1, 7, 3)


def check(f: Function, *args: Any) -> str:
    """Checks that it is portable and equal to JAX on the CPU; returns the module's text."""
    exported = export_function(f, *args)
    assert serialized(exported)
    got = jax.tree.leaves(jax.jit(exported.call)(*args))
    for g, w in zip(got, jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        if jnp.issubdtype(w.dtype, jax.dtypes.prng_key):
            g, w = jax.random.key_data(g), jax.random.key_data(w)
        np.testing.assert_array_equal(g, w)
        assert g.dtype == w.dtype
    return str(exported.mlir_module())


def check_each(*calls: tuple[Any, ...]) -> str:
    """Checks several functions with their arguments, in one module."""

    def all_of_them(rows: list[Any]) -> list[Any]:
        return [f(*row) for (f, *_), row in zip(calls, rows, strict=True)]

    return check(all_of_them, [args for _, *args in calls])


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).integers(-50, 50, shape).astype(dtype)


def positions(*shape: int, bound: int, dtype: Any = np.int32) -> Any:
    return np.random.default_rng(1).integers(0, bound, shape).astype(dtype)


def test_without_the_rules_it_is_not_portable() -> None:
    # StableHLO's serializer rewrites those of static shapes itself.
    (b,) = export.symbolic_shape("b")
    args = (jax.ShapeDtypeStruct((b, 7), np.float32), jax.ShapeDtypeStruct((b,), np.int32))
    f = jax.vmap(lambda x, i: x[i])
    exported = export_function(f, *args, version=SINCE)
    assert "operand_batching_dims" in exported.mlir_module()
    with pytest.raises(Exception, match="serialize"):
        serialized(exported)


def test_readers_that_have_batching_dimensions_get_them() -> None:
    primitives = [p for p, _ in make_lowering_overrides(("cpu",), SINCE)]
    assert lax.gather_p not in primitives
    assert lax.gather_p in [p for p, _ in make_lowering_overrides(("cpu",), WIDEST)]


@pytest.mark.parametrize(("release", "has_them"), [("2.16", 0), ("2.17", 0), ("2.18", 1)])
@pytest.mark.parametrize("spec", [None, "(b, _)"])
def test_the_xla_of_tensorflow_2_17_fails_on_them(
    release: str, has_them: int, spec: str | None
) -> None:
    """Neither exports nor retargeted functions have them there."""
    take = functools.partial(jnp.take_along_axis, axis=1)
    args = numbers(4, 3), positions(4, 2, bound=3)
    made = bridge_export(take, polymorphic_shapes=spec, target=Target.tensorflow(release))(*args)
    again = retarget(made, Target.tensorflow(release))
    for portable in (made, again):
        assert StableHloModule.read(portable.module.data).uses_batching_dims() == bool(has_them)


def test_a_batched_gather_of_an_archive_needs_tensorflow_2_18() -> None:
    take = functools.partial(jnp.take_along_axis, axis=1)
    b, *_ = export.symbolic_shape("b")
    args = (jax.ShapeDtypeStruct((b, 3), np.float32), jax.ShapeDtypeStruct((b, 2), np.int32))
    exported = export.export(jax.jit(take), platforms=["cpu"])(*args)
    for release in ("2.16", "2.17"):
        with pytest.raises(UnsupportedByTargetError, match=r"first TensorFlow that can .* 2\.18"):
            from_exported(exported, target=Target.tensorflow(release))
    portable = from_exported(exported)
    assert portable.tensorflow_releases[0] == "2.18"
    static = export.export(jax.jit(take), platforms=["cpu"])(
        numbers(4, 3), positions(4, 2, bound=3)
    )
    assert from_exported(static).tensorflow_releases[0] == "2.15"
    for_2_17 = from_exported(static, target=Target.tensorflow("2.17"))
    assert for_2_17.module.stablehlo_version < (1, 1, 0)


def test_gather() -> None:
    x, i = numbers(3, 7, 5), positions(3, 4, bound=7)
    text = check_each(
        (jax.vmap(lambda x, i: x[i]), x, i),
        (jax.vmap(lambda x, i: x[i, ::2]), x, i),
        (jax.vmap(jax.vmap(lambda x, i: x[i])), x, positions(3, 7, 2, bound=5)),
        (jax.vmap(lambda x, i: x[:, i], in_axes=(1, 0)), x, positions(7, 2, bound=5)),
        (lambda x, i: jnp.take_along_axis(x, i, 1), x, positions(3, 2, 5, bound=7)),
        (jax.vmap(lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 3))), x, i[:, 0] * 2),
    )
    assert "batching_dims" not in text


def test_modes_of_gather() -> None:
    inside, outside = positions(3, 9, bound=7), positions(3, 9, bound=40) - 20
    check_each(
        (jax.vmap(lambda x, i: x.at[i].get(mode="fill")), numbers(3, 7), outside),
        (jax.vmap(lambda x, i: x.at[i].get(mode="clip")), numbers(3, 7), outside),
        (jax.vmap(lambda x, i: x.at[i].get(mode="promise_in_bounds")), numbers(3, 7), inside),
    )


SCATTERS = ["set", "add", "subtract", "multiply", "min", "max"]
MODES = ["drop", "clip", "promise_in_bounds"]


@pytest.mark.parametrize("method", SCATTERS)
def test_scatter(method: str) -> None:
    def scatter(mode: str) -> Function:
        return jax.vmap(lambda x, i, u: getattr(x.at[i], method)(u, mode=mode))

    # Equal indices would leave the result of `set` open.
    inside = np.stack([np.random.default_rng(k).permutation(7)[:4] for k in range(3)])
    distinct = inside.astype(np.int32)
    outside = np.where(distinct == 6, 11, distinct)
    x, u = numbers(3, 7, 2), numbers(3, 4, 2)
    calls = [(scatter(m), x, distinct if m == MODES[-1] else outside, u) for m in MODES]
    assert "batching_dims" not in check_each(*calls)


def test_scatter_of_windows_and_repeated_indices() -> None:
    x, i = numbers(3, 7, 5), positions(3, 6, bound=3)
    update = jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 1)))
    check_each(
        (jax.vmap(lambda x, i: x.at[i, 1:3].add(2)), x, i),
        (jax.vmap(jax.vmap(lambda x, i: x.at[i].max(9))), x, positions(3, 7, 2, bound=5)),
        (update, x, numbers(3, 2, 2), i[:, 0] * 2),
        (jax.vmap(lambda x, i: x.at[i].apply(jnp.abs)), x, positions(3, 1, bound=7)),
    )


def test_complex_scatter_on_every_platform() -> None:
    with jax.enable_x64(True):
        x = numbers(3, 7, dtype=np.complex128) * 1j
        f = jax.vmap(lambda x, i: x.at[i].add(2j))
        check_everywhere(f, x, positions(3, 2, bound=7))
        check(f, x, positions(3, 2, bound=7))


def test_platforms_share_one_scatter() -> None:
    args = (numbers(3, 7), positions(3, 2, bound=7))
    f = jax.vmap(lambda x, i: x.at[i].add(1))
    assert "stablehlo.case" not in export_function(f, *args, platforms=ALL).mlir_module()


def test_narrow_indices_of_a_long_batch() -> None:
    x, calls = numbers(300, 5), []
    for dtype in ("int8", "uint8", "int16", "uint32"):
        i = positions(300, 2, bound=5, dtype=dtype)
        calls.append((jax.vmap(lambda x, i: x.at[i].get(mode="clip")), x, i))
        calls.append((jax.vmap(lambda x, i: x.at[i].add(1, mode="drop")), x, i))
    check_each(*calls)


def test_empty_batches() -> None:
    x, i = numbers(0, 7), positions(0, 2, bound=7)
    check_each(
        (jax.vmap(lambda x, i: x[i]), x, i),
        (jax.vmap(lambda x, i: x.at[i].add(1)), x, i),
        (jax.vmap(lambda x, i: x[i]), numbers(3, 7), positions(3, 0, bound=7)),
    )


def test_typed_keys() -> None:
    keys = jax.vmap(lambda k: jax.random.split(k, 5))(jax.random.split(jax.random.key(0), 3))
    i = positions(3, 2, bound=5)
    calls = (
        (jax.vmap(lambda k, i: k[i]), keys, i),
        (jax.vmap(lambda k, i: k.at[i].set(k[0])), keys, i[:, :1]),
    )
    assert "batching_dims" not in check_each(*calls)
    for f, *args in calls:
        check_everywhere(f, *args)


def gathers(f: Function, *args: Any) -> list[bool]:
    """`indices_are_sorted` of each gather and scatter of the module, in order."""
    text = export_function(f, *args).mlir_module()
    lines = [
        x for x in text.splitlines() if '"stablehlo.gather"' in x or '"stablehlo.scatter"' in x
    ]
    assert lines
    return ["indices_are_sorted = true" in line for line in lines]


def batched(sorted_: bool, batching_dims: tuple[int, ...], operand_dims: tuple[int, ...]) -> Any:
    """A gather of single elements of x [3, 7] by i [3, 4, 1] or [4, 3, 1]."""

    def f(x: Any, i: Any) -> Any:
        return lax.gather(
            x,
            i,
            lax.GatherDimensionNumbers(
                offset_dims=(),
                collapsed_slice_dims=(1 - operand_dims[0],),
                start_index_map=(1 - operand_dims[0],),
                operand_batching_dims=operand_dims,
                start_indices_batching_dims=batching_dims,
            ),
            slice_sizes=(1, 1),
            indices_are_sorted=sorted_,
            mode="promise_in_bounds",
        )

    return f


def test_sorted_stays_true_only_where_it_is() -> None:
    i = np.sort(positions(3, 4, 1, bound=7), axis=1)
    assert gathers(batched(True, (0,), (0,)), numbers(3, 7), i) == [True]
    assert gathers(batched(False, (0,), (0,)), numbers(3, 7), i) == [False]
    # The batch position varies fastest: (0, a), (1, a), (0, b) ... is not sorted.
    swapped = i.transpose(1, 0, 2)
    assert gathers(batched(True, (1,), (0,)), numbers(3, 7), swapped) == [False]
    # The batch is the operand's second dimension: sorted by it first, not by the first one.
    assert gathers(batched(True, (0,), (1,)), numbers(7, 3), i) == [False]
    check_each(
        (batched(True, (0,), (0,)), numbers(3, 7), i),
        (batched(True, (1,), (0,)), numbers(3, 7), swapped),
        (batched(True, (0,), (1,)), numbers(7, 3), i),
    )


def test_unique_indices_stay_unique() -> None:
    f = jax.vmap(lambda x, i: x.at[i].set(1.0, unique_indices=True, indices_are_sorted=True))
    args = (numbers(3, 7), np.tile(np.arange(4, dtype=np.int32), (3, 1)))
    text = export_function(f, *args).mlir_module()
    assert "unique_indices = true" in text
    check(f, *args)


def test_gradients() -> None:
    def f(x: Any, i: Any) -> Any:
        return jax.vmap(lambda x, i: x.at[i].multiply(2.0)[i] ** 2)(x, i)

    x, i = numbers(3, 7), positions(3, 4, bound=7)
    flat: Function = jax_core.jaxpr_as_fun(jax.jit(f).trace(x, i).jaxpr)

    def vjp(x: Any, i: Any, ct: Any) -> Any:
        _, pull = jax.vjp(lambda x: flat(x, i), x)
        return pull([ct])

    assert "batching_dims" not in check(vjp, x, i, numbers(3, 4))


def test_symbolic_batch() -> None:
    def f(x: Any, i: Any) -> Any:
        taken = jnp.take_along_axis(x, i, 1)
        return taken, jax.vmap(lambda x, i, t: x.at[i].add(t, mode="drop"))(x, i, taken)

    (b,) = export.symbolic_shape("b")
    specs = (
        jax.ShapeDtypeStruct((b, 7), np.float32),
        jax.ShapeDtypeStruct((b, 3), np.int32),
    )
    check_everywhere(f, *specs)
    exported = export_function(f, *specs)
    assert serialized(exported)
    for size in (1, 4):
        args = (numbers(size, 7), positions(size, 3, bound=7))
        for g, w in zip(exported.call(*args), jax.jit(f)(*args), strict=True):
            np.testing.assert_array_equal(g, w)


def test_two_symbolic_dimensions() -> None:
    b, n = export.symbolic_shape("b, n")
    f: Any = jax.vmap(lambda x, i: x.at[i].get(mode="fill", fill_value=-1))
    exported = export_function(
        f, jax.ShapeDtypeStruct((b, n), np.float32), jax.ShapeDtypeStruct((b, 3), np.int32)
    )
    assert serialized(exported)
    args = (numbers(2, 5), positions(2, 3, bound=9))
    np.testing.assert_array_equal(exported.call(*args), f(*args))
