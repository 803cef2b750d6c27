"""Computes JAX's answers: the flat results and gradients that every consumer has to reproduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tests.program_cases.answers import Reference
from tests.program_cases.record import Array, Call, Example, Program, normal

_CROSSES_AS = {"int4": np.int8, "uint4": np.uint8}


def reference(
    program: Program, example: Example, call: Call, *, gradients: bool = True
) -> Reference:
    """Runs a call in JAX, at its concrete shapes, with its gradient unless told otherwise."""
    with program.precision():
        args = jax_arguments(program, call)
        arguments = (args, dict(call.kwargs))
        leaves, tree = jax.tree_util.tree_flatten(arguments)

        def function(*values: Any) -> list[Any]:
            flat_args, flat_kwargs = jax.tree_util.tree_unflatten(tree, values)
            return jax.tree_util.tree_leaves(example.function(*flat_args, **flat_kwargs))

        flat = jax.jit(function)

        shapes = jax.eval_shape(flat, *leaves)
        sources = _inexact(leaves)
        targets = _inexact(shapes)
        cotangents = {
            i: normal(*shapes[i].shape, seed=17 + i).astype(shapes[i].dtype) for i in targets
        }
        results: list[Any]
        pulled: list[Any] = []
        if gradients and program.differentiable and targets:
            results, pulled = _results_and_gradients(flat, leaves, cotangents, sources)
        else:
            results = flat(*leaves)
        return Reference(
            tuple(map(crossing, leaves)),
            tuple(map(crossing, results)),
            sources,
            targets,
            tuple(map(crossing, cotangents.values())),
            # TensorFlow's gradients of complex arguments are the conjugates of JAX's.
            tuple(conjugate(crossing(g)) for g in pulled),
        )


def jax_arguments(program: Program, call: Call) -> tuple[Any, ...]:
    """Makes the positional arguments of a call as JAX takes them: typed keys from their words."""
    return tuple(
        jax.random.wrap_key_data(a) if i in program.key_arguments else _as_jax(a)
        for i, a in enumerate(call.args)
    )


def over_key_words(program: Program, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that it takes the words of its typed keys, as TensorFlow passes them."""
    if not program.key_arguments:
        return function

    def over_words(*args: Any, **kwargs: Any) -> Any:
        keyed = [
            jax.random.wrap_key_data(a) if i in program.key_arguments else a
            for i, a in enumerate(args)
        ]
        return function(*keyed, **kwargs)

    return over_words


def crossing(value: Any) -> Array:
    """A JAX value as the numpy array that stands for it in TensorFlow."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return array.astype(_CROSSES_AS.get(array.dtype.name, array.dtype))


def conjugate(array: Array) -> Array:
    """Returns the complex conjugate; of the dtypes that have none, the array itself."""
    return np.conj(array) if np.iscomplexobj(array) else array


def _as_jax(argument: Any) -> Any:
    """Casts the argument's leaves to the dtypes that JAX gives them, so that both sides agree."""
    return jax.tree_util.tree_map(
        lambda leaf: np.asarray(leaf).astype(jax.dtypes.canonicalize_dtype(leaf.dtype)), argument
    )


def _inexact(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, v in enumerate(values) if jax.dtypes.issubdtype(v.dtype, np.inexact))


def _results_and_gradients(
    flat: Callable[..., Any],
    leaves: Sequence[Any],
    cotangents: Mapping[int, Array],
    sources: Sequence[int],
) -> tuple[list[Any], list[Any]]:
    """Computes both in one program, so that JAX compiles once for a call."""

    @jax.jit
    def both(*values: Any) -> tuple[list[Any], list[Any]]:
        results, pull_back = jax.vjp(flat, *values)
        pulled = pull_back(
            [
                cotangents[i] if i in cotangents else np.zeros(result.shape, jax.dtypes.float0)
                for i, result in enumerate(results)
            ]
        )
        return results, [pulled[i] for i in sources]

    results, gradients = both(*leaves)
    return results, gradients
