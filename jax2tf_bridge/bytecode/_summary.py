"""Summarizes StableHLO modules from their bytes, without JAX and TensorFlow.

The module may come from anywhere: every length and index is checked, and time and memory are
bounded by the size of the module. Constants are skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn, TypeAlias

from jax2tf_bridge.bytecode._attributes import (
    Dictionary,
    RawAttribute,
    RawAttributes,
    TensorData,
    TypeReference,
)
from jax2tf_bridge.bytecode._layout import Data, Layout, read_data, read_layout
from jax2tf_bridge.bytecode._types import Types, UnknownTypeError
from jax2tf_bridge.bytecode._vhlo import PROPERTIES, find_stablehlo_name
from jax2tf_bridge.bytecode._walk import MODULE, ModuleWalk, OperationMatch
from jax2tf_bridge.errors import FileFormatError

Version: TypeAlias = tuple[int, int, int]
"""A StableHLO version: (major, minor, patch)."""

_FUNCTION, _CUSTOM_CALL, _CONSTANT = "func", "custom_call", "constant"

# MLIR bytecode begins with its own version, a number of one byte, and the name of its producer.
_ARTIFACT = re.compile(
    rb"ML\xefR[\x01-\xff]StableHLO_v([0-9]{1,5})\.([0-9]{1,5})\.([0-9]{1,5})\x00"
)
_FUNC_DIALECT = frozenset({"func", "call"})
_NOT_COUNTED = frozenset({MODULE, "builtin.unrealized_conversion_cast"})
"""The module itself, and casts between VHLO and other dialects that only exist in files."""

_MAX_CONSTANTS = 10
"""Maximum number of constants in the summary."""

_MAX_CHARACTERS, _MAX_ENTRIES = 1 << 26, 1 << 20
"""Maximum sizes of texts and dictionaries together, in modules of any size."""

_MAX_UNKNOWN = 20


@dataclass(frozen=True)
class ModuleConstant:
    """A constant of the module: its type, and its stored size in bytes.

    A constant that repeats a single value is stored as that value.
    """

    type: str
    size: int


@dataclass(frozen=True)
class ModuleSummary:
    """A summary of a StableHLO module.

    Attributes:
      stablehlo_version: the StableHLO version of the module; None if it is not stored.
      operations: the number of operations with each name, such as "stablehlo.add", the most
        frequent first; the module itself is not counted.
      custom_calls: the number of calls of each target, the most frequent first.
      inputs: the types of main's arguments, such as "tensor<?x3xf32>".
      outputs: the types of main's results.
      functions: the functions' names, in order.
      constant_bytes: the total size of the distinct constants in bytes.
      largest_constants: the largest constants, the largest first.
      unknown: descriptions of contents that this version does not know, for people. `operations`
        counts them too.
      call_results: the maximum number of results of the calls of each target.
    """

    stablehlo_version: Version | None
    operations: Mapping[str, int]
    custom_calls: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    functions: tuple[str, ...]
    constant_bytes: int
    largest_constants: tuple[ModuleConstant, ...]
    unknown: tuple[str, ...]
    call_results: Mapping[str, int]


def read_stablehlo_version(module: memoryview) -> Version | None:
    """Returns the StableHLO version of a module; None if it is not a portable artifact."""
    match = _ARTIFACT.match(module)
    if match is None:
        return None
    major, minor, patch = map(int, match.groups())
    return major, minor, patch


def read_summary(data: Data) -> ModuleSummary:
    """Summarizes a portable artifact.

    Raises:
      FileFormatError: the data is not a portable artifact, is damaged, or has an unknown type in
        main's signature.
    """
    return read_data(data, lambda view: _SummaryReader(view).summary())


def read_main_types(data: Data) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Reads the types of main's arguments and results, without reading function bodies.

    Raises:
      FileFormatError: as for `read_summary`.
    """
    return read_data(data, lambda view: _SummaryReader(view, top_only=True).main_types())


class _SummaryReader:
    def __init__(self, view: memoryview, *, top_only: bool = False) -> None:
        self._layout = layout = read_layout(view)
        self._version = read_stablehlo_version(view)
        self._entries_left = min(layout.max_entries, _MAX_ENTRIES)
        self._attributes = RawAttributes(layout)
        self._types = Types(layout, min(layout.max_characters, _MAX_CHARACTERS))
        self._kinds = {
            i: kind
            for i, name in enumerate(layout.operation_names)
            if (kind := find_stablehlo_name(name)) in (_FUNCTION, _CUSTOM_CALL, _CONSTANT)
        }
        self._unknown: dict[str, None] = {}
        self._walk = ModuleWalk(layout, frozenset(self._kinds), top_only=top_only)

    def summary(self) -> ModuleSummary:
        inputs, outputs = self.main_types()
        names = (self._read_text(op, "sym_name") for op in self._find_matches(_FUNCTION))
        functions = tuple(name for name in names if name is not None)
        constants = self._list_constants()
        counts: Counter[str] = Counter()
        call_results: dict[str, int] = {}
        for op in self._find_matches(_CUSTOM_CALL):
            name = self._read_text(op, "call_target_name") or ""
            counts[name] += self._walk.match_counts[op]
            call_results[name] = max(call_results.get(name, 0), op.results)
        return ModuleSummary(
            self._version,
            _sort_counts(_count_operations(self._layout, self._walk)),
            _sort_counts(counts),
            inputs,
            outputs,
            functions,
            sum(constant.size for constant in constants),
            tuple(sorted(constants, key=lambda c: -c.size)[:_MAX_CONSTANTS]),
            tuple(self._unknown),
            MappingProxyType(call_results),
        )

    def main_types(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        mains = [
            op
            for op, count in self._walk.match_counts.items()
            if self._kinds[op.name] == _FUNCTION
            and op.depth == 1
            and self._read_text(op, "sym_name") == "main"
            for _ in range(count)
        ]
        if len(mains) != 1:
            unknown = f" (unknown: {', '.join(self._unknown)})" if self._unknown else ""
            _fail(f"it has {len(mains)} functions named main, not one{unknown}")
        function_type = self._read_attribute(mains[0], "function_type")
        if not isinstance(function_type, TypeReference):
            _fail("its function main has no type")
        try:
            return self._types.function(function_type.type)
        except UnknownTypeError as e:
            _fail(f"its function main has unknown types: {e}")

    def _find_matches(self, kind: str) -> Iterator[OperationMatch]:
        return (op for op in self._walk.match_counts if self._kinds[op.name] == kind)

    def _read_attribute_indices(self, op: OperationMatch) -> dict[str, int]:
        indices: dict[str, int] = {}
        name = self._layout.operation_names[op.name]
        if op.properties is not None:
            if name not in PROPERTIES:
                self._add_unknown(name)
                return {}
            cursor = self._layout.properties[op.properties]
            for attribute in PROPERTIES[name]:
                indices[attribute] = cursor.varint()
            cursor.check_finished()
        if op.attributes is not None:
            dictionary = self._attributes.read(op.attributes)
            if not isinstance(dictionary, Dictionary):
                _fail("an operation's attributes are not a dictionary")
            # Many operations may share a large dictionary, so the number of entries is limited.
            self._entries_left -= len(dictionary.entries)
            if self._entries_left < 0:
                _fail("its dictionaries have more entries together than the module has bytes")
            for attribute, index in dictionary.entries:
                if attribute in indices:
                    _fail(f"an operation has two attributes {attribute[:100]!r}")
                indices[attribute] = index
        return indices

    def _add_unknown(self, what: str) -> None:
        if len(self._unknown) < _MAX_UNKNOWN:
            self._unknown[what] = None

    def _read_attribute(self, op: OperationMatch, name: str) -> RawAttribute:
        index = self._read_attribute_indices(op).get(name)
        return None if index is None else self._attributes.read(index)

    def _read_text(self, op: OperationMatch, name: str) -> str | None:
        value = self._read_attribute(op, name)
        return value if isinstance(value, str) else None

    def _list_constants(self) -> list[ModuleConstant]:
        indices = (self._read_attribute_indices(op) for op in self._find_matches(_CONSTANT))
        values = dict.fromkeys(named["value"] for named in indices if "value" in named)
        tensors = (self._attributes.read(index) for index in values)
        return [
            ModuleConstant(self._type_text(tensor.type), tensor.size)
            for tensor in tensors
            if isinstance(tensor, TensorData)
        ]

    def _type_text(self, index: int) -> str:
        try:
            return self._types.text(index)
        except UnknownTypeError as e:
            self._add_unknown(str(e))
            return "unknown"


def _count_operations(layout: Layout, walk: ModuleWalk) -> Counter[str]:
    counts: Counter[str] = Counter()
    for i, name in enumerate(layout.operation_names):
        plain = find_stablehlo_name(name)
        if plain == "return":
            # VHLO has a single return operation for functions and regions. Only functions have
            # regions among the operations that the walk searches for.
            counts["func.return"] += walk.child_counts[i]
            counts["stablehlo.return"] += walk.counts[i] - walk.child_counts[i]
        elif name not in _NOT_COUNTED:
            dialect = "func" if plain in _FUNC_DIALECT else "stablehlo"
            counts[f"{dialect}.{plain}" if plain else name] += walk.counts[i]
    return +counts


def _sort_counts(counts: Counter[str]) -> Mapping[str, int]:
    return MappingProxyType(dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))))


def _fail(problem: str) -> NoReturn:
    raise FileFormatError(f"The StableHLO module cannot be read: {problem}.")


def version_text(version: Version) -> str:
    """Formats a version like StableHLO.

    >>> version_text((0, 14, 24))
    '0.14.24'
    """
    return ".".join(str(part) for part in version)
