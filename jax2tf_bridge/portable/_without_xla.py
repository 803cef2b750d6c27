"""Takes a function that was exported for XLA as one for TensorFlow's own operations."""

from __future__ import annotations

from dataclasses import replace

from jax2tf_bridge.errors import GradientError
from jax2tf_bridge.portable._portable_function import (
    Gradient,
    GradientOnDemand,
    PortableFunction,
    StoredGradient,
)


def without_xla(portable: PortableFunction) -> PortableFunction:
    """Returns the function, and its gradients, for the same consumer without XLA.

    The module is what it was: `from_jax`'s retarget rewrites what has no form in TensorFlow's
    operations, for which JAX is needed.
    """
    if not portable.target.xla:
        return portable
    return replace(portable, target=portable.target.without_xla(), gradient=_without_xla(portable))


def _without_xla(portable: PortableFunction) -> Gradient:
    gradient, name = portable.gradient, portable.name
    if gradient.made is not None:
        return StoredGradient(without_xla(gradient.made))
    if not gradient.available:
        return gradient

    def check() -> None:
        problem = gradient.problem(name)
        if problem is not None:
            raise GradientError(problem)

    return GradientOnDemand(lambda: without_xla(gradient.get(name)), check=check)
