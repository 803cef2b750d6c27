"""Convolutions in an open number of groups, as jax.vmap makes them of images and kernels."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jax2tf_bridge.from_jax.lowering._convolutions import _known_factor
from jax2tf_bridge.from_jax.lowering._rules import lowering_overrides

WIDEST = (0, 14, 24)


def normal(*shape: int, seed: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def convolution(**options: Any) -> Any:
    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", **options)

    return convolve


def gradients(convolve: Any) -> Any:
    def both(x: Any, w: Any) -> Any:
        return jax.grad(lambda x, w: jnp.sum(jnp.sin(convolve(x, w))), (0, 1))(x, w)

    return both


def exported(function: Any, *specs: Any) -> export.Exported:
    rules = lowering_overrides(("cpu",), WIDEST)
    return export.export(jax.jit(function), platforms=["cpu"], _override_lowering_rules=rules)(
        *specs
    )


CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "one group": (convolution(), (2, 3, 5, 6), (4, 3, 3, 3)),
    "groups of features": (convolution(feature_group_count=2), (2, 4, 5, 6), (6, 2, 3, 3)),
    "groups of batches": (convolution(batch_group_count=2), (4, 3, 5, 6), (6, 3, 3, 3)),
    "features last": (
        convolution(dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (2, 5, 6, 3),
        (3, 3, 3, 4),
    ),
}


@pytest.mark.parametrize("with_gradient", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_concrete_sizes(name: str, with_gradient: bool) -> None:
    convolve, x_shape, w_shape = CASES[name]
    function = jax.vmap(gradients(convolve) if with_gradient else convolve)
    rows = [normal(3, *shape, seed=i) for i, shape in enumerate((x_shape, w_shape))]
    # JAX asks whether there is more than one group when it differentiates.
    specs = export.symbolic_args_specs(rows, "b, ...", constraints=["b >= 2"])
    got = jax.jit(exported(function, *specs).call)(*rows)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(function)(*rows)), strict=True):
        np.testing.assert_allclose(g, e, atol=2e-5, rtol=2e-5)


def test_without_the_rule_it_is_refused() -> None:
    """By JAX: a test that passes without the rule would prove nothing."""
    convolve, x_shape, w_shape = CASES["one group"]
    rows = [normal(3, *shape, seed=0) for shape in (x_shape, w_shape)]
    specs = export.symbolic_args_specs(rows, "b, ...")
    with pytest.raises(NotImplementedError, match="feature_group_count"):
        export.export(jax.jit(jax.vmap(convolve)), platforms=["cpu"])(*specs)


def test_a_known_number_of_groups_makes_no_loop() -> None:
    convolve, x_shape, w_shape = CASES["groups of features"]
    text = exported(convolve, normal(*x_shape, seed=0), normal(*w_shape, seed=0)).mlir_module()
    assert "stablehlo.convolution" in text
    assert "stablehlo.while" not in text


def test_the_known_part_of_the_number_of_groups() -> None:
    (b,) = export.symbolic_shape("b")
    assert [_known_factor(n) for n in (b, 4 * b, 6 * b, 35 * b, 37 * b)] == [1, 4, 6, 35, 1]
    assert _known_factor(b + 4) == 1
