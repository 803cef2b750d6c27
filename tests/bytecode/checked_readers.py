"""Modules of each layout, and readers that use everything that they read."""

from __future__ import annotations

import functools
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax2tf_bridge as bridge
from jax2tf_bridge.bytecode import (
    Attribute,
    Block,
    DenseElements,
    ModuleSummary,
    Operation,
    OtherType,
    Program,
    TensorType,
    Unsupported,
    read_main_types,
    read_program,
    read_summary,
)
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.from_jax import jax_compat

T = TypeVar("T")


def at_version(artifact: bytes, version: str) -> bytes:
    """Rewrites a module for a StableHLO version."""
    with jax_compat.make_ir_context():
        return jax_compat.serialize_module(jax_compat.deserialize_module(artifact), version)


@functools.cache
def artifacts() -> tuple[bytes, ...]:
    """Modules at each layout that the format has had: with regions, calls, assertions, types."""

    def f(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return carry + jnp.sin(row), lax.top_k(row, 2)[0]

        carry, rows = lax.scan(step, jnp.zeros(4), x * jnp.arange(4.0))
        return jnp.where(np.array([True, False, True, True]), carry, 2), rows

    portable = bridge.export(f, polymorphic_shapes="(b, 4)", platforms=["cpu"])(jnp.ones((2, 4)))
    versions = ("0.9.0", "0.10.0", "0.12.0", "0.14.24", "1.13.1")
    modules = [at_version(portable.module.data, version) for version in versions]
    assert [artifact[4] >> 1 for artifact in modules] == [0, 1, 3, 4, 6]
    return tuple(modules)


def operations_of(block: Block) -> Iterator[Operation]:
    """Yields the operations of a block, and those of the regions in it."""
    for op in block.operations:
        yield op
        for inner in op.regions:
            yield from operations_of(inner)


def call_texts(data: bytes) -> list[dict[str, str]]:
    """Reads the texts of each custom call by name, and those in its dictionaries."""
    calls: list[dict[str, str]] = []
    for function in read_program(data).functions.values():
        for op in operations_of(function.body):
            if op.name == "custom_call":
                calls.append({})
                for name, value in op.attributes.items():
                    if isinstance(value, str) and name != "api_version":  # an enum
                        calls[-1][name] = value
                    for inner, text in value.items() if isinstance(value, Mapping) else ():
                        if isinstance(text, str):
                            calls[-1][f"{name}.{inner}"] = text
    return calls


def look_at(value: Attribute) -> None:
    """Uses a value as readers of trees do."""
    if isinstance(value, tuple | Mapping):
        for inner in value.values() if isinstance(value, Mapping) else value:
            look_at(inner)
    elif isinstance(value, DenseElements):
        try:
            array = value.array()
        except FileFormatError:
            return
        assert array.shape == value.type.shape
        assert (
            array.size < 2
            or array.strides == (0,) * array.ndim
            or array.size <= 8 * (value.data.nbytes)
        )
    else:
        assert isinstance(value, bool | int | float | str | TensorType | OtherType | Unsupported)


def summarize_checked(data: bytes) -> ModuleSummary | None:
    """Reads the summary and all of its fields; returns None after FileFormatError."""
    try:
        types = read_main_types(data)
        summary = read_summary(data)
    except FileFormatError:
        return None
    assert types == (summary.inputs, summary.outputs)
    return summary


def read_checked(data: bytes) -> Program | None:
    """Reads a tree and all of its parts; returns None after FileFormatError."""
    try:
        program = read_program(data)
    except FileFormatError:
        return None
    seen: set[int] = set()
    for function in program.functions.values():
        assert function.body.returned is function.body.operations[-1].operands
        for op in operations_of(function.body):
            assert op.source is None or ":" in op.source
            if id(op.attributes) not in seen:
                seen.add(id(op.attributes))
                look_at(op.attributes)
            for value in (*op.operands, *op.results):
                assert isinstance(value.type, TensorType | OtherType)
    return program


def read_bounded(
    read: Callable[[bytes], T], data: bytes, megabytes: float, seconds: float = 20
) -> T:
    """Reads data, and fails if that takes more memory or far more time than it should."""
    tracemalloc.start()
    try:
        began = time.process_time()
        result = read(data)
        assert time.process_time() - began < seconds
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1e6
    finally:
        tracemalloc.stop()
    return result
