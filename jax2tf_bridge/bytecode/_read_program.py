"""Reads a whole StableHLO module into a tree, without MLIR.

The module may come from anywhere: every length and index is checked, and time and memory are
bounded by the size of the module. Constants are not copied.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from jax2tf_bridge.bytecode import _operations as ops
from jax2tf_bridge.bytecode._attributes import Attributes, Dictionary
from jax2tf_bridge.bytecode._cursor import Cursor
from jax2tf_bridge.bytecode._layout import read_layout
from jax2tf_bridge.bytecode._operations import Locations
from jax2tf_bridge.bytecode._program import (
    Attribute,
    Block,
    Function,
    Operation,
    Program,
    Unsupported,
    Value,
)
from jax2tf_bridge.bytecode._types import Types
from jax2tf_bridge.bytecode._values import Values
from jax2tf_bridge.bytecode._vhlo import PROPERTIES, plain_name
from jax2tf_bridge.errors import FileFormatError

Data: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

_MAX_DEPTH = 64
"""Maximum nesting depth of regions; limited because users of the tree walk it recursively."""

# Shared parts of a module are small in the file but large when expanded, so the expanded size is
# limited, to more than any real module needs.
_SMALL = 1 << 12
_CHARACTERS_PER_BYTE = 32
_ENTRIES_PER_BYTE = 4

_NO_ATTRIBUTES: Mapping[str, Attribute] = MappingProxyType({})


def read_program(data: Data) -> Program:
    """Reads a portable artifact as a tree of operations.

    Constants are views into `data`, which must not change.

    Raises:
      FileFormatError: the data is not a portable artifact, is damaged, or has unknown contents.
    """
    with memoryview(data) as view:
        flat = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        with flat, flat.toreadonly() as readonly:
            try:
                return _ProgramReader(readonly).program()
            except FileFormatError as e:
                # The traceback's frames hold views, and a mapped file with views cannot be closed.
                raise e.with_traceback(None) from None
            except IndexError:
                raise FileFormatError(
                    "The StableHLO module cannot be read: its section of operations ends within "
                    "an operation. Write the file again."
                ) from None


class _ValueScope:
    """The values that operations can use: those of the enclosing regions, up to a function.

    Each region reserves a number for each of its values, after those of the enclosing region.
    """

    def __init__(self) -> None:
        self.values: dict[int, Value] = {}
        self.size = 0


class _Region:
    """The value numbers of one region."""

    def __init__(self, scope: _ValueScope, n_values: int, cursor: Cursor) -> None:
        self.scope, self._cursor = scope, cursor
        self._first = self._next = scope.size
        scope.size = self._end = scope.size + n_values

    def define(self, values: tuple[Value, ...]) -> None:
        """Assigns the next numbers to values."""
        number = self._next
        self._next = end = number + len(values)
        if end > self._end:
            self._cursor.fail("a region has more values than it announces")
        known = self.scope.values
        for value in values:
            known[number] = value
            number += 1

    def close(self) -> None:
        """Frees the numbers."""
        for number in range(self._first, self._next):
            del self.scope.values[number]
        self.scope.size = self._first


class _ProgramReader:
    def __init__(self, view: memoryview) -> None:
        self._layout = layout = read_layout(view)
        self._cursor, self._version = layout.operations, layout.version
        longest = _SMALL + _CHARACTERS_PER_BYTE * len(view)
        self._attributes = Attributes(layout.attributes, layout.strings, len(layout.types))
        types = Types(layout.types, layout.attributes, longest)
        self._values = Values(layout.attributes, self._attributes, types, layout.types, longest)
        self._locations = Locations(layout.attributes, self._attributes, longest)
        self._names = [plain_name(name) or name for name in layout.operation_names]
        self._held: dict[tuple[int, int], Mapping[str, Attribute]] = {}
        self._entries_left = _SMALL + _ENTRIES_PER_BYTE * len(view)

    def program(self) -> Program:
        cursor = self._cursor
        n_operations, has_arguments = cursor.read_flagged()
        if n_operations != 1 or has_arguments:
            cursor.fail(f"{n_operations} operations stand in the place of one module")
        outermost = _Region(_ValueScope(), 0, cursor)
        module = self._operation(outermost, 0)
        cursor.check_finished()
        if module.name != ops.MODULE:
            cursor.fail("the outermost operation is no module")
        functions: dict[str, Function] = {}
        for block in module.regions:
            for op in block.operations:
                if op.name != "func":
                    continue
                function = self._function(op)
                if function.name in functions:
                    cursor.fail(f"there are two functions {function.name[:100]!r}")
                functions[function.name] = function
        if "main" not in functions:
            cursor.fail("it has no function main")
        return Program(MappingProxyType(functions))

    def _function(self, op: Operation) -> Function:
        name = op.text("sym_name")
        if len(op.regions) != 1:
            self._cursor.fail(f"the function {name[:100]!r} has no body")
        return Function(name, op.regions[0], op.attributes)

    def _operation(self, region: _Region, depth: int) -> Operation:
        cursor = self._cursor
        name = cursor.index("operation", len(self._names))
        mask = cursor.byte()
        if mask & ~ops.ALL or mask & ops.SUCCESSORS:
            cursor.fail(f"an operation has parts {mask:#x} that are not known")
        location = cursor.varint()
        attributes = cursor.varint() if mask & ops.ATTRIBUTES else None
        properties = cursor.varint() if mask & ops.PROPERTIES else None
        results: tuple[Value, ...] = ()
        if mask & ops.RESULTS:
            n_results = cursor.count("results")
            results = tuple([Value(self._values.type(cursor.varint())) for _ in range(n_results)])
        operands: tuple[Value, ...] = ()
        if mask & ops.OPERANDS:
            operands = self._operands(region)
        if mask & ops.USE_LISTS:
            ops.skip_use_lists(cursor, len(results))
        region.define(results)
        held = self._read_attributes(name, attributes, properties)
        regions: tuple[Block, ...] = ()
        if mask & ops.REGIONS:
            regions = self._regions(region, depth + 1, self._names[name])
        source = self._locations.source(location)
        return Operation(self._names[name], operands, results, held, regions, source)

    def _operands(self, region: _Region) -> tuple[Value, ...]:
        cursor, known = self._cursor, region.scope.values
        count = cursor.count("operands")
        try:
            return tuple([known[cursor.varint()] for _ in range(count)])
        except KeyError as e:
            cursor.fail(f"the value {e.args[0]} is used, which is not there yet")

    def _read_attributes(
        self, name: int, attributes: int | None, properties: int | None
    ) -> Mapping[str, Attribute]:
        """Reads an operation's attributes; operations with equal properties share them."""
        native = _NO_ATTRIBUTES if properties is None else self._native(name, properties)
        if attributes is None:
            return native
        dictionary = self._attributes.read(attributes)
        if not isinstance(dictionary, Dictionary):
            self._cursor.fail("an operation's attributes are no dictionary")
        # Many operations may share a large dictionary, so the total number of entries is limited.
        self._entries_left -= len(dictionary.entries) + len(native)
        if self._entries_left < 0:
            self._cursor.fail("dictionaries have more entries together than the module has bytes")
        merged = dict(native)
        for attribute, index in dictionary.entries:
            if attribute in merged:
                self._cursor.fail(f"an operation has two attributes {attribute[:100]!r}")
            merged[attribute] = self._values.read(index)
        return MappingProxyType(merged)

    def _native(self, name: int, properties: int) -> Mapping[str, Attribute]:
        held = self._held.get((name, properties))
        if held is None:
            held = self._held[name, properties] = self._read_native(name, properties)
        return held

    def _read_native(self, name: int, properties: int) -> Mapping[str, Attribute]:
        table, full = self._layout.properties, self._layout.operation_names[name]
        if properties >= len(table):
            self._cursor.fail(f"an operation names properties {properties} of {len(table)}")
        if full not in PROPERTIES:
            if plain_name(full) is None:
                return MappingProxyType({"properties": Unsupported(f"properties of {full}")})
            self._cursor.fail(f"the operation {full} is not known to this version")
        cursor = table[properties]
        values = {attribute: self._values.read(cursor.varint()) for attribute in PROPERTIES[full]}
        cursor.check_finished()
        return MappingProxyType(values)

    def _regions(self, around: _Region, depth: int, name: str) -> tuple[Block, ...]:
        """Reads the regions of an operation; empty regions are left out."""
        cursor = self._cursor
        if depth > _MAX_DEPTH:
            cursor.fail(f"regions are nested more than {_MAX_DEPTH} deep")
        count, isolated, section = ops.read_regions(cursor, self._version)
        scope = _ValueScope() if isolated else around.scope
        if section is not None:
            cursor.at = section.at
        if count > cursor.left:
            cursor.fail(f"{count} regions are announced, and {cursor.left} bytes are left")
        optional_blocks = [self._block(scope, depth) for _ in range(count)]
        blocks = tuple([block for block in optional_blocks if block is not None])
        if section is not None and section.end != cursor.at:
            cursor.fail("regions do not end where their section does")
        for block in blocks:
            # Operations of other dialects have their own terminators.
            last = block.operations[-1].name if block.operations else "nothing"
            if last != "return" and "." not in name:
                cursor.fail(f"a region of {name} ends with {last[:100]} instead of return")
        return blocks

    def _block(self, scope: _ValueScope, depth: int) -> Block | None:
        """Reads a region; VHLO's regions have one block."""
        cursor = self._cursor
        n_blocks = cursor.varint()
        if not n_blocks:
            return None
        if n_blocks > 1:
            cursor.fail(f"a region has {n_blocks} blocks, and one is expected")
        region = _Region(scope, cursor.varint(), cursor)
        n_operations, types = ops.read_block(cursor, self._version)
        arguments = tuple([Value(self._values.type(kind)) for kind in types])
        region.define(arguments)
        if n_operations > cursor.left:
            cursor.fail(f"{n_operations} operations are announced, {cursor.left} bytes are left")
        operations = tuple([self._operation(region, depth) for _ in range(n_operations)])
        region.close()
        return Block(arguments, operations)
