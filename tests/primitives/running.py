"""Runs groups of cases in JAX and, converted, in TensorFlow; says which disagree, and in what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf_bridge import convert
from tests.primitives.arguments import Array
from tests.primitives.case import Case, precision
from tests.primitives.comparing import cotangent, difference, is_inexact

SIZES = (3, 2)
"""Sizes of the symbolic batch; JAX runs the first one."""

Flat = Callable[..., list[Any]]


@dataclass(frozen=True)
class Answer:
    """Results of one case, and the gradients of its inexact arguments."""

    results: list[Array]
    gradients: list[Array]


@dataclass(frozen=True)
class Disagreement:
    """A case that fails: in which run ("static", "batch of 2"), and how."""

    case: Case
    run: str
    text: str

    def __str__(self) -> str:
        return f"{self.case} ({self.run}): {self.text}"


def disagreements(cases: Sequence[Case]) -> list[Disagreement]:
    """Compares cases, all of one precision, with JAX; skips those that do not exist.

    They run together, as one module; one by one if that fails.
    """
    present = [case for case in cases if case.exists]
    with precision(any(case.x64 for case in present)):
        found = _of_run("static", present, _static_difference)
        return found + _of_run("batch", [c for c in present if batched(c)], _batch_difference)


def batched(case: Case) -> bool:
    """Returns whether the case has an argument to map over."""
    return bool(case.arguments) and not case.no_batch


def _of_run(
    run: str,
    cases: Sequence[Case],
    differences: Callable[[Sequence[Case]], list[tuple[Case, str]]],
) -> list[Disagreement]:
    if not cases:
        return []
    try:
        return [Disagreement(case, run, text) for case, text in differences(cases)]
    except Exception as e:  # whatever a case raises is its disagreement
        if len(cases) == 1:
            return [Disagreement(cases[0], run, f"{type(e).__name__}: {str(e)[:2000]}")]
    half = len(cases) // 2
    return [
        *_of_run(run, cases[:half], differences),
        *_of_run(run, cases[half:], differences),
    ]


def _static_difference(cases: Sequence[Case]) -> list[tuple[Case, str]]:
    tried = static_trials(cases)
    converted = convert(_together([trial.function for trial in tried]))
    rows, expected = [t.row for t in tried], [t.expected for t in tried]
    return _compare(cases, _in_tensorflow(converted, rows, expected), expected)


def _batch_difference(cases: Sequence[Case]) -> list[tuple[Case, str]]:
    tried = batch_trials(cases)
    needed = sorted({case.open_gradient_needs for case in cases} - {""})
    converted = convert(
        _together([trial.function for trial in tried]),
        polymorphic_shapes="(b, ...)",
        polymorphic_constraints=needed,
    )
    found = []
    for size in SIZES:
        shorter = [trial.of_size(size) for trial in tried]
        wanted = [trial.expected for trial in shorter]
        got = _in_tensorflow(converted, [trial.row for trial in shorter], wanted)
        texts = [
            (case, text)
            for case, text in _compare(cases, got, wanted)
            if size in sizes_compared(case)
        ]
        found += [(case, f"batch of {size}: {text}") for case, text in texts]
    return found


@dataclass(frozen=True)
class Trial:
    """A case's function over arrays, the arrays, and what JAX answers."""

    function: Flat
    row: list[Array]
    expected: Answer

    def of_size(self, size: int) -> Trial:
        """Makes the trial of a smaller batch."""
        shorter = Answer(
            [x[:size] for x in self.expected.results], [x[:size] for x in self.expected.gradients]
        )
        return Trial(self.function, [x[:size] for x in self.row], shorter)


def static_trials(cases: Sequence[Case]) -> list[Trial]:
    """Asks JAX for the answers of cases of one precision, together."""
    functions = [_differentiable(case.no_gradient, case.function()) for case in cases]
    return _trials(functions, [case.sample(0) for case in cases])


def batch_trials(cases: Sequence[Case]) -> list[Trial]:
    """Asks JAX for the answers under jax.vmap, of the largest batch."""
    constant = {case: case.no_gradient or case.no_open_gradient for case in cases}
    functions = [jax.vmap(_differentiable(constant[c], c.function())) for c in cases]
    samples = [[case.sample(i) for i in range(SIZES[0])] for case in cases]
    return _trials(functions, [[np.stack(c) for c in zip(*s, strict=True)] for s in samples])


def _trials(functions: Sequence[Flat], rows: list[list[Array]]) -> list[Trial]:
    answers = _in_jax(functions, rows)
    return [Trial(*both) for both in zip(functions, rows, answers, strict=True)]


def sizes_compared(case: Case) -> tuple[int, ...]:
    """The sizes of the batch whose rows have the results that they have in the largest."""
    return SIZES[:1] if case.depends_on_batch else SIZES


def _differentiable(no_gradient: str, function: Flat) -> Flat:
    """Makes the function constant for differentiation where JAX has no derivative of it."""
    if not no_gradient:
        return function
    return lambda *args: function(*map(lax.stop_gradient, args))


def _together(functions: Sequence[Flat]) -> Callable[[list[list[Any]]], list[list[Any]]]:
    def group(rows: list[list[Any]]) -> list[list[Any]]:
        return [f(*row) for f, row in zip(functions, rows, strict=True)]

    return group


def _in_jax(functions: Sequence[Flat], rows: list[list[Array]]) -> list[Answer]:
    group = _together(functions)

    @jax.jit
    def run(rows: list[list[Any]], cotangents: list[list[Any]]) -> tuple[Any, Any]:
        leaves, tree = jax.tree.flatten(rows)
        places = [i for i, leaf in enumerate(leaves) if is_inexact(leaf)]

        def of_inexact(values: list[Any]) -> tuple[Any, Any]:
            merged = list(leaves)
            for place, value in zip(places, values, strict=True):
                merged[place] = value
            results = group(jax.tree.unflatten(tree, merged))
            return [[r for r in result if is_inexact(r)] for result in results], results

        _, pull_back, results = jax.vjp(of_inexact, [leaves[i] for i in places], has_aux=True)
        conjugates = jax.tree.map(jnp.conj, cotangents)
        gradients = iter(map(jnp.conj, pull_back(conjugates)[0]))
        return results, [[next(gradients) for x in row if is_inexact(x)] for row in rows]

    cotangents = [
        [cotangent(r.shape, r.dtype) for r in result if is_inexact(r)]
        for result in jax.eval_shape(group, rows)
    ]
    results, gradients = jax.device_get(run(rows, cotangents))
    return [
        Answer([np.asarray(r) for r in result], [np.asarray(g) for g in gradient])
        for result, gradient in zip(results, gradients, strict=True)
    ]


def _in_tensorflow(
    converted: Callable[..., Any], rows: list[list[Array]], expected: list[Answer]
) -> list[Answer]:
    tensors = [[tf.constant(x) for x in row] for row in rows]
    sources = [
        [t for t, x in zip(ts, row, strict=True) if is_inexact(x)]
        for ts, row in zip(tensors, rows, strict=True)
    ]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        results = converted(tensors)
    targets, cotangents = [], []
    for result, answer in zip(results, expected, strict=True):
        for tensor, wanted in zip(result, answer.results, strict=True):
            if is_inexact(wanted):
                targets.append(tensor)
                cotangents.append(tf.constant(cotangent(wanted.shape, wanted.dtype)))
    flat = [s for row in sources for s in row]
    zero = tf.UnconnectedGradients.ZERO
    pulled = tape.gradient(targets, flat, cotangents, zero) if targets and flat else []
    gradients = iter(pulled or [tf.zeros_like(s) for s in flat])
    return [
        Answer([r.numpy() for r in result], [next(gradients).numpy() for _ in row])
        for result, row in zip(results, sources, strict=True)
    ]


def _compare(
    cases: Sequence[Case], got: list[Answer], expected: list[Answer]
) -> list[tuple[Case, str]]:
    found = []
    for case, g, e in zip(cases, got, expected, strict=True):
        pairs = [
            *(
                (f"result {i}", *pair)
                for i, pair in enumerate(zip(g.results, e.results, strict=True))
            ),
            *(
                (f"gradient {i}", *pair)
                for i, pair in enumerate(zip(g.gradients, e.gradients, strict=True))
            ),
        ]
        texts = [
            f"{what} {text}"
            for what, a, b in pairs
            if (text := difference(a, b, case.relative_tolerance))
        ]
        if texts:
            found.append((case, "; ".join(texts)))
    return found
