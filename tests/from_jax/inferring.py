"""Helpers of the tests of inference: exports of vectors of open sizes."""

import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf_bridge import PortableFunction, export
from jax2tf_bridge.from_jax import jax_compat


def vector(size: int) -> Any:
    return np.ones(size, np.float32)


def exported(f: Any, *sizes: int, constraints: Any = (), shapes: Any = None) -> PortableFunction:
    specs = shapes or [f"({name},)" for name, _ in zip("bcd", sizes, strict=False)]
    return export(
        f, polymorphic_shapes=specs, polymorphic_constraints=constraints, platforms=["cpu"]
    )(*map(vector, sizes))


def in_blocks(x: Any) -> Any:
    return jnp.pad(x, (0, -x.shape[0] % 8)).reshape(-1, 8)


def best_five(x: Any) -> Any:
    return lax.top_k(x, 5)[0]


def line_of(function: Any) -> int:
    return inspect.getsourcelines(function)[1] + 1


def module_text(portable: PortableFunction) -> str:
    """Prints the module without the lines that it was traced at."""
    with jax_compat.make_ir_context():
        return str(jax_compat.deserialize_module(bytes(portable.module.data)))
