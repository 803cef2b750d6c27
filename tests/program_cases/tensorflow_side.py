"""A program converted to TensorFlow, as a function from flat tensors to flat tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import tensorflow as tf

from jax2tf_bridge import Target, convert
from tests.program_cases.answers import Reference
from tests.program_cases.record import Array, Example, Program
from tests.program_cases.reference import over_key_words

FlatFunction = Callable[..., list[tf.Tensor]]


def flat_function(program: Program, example: Example, target: Target | None = None) -> FlatFunction:
    """Makes the converted program one over its leaves, with 4-bit ones taken from 8-bit tensors.

    TensorFlow cannot take apart every pytree that JAX can, nor hold a typed key.
    """
    converted = convert(
        over_key_words(program, example.function),
        polymorphic_shapes=program.polymorphic_shapes,
        polymorphic_constraints=program.constraints,
        with_gradient=program.differentiable,
        target=target,
    )
    first = example.calls[0]
    leaves, tree = jax.tree_util.tree_flatten((first.args, dict(first.kwargs)))
    narrow = {i: leaf.dtype.name for i, leaf in enumerate(leaves) if "int4" in leaf.dtype.name}

    def flat(*tensors: Any) -> list[tf.Tensor]:
        values = [tf.cast(t, narrow[i]) if i in narrow else t for i, t in enumerate(tensors)]
        args, kwargs = jax.tree_util.tree_unflatten(tree, values)
        return jax.tree_util.tree_leaves(converted(*args, **kwargs))

    return flat


def input_signature(references: Sequence[Reference]) -> list[tf.TensorSpec]:
    """One spec for each leaf, with the dimensions open in which the calls differ."""
    columns = zip(*(r.inputs for r in references), strict=True)
    return [tf.TensorSpec(_open_shape(column), column[0].dtype) for column in columns]


def _open_shape(arrays: Sequence[Array]) -> list[int | None]:
    shapes = zip(*(a.shape for a in arrays), strict=True)
    return [sizes[0] if len(set(sizes)) == 1 else None for sizes in shapes]
