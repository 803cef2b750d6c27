"""Functions with given shapes, and the modes of calling them, for tests of shape checks."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import tensorflow as tf

from jax2tf_bridge import PortableFunction, Target, export
from shape_poly import evaluate_shape, symbolic_shape

SPECIFICATION = "Input shapes do not match the polymorphic shapes specification of double: "
CONSTRAINT = "Input shapes do not match the symbolic shape constraint "


def double(*arrays: Any) -> Any:
    """Doubles; for wrong sizes XLA's shape refinement fails before JAX's own check runs."""
    return [x * 2 for x in arrays]


def words(text: str) -> str:
    """Removes the punctuation that TensorFlow puts around the pieces of an assertion's message."""
    return " ".join(re.findall(r"[^\s()\[\],:]+", text))


TARGETS = {"XLA": None, "own operations": Target.widest(xla=False)}
"""Targets with XLA and without; both check shapes in the same way."""


def function_of(
    f: Callable[..., Any],
    shapes: Any,
    constraints: Any = (),
    requirements: Any = (),
    target: Target | None = None,
) -> PortableFunction:
    """Exports `f` for arguments of these shape specifications."""
    sizes = {"a": 2, "b": 4, "n": 3}

    def example(shape: str) -> Any:
        return jnp.zeros(evaluate_shape(symbolic_shape(shape), sizes), jnp.float32)

    exporting = export(
        f,
        polymorphic_shapes=shapes,
        polymorphic_constraints=constraints,
        platforms=["cpu"],
        target=target,
    )
    portable = exporting(*map(example, shapes))
    return replace(portable, requirements=tuple(requirements))


def ones(shapes: Any) -> list[Any]:
    return [tf.ones(shape) for shape in shapes]


def open_specs(shapes: Any) -> list[Any]:
    return [tf.TensorSpec([None] * len(shape), tf.float32) for shape in shapes]


def in_mode(mode: str, f: Any, shapes: Any, folder: Path) -> Any:
    """Wraps `f` for a mode of calling; no size is known while an "open" mode is traced."""
    if mode == "eager":
        return f
    jit_compile = True if mode.startswith("jit") else None
    if mode in ("static", "jit"):
        return tf.function(f, autograph=False, jit_compile=jit_compile)
    function = tf.function(
        f, input_signature=open_specs(shapes), autograph=False, jit_compile=jit_compile
    )
    if mode != "loaded":
        return function
    module = tf.Module()
    module.f = function
    tf.saved_model.save(module, str(folder / "model"))
    # The module keeps the parent of the loaded function alive.
    module.loaded = tf.saved_model.load(str(folder / "model"))
    return module.loaded.f


def assertions(function: Any) -> list[Any]:
    """The Assert ops of a traced function."""
    return [op for op in function.graph.get_operations() if op.type == "Assert"]


def squares(x: Any) -> Any:
    return x * x
