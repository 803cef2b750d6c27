"""TensorFlow's graph optimizer makes only operations that have kernels for their dtype."""

from __future__ import annotations

import pytest
import tensorflow as tf

from jax2tf_bridge import to_tf
from tests.sampling import sampled
from tests.to_tensorflow.operations import pairs


def _check(dtype: str, *, every: bool) -> None:
    assert not tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer")
    function = to_tf(pairs.portable(dtype, every=every), with_gradient=False)
    graph = tf.function(function, autograph=False)
    results = graph(*map(tf.constant, pairs.arguments(dtype, every=every)))
    assert not pairs.differences(results, pairs.expected(dtype, every=every))


@pytest.mark.costly
@pytest.mark.parametrize("dtype", sampled(pairs.INTEGERS, every=100))
def test_pairs_that_are_rewritten_run_and_agree_with_jax(dtype: str) -> None:
    _check(dtype, every=False)


@pytest.mark.complete
@pytest.mark.parametrize("dtype", pairs.DTYPES)
def test_pairs_of_operations_run_and_agree_with_jax(dtype: str) -> None:
    _check(dtype, every=True)
