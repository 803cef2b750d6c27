"""Random programs agree with jax.jit; and the tool that says so finds what does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jax2tf_bridge.errors import UnsupportedByTargetError
from tests.random_programs.judging import ROUNDING, judge
from tests.random_programs.program import Input, Program, Step
from tests.random_programs.running import run
from tests.random_programs.strategy import programs, random_program
from tests.random_programs.ways import WAYS, Run, find_node, in_jax

PROGRAMS = {("xla", "operations"): 160, ("litert",): 50, ("onnx",): 60, ("tfjs",): 15, ("c",): 4}
"""Number of programs of the slow tests, by the ways that take the same ones."""

_PROGRAM = Program(
    inputs=(Input("x0", "float32", ("b",)),),
    steps=(
        Step("v0", "x0 * 2", "*"),
        Step("v1", "jnp.sin(v0)", "jnp.sin"),
        Step("v2", "jnp.floor(v1 * 3)", "jnp.floor"),
    ),
    outputs=("v2",),
    calls=({"b": 5}, {"b": 2}),
)


@pytest.mark.slow
@pytest.mark.parametrize("ways", PROGRAMS, ids="-".join)
def test_random_programs_agree_with_jax(ways: tuple[str, ...]) -> None:
    if "tfjs" in ways:
        from tests.consumers.harness import NotAvailableError

        try:
            find_node()
        except NotAvailableError as e:
            pytest.skip(str(e))
    for report in run(0, range(PROGRAMS[ways]), ways):
        assert not report.faults, report.text()
        assert report.compared > 0.9 * report.programs


@settings(max_examples=10)
@given(programs(steps=(1, 6)))
def test_a_program_is_what_its_source_says(program: Program) -> None:
    """The printed script makes the same arguments, and JAX runs it."""
    script = program.script().replace("jax.jit(program)(*args)", "jax.eval_shape(program, *args)")
    names: dict[str, Any] = {"print": lambda *_: None}
    before = jax.config.read("jax_enable_x64")
    try:
        with jax.enable_x64(program.x64):
            exec(script, names)
    finally:
        jax.config.update("jax_enable_x64", before)  # which the script sets
    last = program.arguments(len(program.calls) - 1)
    for actual, expected in zip(names["args"], last, strict=True):
        narrow = expected.dtype.kind == "V"  # NumPy does not know their NaN
        np.testing.assert_array_equal(
            actual.astype(np.float32) if narrow else actual,
            expected.astype(np.float32) if narrow else expected,
        )
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)


def test_a_number_of_a_seed_is_one_program() -> None:
    assert random_program(3, 5).script() == random_program(3, 5).script()
    assert random_program(3, 5).script() != random_program(3, 6).script()


def _replacing(old: str, new: str) -> Any:
    """Makes a way that runs another program."""

    def way(program: Program) -> Run:
        steps = tuple(
            dataclasses.replace(step, expression=step.expression.replace(old, new))
            for step in program.steps
        )
        return in_jax(dataclasses.replace(program, steps=steps))

    return way


def test_a_wrong_step_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAYS, "wrong", _replacing("jnp.sin", "jnp.cos"))
    (fault,) = judge(_PROGRAM, "wrong").faults
    assert fault.signature == "wrong: jnp.sin(float32): value for value"
    assert [step.expression for step in fault.program.steps] == ["jnp.sin(v0)"]


def test_steps_that_are_wrong_together_are_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def way(program: Program) -> Run:
        right = in_jax(program)
        together = {"jnp.sin", "jnp.floor"} <= {step.operation for step in program.steps}
        return lambda args: [result + together for result in right(args)]

    monkeypatch.setitem(WAYS, "wrong", way)
    (fault,) = judge(_PROGRAM, "wrong").faults
    assert fault.signature == "wrong: jnp.sin+jnp.floor(float32): value for value"


def test_rounding_that_a_step_enlarges_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    half = float(np.arcsin(1 / 3) / 2) * (1 + 2e-7)
    values = ({"x0": np.full(5, half, np.float32)},)
    program = dataclasses.replace(_PROGRAM, calls=({"b": 5},), values=values)
    monkeypatch.setitem(WAYS, "rounded", _replacing("jnp.sin(v0)", "jnp.sin(v0) * 0.999999"))
    verdict = judge(program, "rounded")
    assert not verdict.faults
    assert verdict.explained[ROUNDING] == 1


def test_a_refused_step_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def way(program: Program) -> Run:
        for number, step in enumerate(program.steps):
            if step.operation == "jnp.sin":
                source = f"program_0.py:{number + 3}"
                raise UnsupportedByTargetError("No sine.", operation="sine", source=source)
        return in_jax(program)

    monkeypatch.setitem(WAYS, "refusing", way)
    verdict = judge(_PROGRAM, "refusing")
    assert verdict.compared
    assert not verdict.faults
    assert list(verdict.refusals) == ["jnp.sin: UnsupportedByTargetError: No sine."]


def test_a_refusal_names_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def way(program: Program) -> Run:
        raise UnsupportedByTargetError("No.", operation="sine", source=None)

    monkeypatch.setitem(WAYS, "refusing", way)
    (fault,) = judge(_PROGRAM, "refusing").faults
    assert "refusal without a line" in fault.signature


def test_an_error_of_another_type_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def way(program: Program) -> Run:
        if any(step.operation == "jnp.floor" for step in program.steps):
            raise RuntimeError("raw")
        return in_jax(program)

    monkeypatch.setitem(WAYS, "crashing", way)
    (fault,) = judge(_PROGRAM, "crashing").faults
    assert fault.signature == "crashing: raised by jnp.floor: RuntimeError: raw"
    assert jnp.asarray(fault.program.arguments(0)[0]).shape == (5,)
