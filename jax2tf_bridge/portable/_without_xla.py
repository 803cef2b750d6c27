"""Takes a function that was exported for XLA as one for TensorFlow's own operations."""

from __future__ import annotations

from dataclasses import replace

from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._target import Target


def without_xla(portable: PortableFunction, target: Target | None = None) -> PortableFunction:
    """Returns the function, and its gradients, for a consumer without XLA.

    The module is what it was: `from_jax`'s retarget rewrites what has no form in TensorFlow's
    operations, for which JAX is needed.

    Args:
      portable: of an export, a file or one of JAX's archives.
      target: the consumer; by default the function's own, without XLA. A function that was
        exported without XLA keeps its own, unless this one is for converters.
    """
    wanted = target or portable.target.without_xla()
    if not portable.target.xla and (portable.target.for_converters or not wanted.for_converters):
        return portable
    return replace(
        portable,
        target=wanted,
        gradient=portable.gradient.changed(portable.name, lambda vjp: without_xla(vjp, target)),
    )
