"""A portable function that several modules take."""

import numpy as np
import pytest

from jax2tf_bridge import PortableFunction, export
from tests.to_tensorflow.dense_function import PARAMS, X, dense


@pytest.fixture(scope="session")
def portable() -> PortableFunction:
    return export(dense, polymorphic_shapes=[None, "(b, _)"])(PARAMS, X, scale=np.float32(1))
