"""Every program of the table through convert, in this process: values and first gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import pytest
import tensorflow as tf

from jax2tf_bridge import convert
from tests.consumers.comparison import differences
from tests.consumers.harness import sampled_programs
from tests.consumers.own_operations import foreign_operations, without_xla
from tests.program_cases.answers import Reference, results_and_gradients
from tests.program_cases.reference import crossing, jax_arguments, reference
from tests.program_cases.tensorflow_side import (
    flat_function,
    input_signature,
)
from tests.programs import PROGRAMS, SEVENTEEN, Program, by_name
from tests.sampling import sampled, stride

_OWN = "as TensorFlow's own operations, "

# One of each kind that the seventeen lack: a way to write functions, a dtype, a pytree.
_OF_OTHER_KINDS = (
    "mlp_captured",
    "conv_transposed",
    "custom_vjp",
    "dropout",
    "fft_symbolic",
    "gelu_and_erf",
    "einsum",
    "segments",
    "nested_jit",
    "float64",
    "float64_as_float32",
    "booleans",
    "int4_arguments",
    "complex64",
    "named_tuples",
    "no_arguments",
    "empty_arrays",
    "complex_cholesky",
    "matrix_rank",
)
_SAMPLE = (*SEVENTEEN, *map(by_name, _OF_OTHER_KINDS))


def _check(
    program: Program, results: Sequence[tf.Tensor], expected: Reference, how: str = ""
) -> None:
    got = [r.numpy() for r in results]
    assert differences(how + "result", got, expected.results, program.tolerance) == []


def _mark(program: Program) -> Any:
    """Leaves out of the slow tests what the consumers among them run in the same two forms."""
    if program in _SAMPLE:
        return pytest.param(program)
    is_consumed = program.name in sampled_programs()
    return pytest.param(program, marks=pytest.mark.complete if is_consumed else pytest.mark.slow)


@pytest.mark.parametrize("program", [_mark(p) for p in PROGRAMS], ids=str)
def test_values_and_gradients_are_those_of_jax(program: Program) -> None:
    """Values eagerly at the first call, and with gradients in a traced function at the others.

    The large modules of linear algebra run eagerly only among the slow tests and before a release:
    XLA compiles each once less. The consumers run every call of a saved model (tests/consumers).
    """
    eagerly = not program.needs_linalg or program not in _SAMPLE or stride(2) == 1
    with program.precision():
        example = program.build()
        called_first, *called_later = example.calls
        first = reference(program, example, called_first, gradients=not called_later)
        others = [reference(program, example, call) for call in called_later]
        flat = flat_function(program, example)
        if eagerly:
            _check(program, flat(*map(tf.constant, first.inputs)), first)
        signature = input_signature([first, *others])
        own = flat_function(program, example, without_xla())
        for how, function in (("", flat), (_OWN, own)):
            traced = tf.function(function, input_signature=signature, autograph=False)
            for expected in others or [first]:
                results, gradients = results_and_gradients(
                    traced, expected.inputs, expected, own=how == _OWN
                )
                _check(program, results, expected, how)
                got = [g.numpy() for g in gradients]
                found = differences(how + "gradient", got, expected.gradients, program.tolerance)
                assert found == []
        assert foreign_operations(traced.get_concrete_function().graph) == []


@pytest.mark.parametrize(
    "name", sampled(["keys_in_and_out", "dropout"], every=2, others=pytest.mark.slow)
)
def test_typed_keys_are_taken_as_they_are(name: str) -> None:
    program = by_name(name)
    example = program.build()
    converted = convert(example.function, polymorphic_shapes=program.polymorphic_shapes)
    for call in example.calls:
        results = jax.tree_util.tree_leaves(converted(*jax_arguments(program, call)))
        _check(program, results, reference(program, example, call, gradients=False))


def test_64_bit_arguments_are_taken_as_jax_takes_them() -> None:
    program = by_name("float64_as_float32")
    example = program.build()
    converted = convert(example.function, polymorphic_shapes=program.polymorphic_shapes)
    for call in example.calls:
        assert call.args[0].dtype == "float64"
        expected = reference(program, example, call, gradients=False)
        _check(program, list(converted(*call.args)), expected)


def test_the_table_is_what_the_published_counts_are_of() -> None:
    assert len(SEVENTEEN) == 17
    assert sum(p.needs_linalg for p in SEVENTEEN) == 6
    names = [p.name for p in PROGRAMS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_calls_cover_what_their_program_leaves_open(program: Program) -> None:
    """A symbolic dimension that is the same in all calls would never be seen to vary."""
    with program.precision():
        example = program.build()
        if program.polymorphic_shapes is None:
            return
        leaves = [jax.tree_util.tree_leaves((c.args, dict(c.kwargs))) for c in example.calls]
        shapes = {tuple(crossing(leaf).shape for leaf in call) for call in leaves}
    assert len(shapes) >= 2
