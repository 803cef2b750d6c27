"""Retargets functions that were exported for XLA to TensorFlow's own operations."""

from __future__ import annotations

from dataclasses import replace

from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.targets import Target, as_target


def without_xla(portable: PortableFunction, target: Target | None = None) -> PortableFunction:
    """Returns the function, and its gradients, for a consumer without XLA.

    The module stays unchanged. To rewrite operations that TensorFlow cannot express, use
    `retarget` of `from_jax`, which needs JAX.

    Args:
      portable: a function from an export, a file or a JAX archive.
      target: the consumer; by default the function's own target without XLA. A function that was
        exported without XLA keeps its target, unless `target` is for converters.
    """
    new_target = target or portable.target.without_xla()
    if not portable.target.xla and (
        portable.target.for_converters or not new_target.for_converters
    ):
        return portable
    return replace(
        portable,
        target=new_target,
        gradient=portable.gradient.map_vjp(portable.name, lambda vjp: without_xla(vjp, target)),
    )


def apply_target(portable: PortableFunction, target: Target | None) -> PortableFunction:
    """Returns the function for a consumer without XLA if `target` is one, else unchanged."""
    consumer = as_target(target)
    if consumer.xla:
        return portable
    return without_xla(portable, consumer if consumer.for_converters else None)
