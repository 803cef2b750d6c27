"""Finds what no export can carry: calls back to the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from jax2tf_bridge._errors import NotExportableError
from jax2tf_bridge.from_jax import _jax_compat

_CALLBACKS = {
    "pure_callback": "jax.pure_callback",
    "io_callback": "jax.experimental.io_callback",
    "debug_callback": "jax.debug.callback or jax.debug.print",
    "debug_print": "jax.debug.print",
}


def refuse_host_callbacks(traced: jax.stages.Traced, name: str) -> None:
    """Raises if the function calls back to the Python process that traced it.

    Raises:
      NotExportableError: with the primitive and the user's source line.
    """
    for equation in equations(traced.jaxpr.jaxpr):
        called = _CALLBACKS.get(equation.primitive.name)
        if called is not None:
            source = _jax_compat.source_of_equation(equation)
            place = f" at {source}" if source else ""
            raise NotExportableError(
                f"{name} calls back to Python by {called}{place}, and Python is not there where "
                "the model is served. Remove the call, or do that work in TensorFlow before or "
                "after the converted function."
            )


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of the jaxprs inside of it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)
