"""A portable function that several modules take."""

import pytest

from jax2tf_bridge.portable import PortableFunction


@pytest.fixture(scope="session")
def portable() -> PortableFunction:
    # Tests without JAX and TensorFlow read this file as well.
    from jax2tf_bridge import export
    from tests.to_tensorflow.dense_function import PARAMS, X, dense

    return export(dense, polymorphic_shapes=[None, "(b, _)"])(PARAMS, X, scale=X.dtype.type(1))
