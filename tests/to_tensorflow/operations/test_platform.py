"""A module for several platforms becomes the operations of one platform alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf_bridge import Target, export, to_tf
from tests.to_tensorflow.operations.running import op_names

X = np.array([[1, 2, 3], [3, 4, 6]], np.float32)


def _by_platform(x: Any) -> Any:
    return lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.tan, default=jnp.cos)


def _in_a_loop(x: Any) -> Any:
    return lax.fori_loop(0, 2, lambda _, y: _by_platform(y) + jax.nn.softmax(y), x)


def _twice_in_calls(x: Any) -> Any:
    inner = jax.jit(lambda y: jax.nn.softmax(_by_platform(y)), inline=False)
    return inner(x) + inner(x + 1)


def test_only_the_branches_of_one_platform_remain() -> None:
    def f(x: Any) -> Any:
        return _by_platform(x), _in_a_loop(x), _twice_in_calls(x)

    portable = export(f, polymorphic_shapes="(b, 3)")(X)
    assert len(portable.platforms) > 1
    own = to_tf(portable, target=Target.widest(xla=False))
    for result, expected in zip(own(X), jax.jit(f)(X), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    concrete = tf.function(own, autograph=False).get_concrete_function(tf.TensorSpec([None, 3]))
    kinds = op_names(concrete.graph)
    assert {"Sin", "Softmax"} <= set(kinds)
    assert not {"Cos", "Tan", "Max", "StatelessCase", "StatelessIf", "Case", "If"} & set(kinds)


def test_a_choice_that_is_not_the_platforms_remains() -> None:
    def f(i: Any, x: Any) -> Any:
        return lax.switch(i, [jnp.sin, jnp.cos, _by_platform], x)

    own = to_tf(export(f)(np.int32(0), X), target=Target.widest(xla=False))
    for i, expected in enumerate((np.sin(X), np.cos(X), np.sin(X))):
        np.testing.assert_allclose(own(np.int32(i), X), expected, rtol=1e-5, atol=1e-6)
