"""Writes MLIR bytecode by hand, for modules that MLIR itself would not write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


def varint(value: int) -> bytes:
    """Writes a number as MLIR does: the zero bits at the low end count the bytes to come."""
    for size in range(1, 9):
        if value < 1 << 7 * size:
            return (value << size | 1 << size - 1).to_bytes(size, "little")
    return b"\0" + value.to_bytes(8, "little")


def varints(*values: int) -> bytes:
    return b"".join(map(varint, values))


HUGE = (1 << 64) - 1


def section(number: int, data: bytes) -> bytes:
    return bytes([number]) + varint(len(data)) + data


@dataclass
class Module:
    """A module written by hand, at version 6 of MLIR's bytecode.

    Its attributes and types are all of VHLO; the body is the operations in the module.
    """

    strings: list[str] = field(default_factory=list)
    operation_names: list[str] = field(default_factory=list)
    attributes: list[bytes] = field(default_factory=list)
    types: list[bytes] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)

    def string(self, text: str) -> int:
        self.strings.append(text)
        return len(self.strings) - 1

    def attribute(self, code: int, *values: int, data: bytes = b"") -> int:
        self.attributes.append(varints(code, *values) + data)
        return len(self.attributes) - 1

    def text(self, text: str) -> int:
        return self.attribute(14, self.string(text))

    def type(self, code: int, *values: int) -> int:
        self.types.append(varints(code, *values))
        return len(self.types) - 1

    def property(self, *values: int) -> int:
        self.properties.append(varints(*values))
        return len(self.properties) - 1

    def operation(self, name: str, *, properties: int | None = None, regions: bytes = b"") -> bytes:
        if name not in self.operation_names:
            self.operation_names.append(name)
        mask = 64 * (properties is not None) | 16 * bool(regions)
        index = self.operation_names.index(name)
        values = () if properties is None else (properties,)
        return varint(index) + bytes([mask]) + varints(0, *values) + regions

    def function(self, name: str, inputs: Sequence[int], outputs: Sequence[int] = ()) -> bytes:
        kind = self.type(8, len(inputs), *inputs, len(outputs), *outputs)
        empty = self.attribute(1, 0)
        properties = self.property(
            *(empty, self.attribute(17, kind), empty, self.text(name), self.text("public"))
        )
        return self.operation("func_v1", properties=properties)

    def constant(self, attribute: int) -> bytes:
        return self.operation("constant_v1", properties=self.property(attribute))

    def custom_call(self, name: int, attributes: int | None = None) -> bytes:
        other = self.attribute(2, 0)
        properties = self.property(other, other, name, *(other for _ in range(5)))
        call = self.operation("custom_call_v1", properties=properties)
        if attributes is None:
            return call
        at = len(varint(self.operation_names.index("custom_call_v1")))
        mask = bytes([call[at] | 1])
        return call[:at] + mask + varints(0, attributes, properties)

    def build(self, body: bytes | None = None) -> bytes:
        """Builds the module around `body`, which has its only region, with its block."""
        inner = varints(1, 0, len(self.body) << 1) + b"".join(self.body) if body is None else body
        regions = section(4, inner)
        names = ["module", *self.operation_names]
        # The module is the last of the operations' names, of a dialect of its own.
        root = varint(len(self.operation_names)) + bytes([16]) + varints(0, 1 << 1 | 1)
        table = [*self.strings, *names[1:], "vhlo", "builtin", "module"]
        first_name, n = len(self.strings), len(self.operation_names)
        encoded = [text.encode() + b"\0" for text in table]
        strings = varints(len(table), *(len(e) for e in reversed(encoded))) + b"".join(encoded)
        dialects = varints(2, (first_name + n) << 1, (first_name + n + 1) << 1, n + 1)
        dialects += varints(0, n, *((first_name + i) << 1 for i in range(n))) if n else b""
        dialects += varints(1, 1, (first_name + n + 2) << 1)
        offsets = varints(len(self.attributes), len(self.types))
        for entries in (self.attributes, self.types):
            if entries:
                offsets += varints(0, len(entries), *(len(e) << 1 | 1 for e in entries))
        properties = varint(len(self.properties))
        properties += b"".join(varint(len(p)) + p for p in self.properties)
        return (
            b"ML\xefR\x0dStableHLO_v1.13.0\0"
            + section(1, dialects)
            + section(2, b"".join(self.attributes + self.types))
            + section(3, offsets)
            + section(4, varint(1 << 1) + root + regions)
            + section(8, properties)
            + section(0, strings)
        )
