"""Bytes from anywhere: a whole tree or FileFormatError, in bounded time and memory."""

from __future__ import annotations

import mmap
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest

from jax2tf_bridge.bytecode import (
    DenseElements,
    OtherType,
    Unsupported,
    read_program,
)
from jax2tf_bridge.errors import FileFormatError
from tests.bytecode.checked_readers import read_bounded, read_checked
from tests.serialization.bytecode_by_hand import HUGE, Module, varint, varints

RESULTS, OPERANDS, REGIONS, PROPERTIES = 2, 4, 16, 64


@dataclass
class Body(Module):
    """A module with a single function, main, of handwritten operations."""

    def __post_init__(self) -> None:
        self.text("for locations")
        self.f32 = self.type(4)

    def op(
        self, name: str, results: tuple[int, ...] = (), operands: tuple[int, ...] = (),
        properties: int | None = None, regions: bytes = b"",
    ) -> bytes:  # fmt: skip
        if name not in self.operation_names:
            self.operation_names.append(name)
        mask = RESULTS * bool(results) | OPERANDS * bool(operands) | REGIONS * bool(regions)
        data = varint(self.operation_names.index(name))
        data += bytes([mask | PROPERTIES * (properties is not None)]) + varints(0)
        data += b"" if properties is None else varint(properties)
        data += varints(len(results), *results) if results else b""
        data += varints(len(operands), *operands) if operands else b""
        return data + regions

    def region(self, n_values: int, *operations: bytes) -> bytes:
        return varints(1, n_values, len(operations) << 1) + b"".join(operations)

    def main(self, *operations: bytes, n_values: int = 0, returned: tuple[int, ...] = ()) -> bytes:
        ends = self.op("return_v1", operands=returned)
        function = self.function("main", [])
        at = len(varint(self.operation_names.index("func_v1")))
        function = function[:at] + bytes([function[at] | REGIONS]) + function[at + 1 :]
        self.body = [function + varint(1 << 1) + self.region(n_values, *operations, ends)]
        return self.build()


def test_module_written_by_hand() -> None:
    body = Body()
    made = body.op("create_token_v1", (body.f32,))
    program = read_checked(body.main(made, made, n_values=2, returned=(1, 0)))
    assert program is not None
    first, second, end = program.main.body.operations
    assert first.name == "create_token"
    assert end.operands == (second.results[0], first.results[0])
    assert program.main.body.returned == end.operands
    assert first.results[0].type == OtherType("f32")
    with pytest.raises(FileFormatError, match="is of type f32, where a tensor is expected"):
        _ = first.results[0].tensor


def test_values_that_are_not_there() -> None:
    body = Body()
    made, used = body.op("create_token_v1", (body.f32,)), body.op("abs_v1", (body.f32,), (1,))
    with pytest.raises(FileFormatError, match="value 1 is used before it is defined"):
        read_program(body.main(used, made, n_values=2))
    body = Body()
    inner = body.region(1, made, body.op("return_v1"))
    data = body.main(body.op("case_v1", regions=varint(1 << 1) + inner), returned=(0,))
    with pytest.raises(FileFormatError, match="value 0 is used before it is defined"):
        read_program(data)
    body = Body()
    with pytest.raises(FileFormatError, match="has more values than it announces"):
        read_program(body.main(body.op("create_token_v1", (body.f32,)), n_values=0))


def test_numbers_of_values_in_regions() -> None:
    body = Body()
    made, back = body.op("create_token_v1", (body.f32,)), body.op("return_v1", operands=(3, 0))
    regions = varint(2 << 1) + body.region(2, made, back) + body.region(1, made, back)
    after = body.op("create_token_v1", (body.f32,))
    # The function reserves 0 to 2; each region goes on from there.
    program = read_checked(
        body.main(
            *(made, body.op("case_v1", (body.f32,), (0,), regions=regions), after),
            n_values=3,
            returned=(2, 1),
        )
    )
    assert program is not None
    first, case, last, end = program.main.body.operations
    assert [region.returned[1] for region in case.regions] == [first.results[0]] * 2
    for region in case.regions:
        assert region.returned[0] is region.operations[0].results[0]
    assert end.operands == (last.results[0], case.results[0])


def nested(depth: int) -> bytes:
    body = Body()
    end = body.op("return_v1")
    inner = body.region(0, end)
    for _ in range(depth):
        inner = body.region(0, body.op("case_v1", regions=varint(1 << 1) + inner), end)
    return body.main(body.op("case_v1", regions=varint(1 << 1) + inner))


def test_accuracy_within_itself() -> None:
    body = Body()
    accuracy = body.attribute(20, 0, 0, 0, len(body.attributes))
    data = body.main(body.op("tanh_v2", properties=body.property(accuracy)))
    with pytest.raises(FileFormatError, match="the mode of an accuracy is an accuracy"):
        read_program(data)


def test_nested_regions() -> None:
    assert read_bounded(read_checked, nested(50), 1) is not None
    for depth in (70, 1000):
        data = nested(depth)
        assert read_bounded(read_checked, data, 5) is None
        with pytest.raises(FileFormatError, match="nested more than 64 deep"):
            read_program(data)


def test_regions_that_announce_many_values() -> None:
    body = Body()
    inner = body.region(0, body.op("return_v1"))
    for _ in range(50):
        inner = body.region(HUGE, body.op("case_v1", regions=varint(1 << 1) + inner),
                            body.op("return_v1"))  # fmt: skip
    data = body.main(body.op("case_v1", regions=varint(1 << 1) + inner))
    assert read_bounded(read_checked, data, 1) is not None


def test_regions_of_another_form() -> None:
    body = Body()
    two = varints(2, 0, 1 << 1) + body.op("return_v1") + varint(1 << 1) + body.op("return_v1")
    with pytest.raises(FileFormatError, match="a region has 2 blocks, and one is expected"):
        read_program(body.main(body.op("case_v1", regions=varint(1 << 1) + two)))
    body = Body()
    empty = body.op("case_v1", regions=varints(1 << 1, 1, 0, 0))
    with pytest.raises(FileFormatError, match="region of case ends with nothing instead of return"):
        read_program(body.main(empty))
    body = Body()
    without = body.op("case_v1", regions=varints(1 << 1, 0))
    program = read_checked(body.main(without))
    assert program is not None
    assert program.main.body.operations[0].regions == ()


def test_operations_that_are_not_known() -> None:
    body = Body()
    with pytest.raises(FileFormatError, match=r"operation vhlo\.add_v9 is unknown to this"):
        read_program(body.main(body.op("add_v9", properties=body.property(1))))


def with_attribute(body: Body, attribute: int) -> bytes:
    return body.main(body.op("reverse_v1", properties=body.property(attribute)))


def test_attributes_that_hold_themselves() -> None:
    body = Body()
    itself = len(body.attributes)
    assert body.attribute(1, 1, itself) == itself
    with pytest.raises(FileFormatError, match="attributes are nested more than 50 deep"):
        read_program(with_attribute(body, itself))
    body = Body()
    key, itself = body.text("k"), len(body.attributes)
    assert body.attribute(6, 1, key, itself) == itself
    with pytest.raises(FileFormatError, match="attributes are nested more than 50 deep"):
        read_program(with_attribute(body, itself))


def test_attributes_that_double() -> None:
    body = Body()
    value = body.text("x")
    for _ in range(40):
        value = body.attribute(1, 2, value, value)
    data = with_attribute(body, value)
    assert read_bounded(read_checked, data, 1) is None
    with pytest.raises(
        FileFormatError, match="expands to more than a module of this size may hold"
    ):
        read_program(data)


def test_dictionary_that_is_shared() -> None:
    body = Body()
    keys = [body.text(f"k{i}") for i in range(5_000)]
    large = body.attribute(6, len(keys), *(i for key in keys for i in (key, keys[0])))
    op = body.op("abs_v1")
    at = len(varint(body.operation_names.index("abs_v1")))
    op = op[:at] + bytes([1]) + varints(0, large)
    data = body.main(*[op] * 3000)
    assert read_bounded(read_checked, data, 60) is None
    with pytest.raises(FileFormatError, match="dictionaries have more entries together"):
        read_program(data)


@pytest.mark.parametrize(
    ("sizes", "n_bytes", "message"),
    [
        ((3,), 11, "which has 11 bytes"),
        ((3,), 0, "which has 0 bytes"),
        ((HUGE >> 2,) * 4, 4, "larger than an array can be"),
        ((2,) * 40, 4, "more axes than an array can have"),
        (((1 << 64) - 1,), 4, "sizes are not all known"),
    ],
)
def test_constants_of_another_size(sizes: tuple[int, ...], n_bytes: int, message: str) -> None:
    body = Body()
    # The lowest bit of a signed number is the sign.
    numbers = [size if size == HUGE else size << 1 for size in sizes]
    tensor = body.type(20, len(sizes), *numbers, body.f32)
    value = body.attribute(15, tensor, n_bytes, data=bytes(n_bytes))
    program = read_checked(body.main(body.op("constant_v1", (tensor,), (), body.property(value)),
                             n_values=1))  # fmt: skip
    assert program is not None
    found = program.main.body.operations[0].attributes["value"]
    assert isinstance(found, DenseElements)
    with pytest.raises(FileFormatError, match=message):
        found.array()


def test_negative_size() -> None:
    body = Body()
    tensor = body.type(20, 2, 4, 5, body.f32)
    with pytest.raises(FileFormatError, match="a tensor has the size -3"):
        read_program(body.main(body.op("create_token_v1", (tensor,)), n_values=1))


def test_kinds_of_attributes_that_are_not_known() -> None:
    body = Body()
    data = with_attribute(body, body.attribute(99, 1, 2, 3))
    program = read_checked(data)
    assert program is not None
    value = program.main.body.operations[0].attributes["dimensions"]
    assert value == Unsupported("attribute 99 of vhlo")
    body = Body()
    program = read_checked(with_attribute(body, body.attribute(3, 77)))
    assert program is not None
    value = program.main.body.operations[0].attributes["dimensions"]
    assert value == Unsupported("variant 77 of attribute 3 of vhlo")


def test_long_shape_that_is_shared() -> None:
    body = Body()
    tensor = body.type(20, 20_000, *[2] * 20_000, body.f32)
    named = [body.attribute(17, tensor) for _ in range(2_000)]
    data = with_attribute(body, body.attribute(1, len(named), *named))
    assert read_bounded(read_checked, data, 20) is None


def test_large_constant_is_not_read() -> None:
    body = Body()
    size = 50_000_000
    vector = body.type(20, 1, (size // 4) << 1, body.f32)
    value = body.attribute(15, vector, size, data=bytes(size))
    op = body.op("constant_v1", (vector,), (), body.property(value))
    data = body.main(op, n_values=1)
    tracemalloc.start()
    try:
        program = read_program(data)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    found = program.main.body.operations[0].attributes["value"]
    assert isinstance(found, DenseElements)
    assert found.array().nbytes == size


def test_mapped_file_can_be_closed_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "module"
    body = Body()
    vector = body.type(20, 1, 6, body.f32)
    value = body.attribute(15, vector, 12, data=bytes(12))
    constant = body.op("constant_v1", (vector,), (), body.property(value))
    path.write_bytes(body.main(constant, body.op("add_v9", properties=0), n_values=1))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with pytest.raises(FileFormatError) as info:
        read_program(mapped)
    mapped.close()
    assert "cannot be read" in str(info.value)
