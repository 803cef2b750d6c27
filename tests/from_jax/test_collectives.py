"""Collectives over the axis of a jax.vmap, beside an axis of open size."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jax2tf_bridge.from_jax.lowering._rules import lowering_overrides

FUNCTIONS: dict[str, Any] = {
    "psum": lambda x: lax.psum(x, "i"),
    "psum of a tree": lambda x: lax.psum((x, jnp.sin(x)), "i"),
    "pmean": lambda x: lax.pmean(x, "i"),
    "pmax": lambda x: lax.pmax(x, "i"),
    "pmin": lambda x: lax.pmin(x, "i"),
}


def exported(function: Any, specs: Any, rules: Any) -> export.Exported:
    mapped = jax.vmap(jax.vmap(function, axis_name="i"))
    return export.export(jax.jit(mapped), platforms=["cpu"], _override_lowering_rules=rules)(*specs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_concrete_sizes(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    specs = export.symbolic_args_specs([x], "b, ...")
    rules = lowering_overrides(("cpu",), (0, 14, 24))
    got = jax.jit(exported(FUNCTIONS[name], specs, rules).call)(x)
    expected = jax.vmap(jax.vmap(FUNCTIONS[name], axis_name="i"))(x)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-6)


def test_without_the_rule_jax_asks_for_a_number() -> None:
    specs = export.symbolic_args_specs([np.zeros((2, 5, 3), np.float32)], "b, ...")
    with pytest.raises(Exception, match="Symbolic dimension 'b' used in a context"):
        exported(FUNCTIONS["psum"], specs, None)
