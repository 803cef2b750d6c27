"""Bytes from anywhere: a summary or FileFormatError, in bounded time and memory."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jax2tf_bridge.bytecode import read_main_types, read_summary

# Private: numbers are read without a module around them.
from jax2tf_bridge.bytecode._layout import Cursor
from jax2tf_bridge.errors import FileFormatError
from tests.bytecode.checked_readers import artifacts, read_bounded, summarize_checked
from tests.sampling import examples
from tests.serialization.bytecode_by_hand import HUGE, Module, varint, varints


def test_varints_of_the_tests_are_what_is_read() -> None:
    for value in (0, 1, 127, 128, 1 << 14, (1 << 56) - 1, 1 << 56, HUGE):
        assert Cursor(varint(value), "a test").varint() == value


def test_module_written_by_hand() -> None:
    module = Module()
    f32 = module.type(4)
    vector = module.type(20, 1, 3 << 1, f32)
    value = module.attribute(15, vector, 12, data=bytes(12))
    module.body += [module.function("main", [vector], [vector, vector]), module.constant(value)]
    module.body += [module.custom_call(module.text("a_call"))]
    summary = summarize_checked(module.build())
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
        (b"", r"not MLIR bytecode.*Got: b''"),
        (b"ML\xef", r"not MLIR bytecode.*Got: b'ML\\xef'"),
        (b"module {\n}", r"not MLIR bytecode.*Got: b'modu'"),
        (b"ML\xefR", "in its header, at byte 4, the data ends where a number was expected"),
        (b"ML\xefR\x0d", "the producer's name has no end"),
        (
            b"ML\xefR\x0fStableHLO_v9.0.0\0",
            "version of MLIR bytecode is 7, and 0 to 6 are supported",
        ),
        (b"ML\xefR\x0dStableHLO_v1.0.0\0", "sections are missing: strings, dialects"),
        (b"ML\xefR\x0dx\0\x13\x01", "section 19 is unknown"),
        (b"ML\xefR\x0dx\0\x00\x05\x01", "of 2 bytes, but only 1 bytes are left"),
        (b"ML\xefR\x0dx\0\x80\x01\x07", "alignment 3 is not a power of two"),
    ],
)
def test_messages(data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_summary(data)


@settings(max_examples=examples(50), deadline=None)
@given(st.binary(max_size=200))
@example(b"\x0d")
def test_random_after_the_magic(data: bytes) -> None:
    assert summarize_checked(b"ML\xefR" + data) is None


def _tuples(module: Module, depth: int) -> int:
    index = module.type(4)
    for _ in range(depth):
        index = module.type(23, 2, index, index)
    return index


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (lambda m: _tuples(m, 45), "types of more text than a module of this size may have"),
        (lambda m: _tuples(m, 60), "nested more than 50 deep"),
        (lambda m: m.type(1, len(m.types)), "nested more than 50 deep"),
        (lambda m: m.type(1, 99), "it refers to type 99, but the table has 2 entries"),
        (lambda m: m.type(23, HUGE), f"it declares {HUGE} types"),
        (lambda m: m.type(4, 0), "1 bytes are left over"),
        (lambda m: m.type(77), "unknown types: type 77 of vhlo"),
        (lambda m: m.type(21, m.attribute(3, 0), 0, m.type(4)), "the encoding 3 of vhlo"),
    ],
)
def test_types_of_main(types: Callable[[Module], int], message: str) -> None:
    module = Module()
    module.body.append(module.function("main", [types(module)]))
    data = module.build()
    assert read_bounded(summarize_checked, data, 1) is None
    with pytest.raises(FileFormatError, match=message):
        read_summary(data)


def test_mains_that_are_none() -> None:
    module = Module()
    module.body.append(module.function("helper", []))
    with pytest.raises(FileFormatError, match="it has 0 functions named main, not one"):
        read_summary(module.build())
    module.body += [module.function("main", []), module.function("main", [module.type(4)])]
    with pytest.raises(FileFormatError, match="it has 2 functions named main"):
        read_main_types(module.build())
    newer = Module()
    newer.body.append(newer.operation("func_v2", properties=newer.property(1)))
    with pytest.raises(FileFormatError, match=r"not one \(unknown: vhlo\.func_v2\)"):
        read_summary(newer.build())


def test_main_of_a_module_within_is_not_main() -> None:
    module = Module()
    inner = module.function("main", [module.type(4)])
    nested = varints(1) + varints(1, 0, 1 << 1) + inner
    module.body = [module.operation("block_v1", regions=varint(1 << 1) + nested[1:])]
    with pytest.raises(FileFormatError, match="it has 0 functions named main"):
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
    summary = summarize_checked(module.build())
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
    summary = read_bounded(summarize_checked, module.build(body), 10)
    assert summary is not None
    assert summary.operations["stablehlo.while"] == depth + 1


def test_long_string_that_is_shared() -> None:
    module = Module()
    module.body.append(module.function("main", []))
    long = module.string("x" * 1_000_000)
    module.body += [module.custom_call(module.attribute(14, long)) for _ in range(1000)]
    summary = read_bounded(summarize_checked, module.build(), 20)
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
    assert read_bounded(summarize_checked, data, 60) is None
    with pytest.raises(FileFormatError, match="dictionaries have more entries together"):
        read_summary(data)


def test_dictionary_that_holds_itself() -> None:
    module = Module()
    name, key = module.text("f"), module.text("k")
    itself = len(module.attributes)
    assert module.attribute(6, 1, key, itself) == itself
    module.body = [module.function("main", []), module.custom_call(name, itself)]
    summary = summarize_checked(module.build())
    assert summary is not None
    assert summary.custom_calls == {"f": 1}


def test_large_constant_is_notsummarize_checked() -> None:
    module = Module()
    size = 50_000_000
    f32 = module.type(4)
    vector = module.type(20, 1, (size // 4) << 1, f32)
    value = module.attribute(15, vector, size, data=bytes(size))
    module.body += [module.function("main", [vector]), module.constant(value)]
    data = module.build()
    # A copy alone would take 50 MB, and the time of reading a byte in Python is far above this.
    summary = read_bounded(summarize_checked, data, 0.2, seconds=0.5)
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
