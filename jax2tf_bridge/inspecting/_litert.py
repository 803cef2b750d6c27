"""Describes LiteRT models (.tflite)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax2tf_bridge._utils import array_type_text, in_units, some
from jax2tf_bridge.inspecting._functions import SCHEMA
from jax2tf_bridge.inspecting._litert_schema import (
    CUSTOM_OPERATOR,
    DTYPES,
    IDENTIFIER,
    OPERATORS,
    BufferField,
    LiteRTTensorField,
    MetadataField,
    ModelField,
    OperatorCodeField,
    OperatorField,
    SignatureDefField,
    SubGraphField,
    TensorMapField,
)
from jax2tf_bridge.serialization import Field, FlatBufferReader, FlatBufferTable
from jax2tf_bridge.storage import AnyPath

FORMAT = "LiteRT"
FLEX_PREFIX = "Flex"
"""Prefix of TensorFlow's operations, which need LiteRT's Flex delegate."""

_RUNTIME = "min_runtime_version"


def is_litert(start: bytes) -> bool:
    """Returns whether a file with these first eight bytes is a LiteRT model."""
    return start[4:8] == IDENTIFIER


def describe_litert(path: AnyPath) -> dict[str, Any]:
    """Describes a LiteRT model; docs/command-line.md explains each field.

    Raises:
      FileFormatError: the file is damaged.
      OSError: the file cannot be read.
    """
    data = path.read_bytes()
    return _Description(FlatBufferReader(data, what="A LiteRT model", file=str(path)).root()).facts(
        str(path), len(data)
    )


class _Description:
    """Reads the tables of one model."""

    def __init__(self, model: FlatBufferTable) -> None:
        self.model = model
        self.buffers = model.tables(ModelField.BUFFERS)
        self.subgraphs = model.tables(ModelField.SUBGRAPHS)
        self.tensors = [s.tables(SubGraphField.TENSORS) for s in self.subgraphs]
        self.operators = [_operator_name(code) for code in model.tables(ModelField.OPERATOR_CODES)]

    def facts(self, path: str, size: int) -> dict[str, Any]:
        counts = self._count_operators()
        codes = {name: custom for name, custom in self.operators if name in counts}
        return {
            "schema": SCHEMA,
            "file": {
                "path": path,
                "format": FORMAT,
                "version": self.model.integer(ModelField.VERSION),
                "bytes": size,
            },
            "description": self.model.string(ModelField.DESCRIPTION) or "",
            "runtime": self._runtime(),
            "signatures": self._signatures(),
            "functions": len(self.subgraphs),
            "ops": [
                {"name": name, "count": count, "custom": codes[name]}
                for name, count in counts.most_common()
            ],
            "weights": self._weights(),
        }

    def _count_operators(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for subgraph in self.subgraphs:
            for operator in subgraph.tables(SubGraphField.OPERATORS):
                name, _ = _entry(
                    self.operators,
                    operator.integer(OperatorField.OPCODE_INDEX),
                    operator,
                    OperatorField.OPCODE_INDEX,
                )
                counts[name] += 1
        return counts

    def _signatures(self) -> list[dict[str, Any]]:
        signatures = self.model.tables(ModelField.SIGNATURE_DEFS)
        if signatures or not self.subgraphs:
            return [self._signature(signature) for signature in signatures]
        main = self.subgraphs[0]
        return [
            {
                "name": None,
                "inputs": self._ports(main, SubGraphField.INPUTS),
                "outputs": self._ports(main, SubGraphField.OUTPUTS),
            }
        ]

    def _ports(self, main: FlatBufferTable, field: Field) -> list[dict[str, Any]]:
        tensors = [_entry(self.tensors[0], index, main, field) for index in main.integers(field)]
        return [_port(t.string(LiteRTTensorField.NAME) or "", t) for t in tensors]

    def _signature(self, signature: FlatBufferTable) -> dict[str, Any]:
        field = SignatureDefField.SUBGRAPH_INDEX
        tensors = _entry(self.tensors, signature.integer(field), signature, field)

        def ports(maps: Sequence[FlatBufferTable]) -> list[dict[str, Any]]:
            index = TensorMapField.TENSOR_INDEX
            return [
                _port(
                    entry.string(TensorMapField.NAME) or "",
                    _entry(tensors, entry.integer(index), entry, index),
                )
                for entry in maps
            ]

        return {
            "name": signature.string(SignatureDefField.SIGNATURE_KEY) or "",
            "inputs": ports(signature.tables(SignatureDefField.INPUTS)),
            "outputs": ports(signature.tables(SignatureDefField.OUTPUTS)),
        }

    def _weights(self) -> dict[str, int]:
        """Counts the constants of all functions, each buffer once."""
        sizes = {}
        for tensors in self.tensors:
            for tensor in tensors:
                number = tensor.integer(LiteRTTensorField.BUFFER)
                buffer = _entry(self.buffers, number, tensor, LiteRTTensorField.BUFFER)
                sizes[number] = _buffer_size(buffer)
        used = [size for size in sizes.values() if size]
        return {"count": len(used), "bytes": sum(used)}

    def _runtime(self) -> str | None:
        for metadata in self.model.tables(ModelField.METADATA):
            if metadata.string(MetadataField.NAME) == _RUNTIME:
                field = MetadataField.BUFFER
                buffer = _entry(self.buffers, metadata.integer(field), metadata, field)
                text = bytes(buffer.bytes(BufferField.DATA) or b"")
                return text.rstrip(b"\0").decode("ascii", "replace") or None
        return None


def _entry(entries: Sequence[Any], index: int, table: FlatBufferTable, field: Field) -> Any:
    if not 0 <= index < len(entries):
        raise table.error(field, f"a number below {len(entries)}", f"{index}")
    return entries[index]


def _operator_name(code: FlatBufferTable) -> tuple[str, bool]:
    """Returns the name, and whether the operator is not one of LiteRT's own."""
    number = code.integer(OperatorCodeField.BUILTIN_CODE)
    # The newer field is 0 where the older one is enough.
    number = number or code.integer(OperatorCodeField.DEPRECATED_BUILTIN_CODE)
    if number == CUSTOM_OPERATOR:
        return code.string(OperatorCodeField.CUSTOM_CODE) or "CUSTOM", True
    name = OPERATORS[number] if 0 <= number < len(OPERATORS) else f"operator {number}"
    return name, False


def _port(name: str, tensor: FlatBufferTable) -> dict[str, Any]:
    number = tensor.integer(LiteRTTensorField.TYPE)
    sizes = tensor.integers(LiteRTTensorField.SHAPE_SIGNATURE) or tensor.integers(
        LiteRTTensorField.SHAPE
    )
    return {
        "name": name,
        "dtype": DTYPES[number] if 0 <= number < len(DTYPES) else f"dtype {number}",
        "shape": [None if size < 0 else size for size in sizes],
    }


def _buffer_size(buffer: FlatBufferTable) -> int:
    data = buffer.bytes(BufferField.DATA)
    return buffer.integer(BufferField.SIZE) if data is None else len(data)


def litert_lines(facts: Mapping[str, Any], ops: int) -> Iterator[str]:
    """Yields what `inspect` prints of a LiteRT model, with the `ops` commonest operators."""
    file = facts["file"]
    yield f"{file['path']}, a LiteRT model, {in_units(file['bytes'])}"
    yield ""
    for signature in facts["signatures"]:
        yield _signature_text(signature)
    rows = litert_summary(facts, ops)
    width = max(len(title) for title, _ in rows) + 1
    for title, text in rows:
        yield f"{title + ':':{width}} {text}"


def _signature_text(signature: Mapping[str, Any]) -> str:
    name = signature["name"]
    start = "main function, without a signature, " if name is None else f"signature {name}"
    return f"{start}({ports_text(signature['inputs'])}) -> ({ports_text(signature['outputs'])})"


def ports_text(ports: Sequence[Mapping[str, Any]]) -> str:
    """Lists inputs or outputs with their types."""
    return ", ".join(f"{p['name']}: {array_type_text(p['dtype'], p['shape'])}" for p in ports)


def litert_summary(facts: Mapping[str, Any], ops: int) -> list[tuple[str, str]]:
    """Lists what else there is to say, as pairs of a title and a text."""
    weights, runtime = facts["weights"], facts["runtime"]
    total = sum(op["count"] for op in facts["ops"])
    shown = some([f"{op['count']} {op['name']}" for op in facts["ops"]], ops)
    rows = [
        ("runs on", f"LiteRT; TensorFlow Lite {runtime} or later" if runtime else ""),
        ("needs", _needs(facts["ops"])),
        ("constants", f"{weights['count']:,}, {in_units(weights['bytes'])}"),
        ("operators", f"{total:,}: {shown}" if ops and total else f"{total:,}"),
    ]
    return [(title, text) for title, text in rows if text]


def _needs(ops: Sequence[Mapping[str, Any]]) -> str:
    names = [op["name"] for op in ops if op["custom"]]
    flex = [name for name in names if name.startswith(FLEX_PREFIX)]
    own = [name for name in names if name not in flex]
    return "; ".join(
        [
            *([f"the Flex delegate, for {some(flex)}"] if flex else []),
            *([f"custom operators: {some(own)}"] if own else []),
        ]
    )
