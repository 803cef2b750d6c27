"""Calls a record's op with the record's VJP as TensorFlow's gradient, to any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge._portable import Aval, PortableFunction
from jax2tf_bridge.to_tf._op import call_op

_NO_GRADIENT = (
    "{name} was converted with with_gradient=False, so that it has no gradient. "
    "Convert it with with_gradient=True."
)


def call_differentiable(record: PortableFunction, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The results on the flat arguments, differentiable as often as there are VJPs."""

    @tf.custom_gradient
    def call(*primals: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        results = call_op(record, primals)

        def gradient(*cotangents: tf.Tensor | None, variables: Any = None) -> list[Any]:
            if variables:
                raise ValueError(
                    f"{record.name} reads no variables, but TensorFlow asks for the gradients of "
                    f"{variables}. Pass them as arguments."
                )
            with tf.name_scope("jax2tf_vjp"):
                return _pull_back(record, primals, results, cotangents)

        return results, gradient

    # Without arguments there is nothing to differentiate, and tf.custom_gradient refuses.
    return list(call(*args)) if args else call_op(record, args)


def call_without_gradient(record: PortableFunction, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The results on the flat arguments; asking for a gradient says that there is none."""
    message = _NO_GRADIENT.format(name=record.name)
    # An op of TF's, so that the message is there after saving and loading.
    return [
        tf.raw_ops.PreventGradient(input=result, message=message)
        for result in call_op(record, args)
    ]


def _pull_back(
    record: PortableFunction,
    primals: Sequence[tf.Tensor],
    results: Sequence[tf.Tensor],
    cotangents: Sequence[tf.Tensor | None],
) -> list[tf.Tensor | None]:
    vjp = record.vjp()
    given = [
        _cotangent(cotangent, aval, result)
        for cotangent, aval, result in zip(cotangents, record.out_avals, results, strict=True)
    ]
    pulled = call_differentiable(vjp, [*primals, *given])
    return [
        value if aval.is_differentiable else None
        for value, aval in zip(pulled, record.in_avals, strict=True)
    ]


def _cotangent(cotangent: tf.Tensor | None, aval: Aval, result: tf.Tensor) -> tf.Tensor:
    if not aval.is_differentiable:
        # TF gives None or zeros of the result's dtype; JAX wants float0, which crosses as bool.
        zeros = tf.zeros_like(result, dtype=tf.bool)
        if aval.element_shape:
            zeros = tf.reduce_any(zeros, axis=list(range(-len(aval.element_shape), 0)))
        return zeros
    return tf.zeros_like(result) if cotangent is None else cotangent
