"""Calls of the exported programs in JAX, compared with calls of the functions themselves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax2tf_bridge as bridge
from jax2tf_bridge.jax_export import Exported
from tests.program_cases.record import Call, Example, Program


def largest_difference(program: Program) -> float:
    """Returns the largest relative difference of results at any call, and of first gradients."""
    with program.precision():
        example = program.build()
        exported = _exported(program, example)
        calls = [
            _difference(
                exported.call(*_arguments(program, call), **call.kwargs),
                example.function(*_arguments(program, call), **call.kwargs),
            )
            for call in example.calls
        ]
        gradients = [_of_gradients(program, example, exported)] if program.differentiable else []
        return max(calls + gradients)


def _of_gradients(program: Program, example: Example, exported: Exported) -> float:
    call = example.calls[0]
    arguments = _arguments(program, call)

    def cotangents(f: Any) -> Any:
        results, vjp = jax.vjp(lambda *args: f(*args, **call.kwargs), *arguments)
        return vjp(jax.tree_util.tree_map(_ones, results))

    return _difference(cotangents(exported.call), cotangents(example.function))


def _exported(program: Program, example: Example) -> Exported:
    first = example.calls[0]
    export = bridge.export(
        example.function,
        polymorphic_shapes=program.polymorphic_shapes,
        polymorphic_constraints=program.constraints,
        platforms=["tpu", "cpu"],
    )
    portable = export(*_arguments(program, first), **first.kwargs)
    return Exported(portable)


def _arguments(program: Program, call: Call) -> list[Any]:
    keys = program.key_arguments
    return [
        jax.random.wrap_key_data(a) if i in keys else jax.tree_util.tree_map(jnp.asarray, a)
        for i, a in enumerate(call.args)
    ]


def _ones(result: Any) -> Any:
    if jnp.issubdtype(result.dtype, jnp.inexact):
        return jnp.ones_like(result)
    return np.zeros(result.shape, jax.dtypes.float0)


def _difference(got: Any, expected: Any) -> float:
    pairs = zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(expected), strict=True)
    return max((_of_leaves(a, b) for a, b in pairs), default=0.0)


def _of_leaves(got: Any, expected: Any) -> float:
    if got.dtype == jax.dtypes.float0:
        return 0.0 if expected.dtype == got.dtype else 1.0
    if jnp.issubdtype(got.dtype, jax.dtypes.prng_key):
        got, expected = jax.random.key_data(got), jax.random.key_data(expected)
    wide = np.complex128 if jnp.issubdtype(got.dtype, jnp.complexfloating) else np.float64
    a, b = np.asarray(got).astype(wide), np.asarray(expected).astype(wide)
    assert a.shape == b.shape
    if not a.size:
        return 0.0
    return float(np.max(np.abs(a - b) / (1 + np.abs(b))))
