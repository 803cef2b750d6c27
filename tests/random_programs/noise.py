"""Reruns a program in JAX with rounding errors put in, to see which differences they explain."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.random_programs.comparing import TOLERANCES, smallest, widened, wrong_places
from tests.random_programs.program import NAMES, Program, Step
from tests.random_programs.values import Array, kind_of

SAMPLES = 8
"""Number of reruns of a program."""


INTEGER_ERROR = 2.0**-22
"""Relative error of an integer that is the sum of float32 products."""

_INTEGER_SUM = "preferred_element_type='int"


def noisy(value: Any, random: Any, turn: Any) -> Any:
    """Adds a rounding error to each element, as large as the tolerance of the dtype.

    Subnormal numbers become zero in every second turn; signs of NaN and zero are random, as nobody
    promises them.

    Args:
      value: the result of a step.
      random: an array of its shape (two for complex numbers), between -1 and 1.
      turn: the number of the run.
    """
    value = jnp.asarray(value)
    kind = kind_of(str(value.dtype))
    if kind == "c":
        size = jnp.abs(value)
        return jax.lax.complex(
            _noisy(jnp.real(value), size, random[0], turn),
            _noisy(jnp.imag(value), size, random[1], turn),
        )
    return _noisy(value, jnp.abs(value), random[0], turn) if kind == "f" else value


def noisy_sum(value: Any, random: Any, turn: Any) -> Any:
    """Adds the error of a sum of float32 products to the integers that it is converted to."""
    value = jnp.asarray(value)
    error = random[0] * INTEGER_ERROR * jnp.abs(value.astype(jnp.float32))
    return value + jnp.round(error).astype(value.dtype)


def _noisy(value: Any, size: Any, random: Any, turn: Any) -> Any:
    dtype = str(value.dtype)
    # Half of the elements stay as they are: results are often exact.
    error = jnp.where(jnp.abs(random) < 0.5, 0, random).astype(value.dtype)
    moved = value + error * jnp.asarray(TOLERANCES[dtype], value.dtype) * size
    moved = jnp.where(jnp.isfinite(value) & jnp.isfinite(size), moved, value)
    signless = jnp.isnan(value) | (value == 0)
    moved = jnp.where(signless & (random < 0), -value, moved)
    flushed = (jnp.abs(value) < jnp.asarray(smallest(dtype), value.dtype)) & (turn % 2 == 1)
    return jnp.where(flushed, jnp.zeros_like(value), moved)


def _with_noise(program: Program, *, operands: bool) -> Program:
    """Rewrites the steps so that their results have errors, and with `operands` the inputs too."""
    steps: list[Step] = []
    renamed: dict[str, str] = {}
    if operands:
        for i in program.inputs:
            renamed[i.name] = f"v9{len(renamed):03}"
            expression = f"noisy({i.name}, RANDOM[{len(steps)}], TURN)"
            steps.append(Step(renamed[i.name], expression, "noise"))
    for step in program.steps:
        expression = step.expression
        for name, new in renamed.items():
            expression = re.sub(rf"\b{name}\b(?!\.shape)", new, expression)
        add = "noisy_sum" if _INTEGER_SUM in expression else "noisy"
        steps.append(Step(step.name, f"{add}({expression}, RANDOM[{len(steps)}], TURN)", ""))
    return dataclasses.replace(program, steps=tuple(steps))


def noisy_results(
    program: Program, args: Sequence[Array], shapes: Sequence[tuple[int, ...]]
) -> list[list[Array]]:
    """Runs a program several times, each with other errors.

    Args:
      program: of fixed or open sizes.
      args: of the call.
      shapes: of the steps' results in it.
    """
    source = _with_noise(program, operands=True).source()
    source = source.replace("def program(", "def program(RANDOM, TURN, ")
    names: dict[str, Any] = {**NAMES, "noisy": noisy, "noisy_sum": noisy_sum}
    exec(compile(source, "<noisy program>", "exec"), names)
    function: Callable[..., Any] = jax.jit(names["program"])
    results = []
    for turn in range(SAMPLES):
        rng = np.random.default_rng(turn)
        random = [
            rng.uniform(-1, 1, (2, *shape)).astype(np.float32)
            for shape in [*(np.shape(arg) for arg in args), *shapes]
        ]
        with jax.enable_x64(program.x64):
            results.append([np.asarray(r) for r in function(random, turn, *args)])
    return results


def explained_by_noise(
    actual: Array, expected: Array, wrong: Array, samples: Sequence[Array]
) -> Array:
    """Leaves of the marked elements those that no sample comes near."""
    left = wrong.copy()
    for sample in samples:
        if sample.shape == actual.shape:
            left &= wrong_places(actual, sample)
    if kind_of(str(expected.dtype)) == "b" or not left.any():
        return left
    stacked = np.stack([widened(s) for s in samples if s.shape == actual.shape])
    reference, got = widened(expected), widened(actual)
    with np.errstate(all="ignore"):
        # A NaN says nothing about the spread; each is compared above.
        spread = np.nanmax(np.where(np.isfinite(stacked), np.abs(stacked - reference), 0), axis=0)
        near = np.abs(got - reference) <= 3 * spread
    return np.asarray(left & ~near)
