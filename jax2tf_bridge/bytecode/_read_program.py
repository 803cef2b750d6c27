"""Reads a whole StableHLO module into a tree, without MLIR.

The module may come from anywhere: every length and index is checked, and time and memory are
bounded by the size of the module. Constants are not copied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from jax2tf_bridge.bytecode import _walk
from jax2tf_bridge.bytecode._attributes import Attributes, Dictionary, RawAttributes
from jax2tf_bridge.bytecode._layout import Cursor, Data, Layout, read_data, read_layout
from jax2tf_bridge.bytecode._program import (
    Attribute,
    Block,
    Function,
    Operation,
    Program,
    Unsupported,
    Value,
)
from jax2tf_bridge.bytecode._vhlo import PROPERTIES, find_stablehlo_name

_MAX_DEPTH = 64
"""Maximum nesting depth of regions; limited because users of the tree walk it recursively."""

_NO_ATTRIBUTES: Mapping[str, Attribute] = MappingProxyType({})


def read_program(data: Data) -> Program:
    """Reads a portable artifact as a tree of operations.

    Constants are views into `data`, which must not change.

    Raises:
      FileFormatError: the data is not a portable artifact, is damaged, or has unknown contents.
    """
    return read_data(data, lambda view: _ProgramReader(view).program())


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
        number = self._next
        self._next = end = number + len(values)
        if end > self._end:
            self._cursor.fail("a region has more values than it announces")
        known = self.scope.values
        for value in values:
            known[number] = value
            number += 1

    def close(self) -> None:
        for number in range(self._first, self._next):
            del self.scope.values[number]
        self.scope.size = self._first


# Codes of the builtin locations.
_CALL_SITE, _FILE, _FUSED, _FUSED_WITH, _NAME, _RANGE = 10, 11, 12, 13, 14, 22

_MAX_STEPS = 64
"""Maximum number of nested locations that are visited."""

_FILE_NAME = re.compile(r'[^"<>]+\.\w+')


class _Locations:
    """A reader of source lines; returns None after too many characters in total."""

    def __init__(self, layout: Layout, attributes: RawAttributes) -> None:
        self._table, self._attributes = layout.attributes, attributes
        self._characters_left = layout.max_characters
        self._known: dict[int, str | None] = {}
        self._files: dict[int, str | None] = {}
        self._places: dict[tuple[str, int], str | None] = {}

    def source(self, index: int) -> str | None:
        """Returns the innermost source line, such as "model.py:12"; None if there is none.

        Raises:
          FileFormatError: the index is out of range, or the attribute is truncated.
        """
        if index not in self._known:
            self._known[index] = self._find_source(index)
        return self._known[index]

    def _find_source(self, index: int) -> str | None:
        pending = [index]
        for _ in range(_MAX_STEPS):
            if not pending:
                break
            entry = self._table[pending.pop()]
            code, cursor = entry.code, entry.cursor
            if entry.dialect != "builtin":
                continue
            if code in (_FILE, _RANGE):
                file = self._read_file_name(cursor.varint())
                has_line = code == _FILE or cursor.varint() > 0
                if file is not None and has_line:
                    return self._format_line(file, cursor.varint())
            elif code == _NAME:
                cursor.varint()
                pending.append(cursor.varint())
            elif code == _CALL_SITE:
                callee, caller = cursor.varint(), cursor.varint()
                pending += [caller, callee]
            elif code in (_FUSED, _FUSED_WITH):
                count = min(cursor.count("locations"), _MAX_STEPS)
                pending += reversed([cursor.varint() for _ in range(count)])
        return None

    def _read_file_name(self, index: int) -> str | None:
        """Reads a name; returns None if it is not a file name."""
        if index not in self._files:
            name = self._attributes.string(index)
            is_file = name is not None and _FILE_NAME.fullmatch(name)
            self._files[index] = name if is_file else None
        return self._files[index]

    def _format_line(self, file: str, line: int) -> str | None:
        text = self._places.get((file, line))
        if text is None and len(file) < self._characters_left:
            text = self._places[file, line] = f"{file}:{line}"
            self._characters_left -= len(text)
        return text


class _ProgramReader:
    def __init__(self, view: memoryview) -> None:
        self._layout = layout = read_layout(view)
        self._cursor, self._version = layout.operations, layout.version
        self._raw_attributes = RawAttributes(layout)
        self._attributes = Attributes(layout, self._raw_attributes)
        self._locations = _Locations(layout, self._raw_attributes)
        self._names = [find_stablehlo_name(name) or name for name in layout.operation_names]
        self._native_attributes: dict[tuple[int, int], Mapping[str, Attribute]] = {}
        self._entries_left = layout.max_entries

    def program(self) -> Program:
        cursor = self._cursor
        n_operations, has_arguments = cursor.read_flagged()
        if n_operations != 1 or has_arguments:
            cursor.fail(f"there are {n_operations} operations where one module is expected")
        outermost = _Region(_ValueScope(), 0, cursor)
        module = self._read_operation(outermost, 0)
        cursor.check_finished()
        if module.name != _walk.MODULE:
            cursor.fail("the outermost operation is not a module")
        functions: dict[str, Function] = {}
        for block in module.regions:
            for op in block.operations:
                if op.name != "func":
                    continue
                function = self._read_function(op)
                if function.name in functions:
                    cursor.fail(f"there are two functions {function.name[:100]!r}")
                functions[function.name] = function
        if "main" not in functions:
            cursor.fail("it has no function main")
        return Program(MappingProxyType(functions))

    def _read_function(self, op: Operation) -> Function:
        name = op.text("sym_name")
        if len(op.regions) != 1:
            self._cursor.fail(f"the function {name[:100]!r} has no body")
        return Function(name, op.regions[0], op.attributes)

    def _read_operation(self, region: _Region, depth: int) -> Operation:
        cursor = self._cursor
        name = cursor.index("operation", len(self._names))
        mask = cursor.byte()
        if mask & ~_walk.ALL or mask & _walk.SUCCESSORS:
            cursor.fail(f"an operation has unknown parts ({mask:#x})")
        location = cursor.varint()
        attributes = cursor.varint() if mask & _walk.ATTRIBUTES else None
        properties = cursor.varint() if mask & _walk.PROPERTIES else None
        results: tuple[Value, ...] = ()
        if mask & _walk.RESULTS:
            n_results = cursor.count("results")
            results = tuple(
                [Value(self._attributes.type(cursor.varint())) for _ in range(n_results)]
            )
        operands: tuple[Value, ...] = ()
        if mask & _walk.OPERANDS:
            operands = self._read_operands(region)
        if mask & _walk.USE_LISTS:
            _walk.skip_use_lists(cursor, len(results))
        region.define(results)
        attributes_by_name = self._read_attributes(name, attributes, properties)
        regions: tuple[Block, ...] = ()
        if mask & _walk.REGIONS:
            regions = self._read_regions(region, depth + 1, self._names[name])
        source = self._locations.source(location)
        return Operation(self._names[name], operands, results, attributes_by_name, regions, source)

    def _read_operands(self, region: _Region) -> tuple[Value, ...]:
        cursor, known = self._cursor, region.scope.values
        count = cursor.count("operands")
        try:
            return tuple([known[cursor.varint()] for _ in range(count)])
        except KeyError as e:
            cursor.fail(f"the value {e.args[0]} is used before it is defined")

    def _read_attributes(
        self, name: int, attributes: int | None, properties: int | None
    ) -> Mapping[str, Attribute]:
        """Reads an operation's attributes; operations with equal properties share them."""
        native = _NO_ATTRIBUTES if properties is None else self._get_native(name, properties)
        if attributes is None:
            return native
        dictionary = self._raw_attributes.read(attributes)
        if not isinstance(dictionary, Dictionary):
            self._cursor.fail("an operation's attributes are not a dictionary")
        # Many operations may share a large dictionary, so the total number of entries is limited.
        self._entries_left -= len(dictionary.entries) + len(native)
        if self._entries_left < 0:
            self._cursor.fail("dictionaries have more entries together than the module has bytes")
        merged = dict(native)
        for attribute, index in dictionary.entries:
            if attribute in merged:
                self._cursor.fail(f"an operation has two attributes {attribute[:100]!r}")
            merged[attribute] = self._attributes.read(index)
        return MappingProxyType(merged)

    def _get_native(self, name: int, properties: int) -> Mapping[str, Attribute]:
        native = self._native_attributes.get((name, properties))
        if native is None:
            native = self._native_attributes[name, properties] = self._read_native(name, properties)
        return native

    def _read_native(self, name: int, properties: int) -> Mapping[str, Attribute]:
        table, full_name = self._layout.properties, self._layout.operation_names[name]
        if full_name not in PROPERTIES:
            if find_stablehlo_name(full_name) is None:
                return MappingProxyType({"properties": Unsupported(f"properties of {full_name}")})
            self._cursor.fail(f"the operation {full_name} is unknown to this version")
        cursor = table[properties]
        values = {
            attribute: self._attributes.read(cursor.varint()) for attribute in PROPERTIES[full_name]
        }
        cursor.check_finished()
        return MappingProxyType(values)

    def _read_regions(self, around: _Region, depth: int, name: str) -> tuple[Block, ...]:
        """Reads the regions of an operation; empty regions are left out."""
        cursor = self._cursor
        if depth > _MAX_DEPTH:
            cursor.fail(f"regions are nested more than {_MAX_DEPTH} deep")
        count, isolated, section = _walk.read_regions(cursor, self._version)
        scope = _ValueScope() if isolated else around.scope
        if section is not None:
            cursor.at = section.at
        if count > cursor.left:
            cursor.fail(f"it declares {count} regions, but only {cursor.left} bytes are left")
        optional_blocks = [self._read_block(scope, depth) for _ in range(count)]
        blocks = tuple([block for block in optional_blocks if block is not None])
        if section is not None and section.end != cursor.at:
            cursor.fail("regions do not end where their section does")
        for block in blocks:
            # Operations of other dialects have their own terminators.
            last = block.operations[-1].name if block.operations else "nothing"
            if last != "return" and "." not in name:
                cursor.fail(f"a region of {name} ends with {last[:100]} instead of return")
        return blocks

    def _read_block(self, scope: _ValueScope, depth: int) -> Block | None:
        """Reads a region; VHLO's regions have one block."""
        cursor = self._cursor
        n_blocks = cursor.varint()
        if not n_blocks:
            return None
        if n_blocks > 1:
            cursor.fail(f"a region has {n_blocks} blocks, and one is expected")
        region = _Region(scope, cursor.varint(), cursor)
        n_operations, types = _walk.read_block(cursor, self._version)
        arguments = tuple([Value(self._attributes.type(kind)) for kind in types])
        region.define(arguments)
        if n_operations > cursor.left:
            cursor.fail(
                f"it declares {n_operations} operations, but only {cursor.left} bytes are left"
            )
        operations = tuple([self._read_operation(region, depth) for _ in range(n_operations)])
        region.close()
        return Block(arguments, operations)
