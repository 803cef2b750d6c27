"""The gradients that a record has with it."""

from __future__ import annotations

from jax2tf_bridge.portable._portable_function import PortableFunction


def stored_functions(record: PortableFunction) -> tuple[PortableFunction, ...]:
    """The function, its VJP, that one's VJP, and so on, as far as they are there."""
    functions = [record]
    while (vjp := functions[-1].gradient.made) is not None:
        functions.append(vjp)
    return tuple(functions)
