"""Bytes from anywhere: a summary or FileFormatError, in bounded time and memory."""

from __future__ import annotations

import functools
import mmap
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax

import jax2tf_bridge as bridge
from jax2tf_bridge.bytecode import ModuleSummary, read_main_types, read_summary
from jax2tf_bridge.bytecode._cursor import Cursor
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.from_jax import _jax_compat
from tests.sampling import examples, sampled, stride
from tests.serialization.bytecode_by_hand import HUGE, Module, varint, varints


@functools.cache
def artifacts() -> tuple[bytes, ...]:
    """Modules at each layout that the format has had: with regions, calls, assertions, types."""

    def f(x: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
        def step(carry: jnp.ndarray, row: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
            return carry + jnp.sin(row), lax.top_k(row, 2)[0]

        return lax.scan(step, jnp.zeros(4), x * jnp.arange(4.0))

    portable = bridge.export(f, polymorphic_shapes="(b, 4)", platforms=["cpu"])(jnp.ones((2, 4)))
    found = []
    for version in ("0.9.0", "0.10.0", "0.12.0", "0.14.24", "1.13.1"):
        with _jax_compat.make_ir_context():
            module = _jax_compat.deserialize_module(portable.module.data)
            found.append(_jax_compat.serialize_module(module, version))
    assert [artifact[4] >> 1 for artifact in found] == [0, 1, 3, 4, 6]
    return tuple(found)


def _read(data: bytes) -> ModuleSummary | None:
    """The summary, with all that can be asked of it; None after FileFormatError."""
    try:
        types = read_main_types(data)
        summary = read_summary(data)
    except FileFormatError:
        return None
    assert types == (summary.inputs, summary.outputs)
    assert len(summary.strings()) <= len(data)
    for name in summary.custom_calls:
        assert summary.custom_call_attributes(name)
    return summary


def test_varints_of_the_tests_are_what_is_read() -> None:
    for value in (0, 1, 127, 128, 1 << 14, (1 << 56) - 1, 1 << 56, HUGE):
        assert Cursor(varint(value), "a test").varint() == value


def _bounded(data: bytes, megabytes: float, seconds: float = 20) -> ModuleSummary | None:
    """Reads it, and fails where it takes more memory or far more time than it should."""
    tracemalloc.start()
    try:
        began = time.process_time()
        summary = _read(data)
        assert time.process_time() - began < seconds
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1e6
    finally:
        tracemalloc.stop()
    return summary


def test_module_written_by_hand() -> None:
    module = Module()
    f32 = module.type(4)
    vector = module.type(20, 1, 3 << 1, f32)
    value = module.attribute(15, vector, 12, data=bytes(12))
    module.body += [module.function("main", [vector], [vector, vector]), module.constant(value)]
    module.body += [module.custom_call(module.text("a_call"))]
    summary = _read(module.build())
    assert summary is not None
    assert summary.inputs == ("tensor<3xf32>",)
    assert summary.outputs == ("tensor<3xf32>", "tensor<3xf32>")
    assert summary.constant_bytes == 12
    assert summary.custom_calls == {"a_call": 1}
    assert summary.operations == {
        "func.func": 1,
        "stablehlo.constant": 1,
        "stablehlo.custom_call": 1,
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"no MLIR bytecode.*Got: b''"),
        (b"ML\xef", r"no MLIR bytecode.*Got: b'ML\\xef'"),
        (b"module {\n}", r"no MLIR bytecode.*Got: b'modu'"),
        (b"ML\xefR", "in its header, at byte 4, the data ends where a number was expected"),
        (b"ML\xefR\x0d", "the name of what wrote it does not end"),
        (b"ML\xefR\x0fStableHLO_v9.0.0\0", "version of MLIR bytecode is 7, and 0 to 6 are known"),
        (b"ML\xefR\x0dStableHLO_v1.0.0\0", "sections are missing: strings, dialects"),
        (b"ML\xefR\x0dx\0\x13\x01", "section 19 is not known"),
        (b"ML\xefR\x0dx\0\x00\x05\x01", "2 bytes is announced, and 1 bytes are left"),
        (b"ML\xefR\x0dx\0\x80\x01\x07", "alignment 3 is no power of two"),
    ],
)
def test_messages(data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_summary(data)


# The oldest and the newest layout in every run.
LAYOUTS = sampled(range(5), every=4)


@pytest.mark.parametrize("version", LAYOUTS)
def test_truncated_anywhere(version: int) -> None:
    artifact = artifacts()[version]
    assert _read(artifact) is not None
    for size in {*range(100), *range(100, len(artifact), stride(7)), len(artifact) - 1}:
        assert _read(artifact[:size]) is None


def test_bytes_changed() -> None:
    artifact = artifacts()[-1]
    read = 0
    places = range(0, len(artifact), stride(7))
    for i in places:
        changed = bytes([artifact[i] ^ 1 << i % 8])
        read += _read(artifact[:i] + changed + artifact[i + 1 :]) is not None
    assert len(places) // 4 < read < len(places)  # strings and locations may be anything


@pytest.mark.parametrize("version", LAYOUTS)
def test_numbers_made_huge(version: int) -> None:
    artifact = artifacts()[version]
    for i in {*range(5, 100), *range(100, len(artifact), stride(7))}:
        _read(artifact[:i] + varint(HUGE) + artifact[i + 1 :])


_change = st.tuples(st.integers(0, 1 << 20), st.integers(0, 8), st.binary(max_size=12))


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 4), st.lists(_change, min_size=1, max_size=6))
def test_mutated(which: int, changes: list[tuple[int, int, bytes]]) -> None:
    data = bytearray(artifacts()[which])
    for at, removed, added in changes:
        at %= len(data) + 1
        data[at : at + removed] = added
    _read(bytes(data))


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.floats(0, 1), st.floats(0, 1))
def test_spliced(left: int, right: int, end: float, start: float) -> None:
    first, second = artifacts()[left], artifacts()[right]
    _read(first[: int(end * len(first))] + second[int(start * len(second)) :])


@settings(max_examples=examples(50), deadline=None)
@given(st.binary(max_size=200))
@example(b"\x0d")
def test_random_after_the_magic(data: bytes) -> None:
    assert _read(b"ML\xefR" + data) is None


def _tuples(module: Module, depth: int) -> int:
    index = module.type(4)
    for _ in range(depth):
        index = module.type(23, 2, index, index)
    return index


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (lambda m: _tuples(m, 45), "types of more text than a module of this size can have"),
        (lambda m: _tuples(m, 60), "nested more than 50 deep"),
        (lambda m: m.type(1, len(m.types)), "nested more than 50 deep"),
        (lambda m: m.type(1, 99), "type 99 is named, of 2"),
        (lambda m: m.type(23, HUGE), f"{HUGE} types are announced"),
        (lambda m: m.type(4, 0), "1 bytes are left over"),
        (lambda m: m.type(77), "types that are not known: type 77 of vhlo"),
        (lambda m: m.type(21, m.attribute(3, 0), 0, m.type(4)), "the encoding 3 of vhlo"),
    ],
)
def test_types_of_main(types: Callable[[Module], int], message: str) -> None:
    module = Module()
    module.body.append(module.function("main", [types(module)]))
    data = module.build()
    assert _bounded(data, 1) is None
    with pytest.raises(FileFormatError, match=message):
        read_summary(data)


def test_mains_that_are_none() -> None:
    module = Module()
    module.body.append(module.function("helper", []))
    with pytest.raises(FileFormatError, match="it has 0 functions main, and one is expected"):
        read_summary(module.build())
    module.body += [module.function("main", []), module.function("main", [module.type(4)])]
    with pytest.raises(FileFormatError, match="it has 2 functions main"):
        read_main_types(module.build())
    newer = Module()
    newer.body.append(newer.operation("func_v2", properties=newer.property(1)))
    with pytest.raises(FileFormatError, match=r"one is expected \(not known: vhlo\.func_v2\)"):
        read_summary(newer.build())


def test_main_of_a_module_within_is_not_main() -> None:
    module = Module()
    inner = module.function("main", [module.type(4)])
    nested = varints(1) + varints(1, 0, 1 << 1) + inner
    module.body = [module.operation("block_v1", regions=varint(1 << 1) + nested[1:])]
    with pytest.raises(FileFormatError, match="it has 0 functions main"):
        read_summary(module.build())


def test_name_given_twice() -> None:
    module = Module()
    name = module.attribute(14, module.string("call_target_name"))
    module.body = [
        module.function("main", []),
        module.custom_call(name, module.attribute(6, 1, name, name)),
    ]
    with pytest.raises(FileFormatError, match="two attributes 'call_target_name'"):
        read_summary(module.build())


def test_what_is_not_known_is_passed_over() -> None:
    module = Module()
    unknown = module.type(77)
    value = module.attribute(15, unknown, 4, data=bytes(4))
    module.attribute(99, 1, 2, 3, data=bytes(100))
    module.body = [
        module.function("main", []),
        module.constant(value),
        module.constant(module.attributes.index(module.attributes[-1])),
        module.operation("custom_call_v9", properties=module.property(1, 2)),
        module.operation("no_version"),
    ]
    summary = _read(module.build())
    assert summary is not None
    assert summary.constant_bytes == 4
    assert summary.largest_constants[0].type == "unknown"
    assert summary.unknown == ("type 77 of vhlo", "vhlo.custom_call_v9")
    assert summary.operations["stablehlo.custom_call"] == 1
    assert summary.operations["vhlo.no_version"] == 1


def test_nested_without_end() -> None:
    module = Module()
    main = module.function("main", [])
    depth = 20_000
    nested = module.operation("while_v1", regions=varint(1 << 1)) + varints(1, 0, 1 << 1)
    body = varints(1, 0, 2 << 1) + main + nested * depth + module.operation("while_v1")
    summary = _bounded(module.build(body), 10)
    assert summary is not None
    assert summary.operations["stablehlo.while"] == depth + 1


def test_long_string_that_is_shared() -> None:
    module = Module()
    module.body.append(module.function("main", []))
    long = module.string("x" * 1_000_000)
    module.body += [module.custom_call(module.attribute(14, long)) for _ in range(1000)]
    summary = _bounded(module.build(), 20)
    assert summary is not None
    assert list(summary.custom_calls.values()) == [1000]


def test_long_name_that_is_shared() -> None:
    module = Module()
    module.body.append(module.function("main", []))
    module.operation("x" * 300 + "_v1")
    with pytest.raises(FileFormatError, match="a name has 303 characters"):
        read_summary(module.build())


def test_dictionary_that_is_shared() -> None:
    module = Module()
    module.body.append(module.function("main", []))
    name = module.text("f")
    keys = [module.text(f"k{i}") for i in range(5_000)]
    large = module.attribute(6, len(keys), *(i for key in keys for i in (key, name)))
    module.body += [module.custom_call(name, large) for _ in range(3000)]
    data = module.build()
    assert _bounded(data, 60) is None
    with pytest.raises(FileFormatError, match="dictionaries have more entries together"):
        read_summary(data)


def test_dictionary_that_holds_itself() -> None:
    module = Module()
    name, key = module.text("f"), module.text("k")
    itself = len(module.attributes)
    assert module.attribute(6, 1, key, itself) == itself
    module.body = [module.function("main", []), module.custom_call(name, itself)]
    summary = _read(module.build())
    assert summary is not None
    assert summary.custom_call_attributes("f") == [{"call_target_name": "f"}]


def test_large_constant_is_not_read() -> None:
    module = Module()
    size = 50_000_000
    f32 = module.type(4)
    vector = module.type(20, 1, (size // 4) << 1, f32)
    value = module.attribute(15, vector, size, data=bytes(size))
    module.body += [module.function("main", [vector]), module.constant(value)]
    data = module.build()
    # A copy alone would take 50 MB, and the time of reading a byte in Python is far above this.
    summary = _bounded(data, 0.2, seconds=0.5)
    assert summary is not None
    assert summary.constant_bytes == size


def test_mapped_file_can_be_closed_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "module"
    path.write_bytes(artifacts()[0][:-1])
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with pytest.raises(FileFormatError) as info:
        read_summary(mapped)
    mapped.close()
    assert "cannot be read" in str(info.value)
