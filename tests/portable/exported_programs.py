"""Exports programs of the tables for the tests of what reads modules, each once in a process."""

from __future__ import annotations

import functools

import jax2tf_bridge as bridge
from tests.program_cases.record import Program
from tests.program_cases.reference import jax_arguments


@functools.cache
def portable_of(program: Program) -> bridge.PortableFunction:
    """Exports a program, of open sizes where it says so, for the CPU."""
    with program.precision():
        example = program.build()
        call = example.calls[0]
        return bridge.export(
            example.function,
            polymorphic_shapes=program.polymorphic_shapes,
            polymorphic_constraints=program.constraints,
            platforms=["cpu"],
        )(*jax_arguments(program, call), **call.kwargs)
