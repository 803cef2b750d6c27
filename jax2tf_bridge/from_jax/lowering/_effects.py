"""Finds what no export can carry: calls back to the host. Those for debugging can be left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jax2tf_bridge.errors import NotExportableError
from jax2tf_bridge.from_jax import _jax_compat

_CALLBACKS = {
    "pure_callback": "jax.pure_callback",
    "io_callback": "jax.experimental.io_callback",
}
_FOR_DEBUGGING = {
    "debug_callback": "jax.debug.callback, jax.debug.breakpoint or jax.debug.print",
    "debug_print": "jax.debug.print",
    "inspect_sharding": "jax.debug.inspect_array_sharding",
}
_CHECK = "check"
_DEBUG_EFFECT = ".debugging.DebugEffect"


def refuse_host_callbacks(
    traced: jax.stages.Traced, name: str, *, without_debug_effects: bool = False
) -> None:
    """Rejects a function that calls back to the Python process that traced it.

    Args:
      traced: its trace.
      name: the function's.
      without_debug_effects: whether `debug_rules` leave out calls for debugging.

    Raises:
      NotExportableError: with the primitive and the user's source line.
    """
    if not all(hasattr(aval, "dtype") for aval in traced.jaxpr.out_avals):
        raise NotExportableError(
            f"{name} gives a token (jax.lax.create_token) as a result, which orders effects in JAX "
            "alone: TensorFlow has no type for it. Return the arrays without it."
        )
    for equation in equations(traced.jaxpr.jaxpr):
        primitive = equation.primitive.name
        if primitive in _FOR_DEBUGGING:
            if not without_debug_effects:
                raise _refusal(
                    name,
                    equation,
                    "Remove the call, or have it left out with DisabledSafetyCheck.debug_effects() "
                    "among the disabled checks",
                )
            params = equation.params
            if params.get("ordered") or "Ordered" in str(params.get("effect")):
                raise _refusal(
                    name,
                    equation,
                    "It is ordered, and only unordered calls can be left out: write it without "
                    "ordered=True, or remove it",
                )
        elif primitive in _CALLBACKS:
            raise _refusal(
                name,
                equation,
                "Remove the call, or do that work in TensorFlow before or after the converted "
                "function",
            )
        elif primitive == _CHECK and equation.params.keys() >= {"err_tree"}:
            raise NotExportableError(
                f"{name} calls checkify.check{_place(equation)}, but nothing takes its errors. "
                "Export the function without its checks, "
                "lambda *args: checkify.checkify(f)(*args)[1], or remove the call."
            )


def debug_rules(traced: jax.stages.Traced) -> tuple[tuple[Any, Any], ...]:
    """Lists (primitive, lowering rule) pairs that leave out a trace's calls for debugging."""
    found = {
        equation.primitive: None
        for equation in equations(traced.jaxpr.jaxpr)
        if equation.primitive.name in _FOR_DEBUGGING
    }
    return tuple((primitive, _lower_to_nothing) for primitive in found)


def is_debug_effect(name: str) -> bool:
    """Tells the effect of unordered calls for debugging, by module and class."""
    return name.endswith(_DEBUG_EFFECT)


def _lower_to_nothing(ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    return []


def _refusal(name: str, equation: Any, help_text: str) -> NotExportableError:
    primitive = equation.primitive.name
    called = {**_CALLBACKS, **_FOR_DEBUGGING}[primitive]
    return NotExportableError(
        f"{name} calls back to Python by {called}{_place(equation)}, and Python is not there where "
        f"the model is served. {help_text}."
    )


def _place(equation: Any) -> str:
    source = _jax_compat.source_of_equation(equation)
    return f" at {source}" if source else ""


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yields every equation of a jaxpr and of the jaxprs inside of it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)
