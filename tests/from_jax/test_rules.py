"""Lowering rules for open sizes: bitcasts, collectives under jax.vmap, grouped convolutions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jax2tf_bridge import convert

# Private: the factor shows only in the speed of the module.
from jax2tf_bridge.from_jax.lowering._rules import _find_factor
from tests.from_jax.lowered import export_function, matrix
from tests.sampling import sampled

BITCASTS = [
    ("int16", "int32"),
    ("uint8", "float32"),
    ("float32", "int8"),
    ("float32", "bfloat16"),
    ("bfloat16", "uint32"),
    ("int32", "float16"),
    ("uint16", "uint8"),
    ("int8", "float8_e4m3fn"),
    ("float64", "int32"),
    ("uint8", "int64"),
]


def numbers(dtype: str, *shape: int) -> Any:
    size = np.dtype(jnp.dtype(dtype)).itemsize
    raw = np.random.default_rng(0).integers(0, 256, (*shape, size)).astype(np.uint8)
    return raw.view(jnp.dtype(dtype))[..., 0]


@pytest.mark.parametrize(("old", "new"), BITCASTS)
def test_bitcasts_that_change_the_width(old: str, new: str) -> None:
    with jax.enable_x64(True):

        def f(x: Any) -> Any:
            return lax.bitcast_convert_type(x, new)

        ratio = jnp.dtype(new).itemsize // jnp.dtype(old).itemsize
        shape = "(b, 3)" if ratio <= 1 else f"(b, 3, {ratio})"
        converted = convert(f, polymorphic_shapes=shape, with_gradient=False)
        for b in (1, 4):
            x = numbers(old, b, 3, *([ratio] if ratio > 1 else []))
            found, expected = np.asarray(converted(x)), np.asarray(f(x))
            assert found.dtype == expected.dtype
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


def test_a_bitcast_of_known_sizes_keeps_the_operation() -> None:
    cast = export_function(lambda x: lax.bitcast_convert_type(x, "int8"), np.zeros(2, np.float32))
    assert "bitcast_convert" in cast.mlir_module()
    assert "shift" not in cast.mlir_module()


def convolution(**options: Any) -> Any:
    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", **options)

    return convolve


def gradients(convolve: Any) -> Any:
    def both(x: Any, w: Any) -> Any:
        return jax.grad(lambda x, w: jnp.sum(jnp.sin(convolve(x, w))), (0, 1))(x, w)

    return both


COLLECTIVES: dict[str, Any] = {
    "psum": lambda x: lax.psum(x, "i"),
    "psum of a tree": lambda x: lax.psum((x, jnp.sin(x)), "i"),
    "pmean": lambda x: lax.pmean(x, "i"),
    "pmax": lambda x: lax.pmax(x, "i"),
    "pmin": lambda x: lax.pmin(x, "i"),
}
CONVOLUTIONS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "one group": (convolution(), (2, 3, 5, 6), (4, 3, 3, 3)),
    "groups of features": (convolution(feature_group_count=2), (2, 4, 5, 6), (6, 2, 3, 3)),
    "groups of batches": (convolution(batch_group_count=2), (4, 3, 5, 6), (6, 3, 3, 3)),
    "features last": (
        convolution(dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (2, 5, 6, 3),
        (3, 3, 3, 4),
    ),
}
KINDS: dict[str, Any] = {"values": lambda f: f, "gradients": gradients}
MAPPED: dict[str, tuple[Any, list[Any]]] = {
    **{n: (jax.vmap(f, axis_name="i"), [matrix(2, 5, 3)]) for n, f in COLLECTIVES.items()},
    **{
        f"{kind}, {name}": (f(convolve), [matrix(3, *x), matrix(3, *w, seed=1)])
        for name, (convolve, x, w) in CONVOLUTIONS.items()
        for kind, f in KINDS.items()
    },
}


# The gradients contain the convolutions of the values, and pmean contains psum.
@pytest.mark.parametrize(
    "name",
    sampled(
        list(MAPPED),
        every=100,
        keep=lambda name: name.startswith("gradients") or name in ("psum of a tree", "pmax"),
    ),
)
def test_results_of_an_open_number_of_rows_are_those_of_concrete_ones(name: str) -> None:
    function, rows = jax.vmap(MAPPED[name][0]), MAPPED[name][1]
    is_collective = name in COLLECTIVES
    # JAX asks whether there is more than one group when it differentiates.
    constraints = [] if is_collective else ["b >= 2"]
    specs = export.symbolic_args_specs(rows, "b, ...", constraints=constraints)
    rtol, atol = (1e-6, 0.0) if is_collective else (2e-5, 2e-5)
    got = jax.jit(export_function(function, *specs).call)(*rows)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(function)(*rows)), strict=True):
        np.testing.assert_allclose(g, e, atol=atol, rtol=rtol)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("psum", Exception, "Symbolic dimension 'b' used in a context"),
        ("values, one group", NotImplementedError, "feature_group_count"),
    ],
)
def test_without_the_rule_jax_refuses_it(name: str, error: type[Exception], message: str) -> None:
    function, rows = MAPPED[name]
    specs = export.symbolic_args_specs(rows, "b, ...")
    with pytest.raises(error, match=message):
        export.export(jax.jit(jax.vmap(function)), platforms=["cpu"])(*specs)


def test_a_known_number_of_groups_makes_no_loop() -> None:
    convolve, x, w = CONVOLUTIONS["groups of features"]
    text = export_function(convolve, matrix(*x), matrix(*w)).mlir_module()
    assert "stablehlo.convolution" in text
    assert "stablehlo.while" not in text


def test_the_known_part_of_the_number_of_groups() -> None:
    (b,) = export.symbolic_shape("b")
    assert [_find_factor(n) for n in (b, 4 * b, 6 * b, 35 * b, 37 * b)] == [1, 4, 6, 35, 1]
    assert _find_factor(b + 4) == 1
