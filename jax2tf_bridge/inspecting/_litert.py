"""Reads and describes LiteRT models (.tflite)."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax2tf_bridge._utils import array_type_text, format_bytes, join_names
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.inspecting._functions import SCHEMA, format_table
from jax2tf_bridge.serialization import Field, FlatBufferReader, FlatBufferTable
from jax2tf_bridge.storage import AnyPath

FORMAT = "LiteRT"
FLEX_PREFIX = "Flex"
"""Prefix of the names of TensorFlow's operations, which need LiteRT's Flex delegate."""

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
    return _Model(data, str(path)).describe(str(path), len(data))


class _Model:
    def __init__(self, data: bytes, file: str | None = None) -> None:
        self.model = FlatBufferReader(data, what="A LiteRT model", file=file).root()
        self.buffers = self.model.tables(ModelField.BUFFERS)
        self.subgraphs = self.model.tables(ModelField.SUBGRAPHS)
        self.tensors = [s.tables(SubGraphField.TENSORS) for s in self.subgraphs]
        self.operators = [
            _get_operator_name(code) for code in self.model.tables(ModelField.OPERATOR_CODES)
        ]

    def describe(self, path: str, size: int) -> dict[str, Any]:
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
            "runtime": self._describe_runtime(),
            "signatures": self._describe_signatures(),
            "functions": len(self.subgraphs),
            "ops": [
                {"name": name, "count": count, "custom": codes[name]}
                for name, count in counts.most_common()
            ],
            "weights": self._describe_weights(),
        }

    def _count_operators(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for subgraph in self.subgraphs:
            for operator in subgraph.tables(SubGraphField.OPERATORS):
                name, _ = _look_up(self.operators, operator, OperatorField.OPCODE_INDEX)
                counts[name] += 1
        return counts

    def _describe_signatures(self) -> list[dict[str, Any]]:
        signatures = self.model.tables(ModelField.SIGNATURE_DEFS)
        if signatures or not self.subgraphs:
            return [self._describe_signature(signature) for signature in signatures]
        main = self.subgraphs[0]

        def describe_ports(field: Field) -> list[dict[str, Any]]:
            tensors = [
                _get_entry(self.tensors[0], index, main, field) for index in main.integers(field)
            ]
            return [_describe_port(t.string(LiteRTTensorField.NAME) or "", t) for t in tensors]

        return [
            {
                "name": None,
                "inputs": describe_ports(SubGraphField.INPUTS),
                "outputs": describe_ports(SubGraphField.OUTPUTS),
            }
        ]

    def _describe_signature(self, signature: FlatBufferTable) -> dict[str, Any]:
        tensors = _look_up(self.tensors, signature, SignatureDefField.SUBGRAPH_INDEX)

        def describe_ports(field: Field) -> list[dict[str, Any]]:
            return [
                _describe_port(
                    port.string(TensorMapField.NAME) or "",
                    _look_up(tensors, port, TensorMapField.TENSOR_INDEX),
                )
                for port in signature.tables(field)
            ]

        return {
            "name": signature.string(SignatureDefField.SIGNATURE_KEY) or "",
            "inputs": describe_ports(SignatureDefField.INPUTS),
            "outputs": describe_ports(SignatureDefField.OUTPUTS),
        }

    def read_signature(self, name: str, file: str) -> LiteRTSignatureGraph:
        tables = self.model.tables(ModelField.SIGNATURE_DEFS)
        by_name = {t.string(SignatureDefField.SIGNATURE_KEY) or "": t for t in tables}
        key = name if name in by_name or len(by_name) != 1 else next(iter(by_name))
        if key not in by_name:
            others = f"only {', '.join(by_name)}" if by_name else "none at all"
            raise BridgeError(
                f"{file} has no signature {name}, {others}. Convert the model again, with its "
                "signatures."
            )
        table = by_name[key]
        number = table.integer(SignatureDefField.SUBGRAPH_INDEX)
        tensors = _look_up(self.tensors, table, SignatureDefField.SUBGRAPH_INDEX)

        def read_ports(field: Field) -> dict[str, int]:
            index = TensorMapField.TENSOR_INDEX
            ports = table.tables(field)
            for port in ports:
                _look_up(tensors, port, index)  # raises if there is no such tensor
            return {port.string(TensorMapField.NAME) or "": port.integer(index) for port in ports}

        return LiteRTSignatureGraph(
            key,
            number,
            read_ports(SignatureDefField.INPUTS),
            read_ports(SignatureDefField.OUTPUTS),
            self.read_graph(number),
        )

    def read_graph(self, number: int) -> LiteRTGraph:
        tensors = self.tensors[number]

        def read_numbers(operator: FlatBufferTable, field: Field) -> tuple[int, ...]:
            numbers = operator.integers(field)
            for index in numbers:
                if index != -1:
                    _get_entry(tensors, index, operator, field)  # raises if there is no such tensor
            return numbers

        operators = [
            LiteRTOperator(
                _look_up(self.operators, operator, OperatorField.OPCODE_INDEX)[0],
                read_numbers(operator, OperatorField.INPUTS),
                read_numbers(operator, OperatorField.OUTPUTS),
            )
            for operator in self.subgraphs[number].tables(SubGraphField.OPERATORS)
        ]
        return LiteRTGraph(list(map(_read_tensor, tensors)), operators)

    def _describe_weights(self) -> dict[str, int]:
        """Counts the constants of all functions, each buffer once."""
        sizes = {}
        for tensors in self.tensors:
            for tensor in tensors:
                buffer = _look_up(self.buffers, tensor, LiteRTTensorField.BUFFER)
                sizes[tensor.integer(LiteRTTensorField.BUFFER)] = _get_buffer_size(buffer)
        used = [size for size in sizes.values() if size]
        return {"count": len(used), "bytes": sum(used)}

    def _describe_runtime(self) -> str | None:
        for metadata in self.model.tables(ModelField.METADATA):
            if metadata.string(MetadataField.NAME) == _RUNTIME:
                buffer = _look_up(self.buffers, metadata, MetadataField.BUFFER)
                text = bytes(buffer.bytes(BufferField.DATA) or b"")
                return text.rstrip(b"\0").decode("ascii", "replace") or None
        return None


@dataclass(frozen=True)
class LiteRTOperator:
    """Operator of a function.

    Attributes:
      name: its name, such as "FULLY_CONNECTED".
      inputs: the numbers of its tensors; -1 for an optional one that is left out.
      outputs: the numbers of its tensors.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class LiteRTTensor:
    """Tensor of a function.

    Attributes:
      name: its name.
      dtype: the name of its dtype.
      scale, zero_point: the elements stand for the numbers `scale * (element - zero_point)`. None
        and 0 for a tensor that is not quantised, or has a scale for each channel.
    """

    name: str
    dtype: str
    scale: float | None
    zero_point: int

    def quantize(self, array: np.ndarray) -> np.ndarray:
        """Returns the elements that stand for floats; arrays without floats are only cast."""
        if self.scale is not None and array.dtype.kind == "f":
            limits = np.iinfo(self.dtype)
            elements = np.rint(array / np.float32(self.scale)) + self.zero_point
            array = np.clip(elements, limits.min, limits.max)
        return array.astype(self.dtype)

    def dequantize(self, array: np.ndarray) -> np.ndarray:
        """Returns the floats that elements stand for; other arrays are returned unchanged."""
        if self.scale is None or array.dtype.kind == "f":
            return array
        numbers: np.ndarray = (array.astype(np.int32) - self.zero_point) * np.float32(self.scale)
        return numbers


@dataclass(frozen=True)
class LiteRTGraph:
    """Function of a LiteRT model.

    Attributes:
      tensors: its tensors.
      operators: the operators in the order in which they run.
    """

    tensors: Sequence[LiteRTTensor]
    operators: Sequence[LiteRTOperator]


@dataclass(frozen=True)
class LiteRTSignatureGraph:
    """Signature of a LiteRT model, and the function behind it.

    Attributes:
      name: its name.
      subgraph: the number of the function.
      inputs: the numbers of the tensors of the inputs.
      outputs: the numbers of the tensors of the outputs.
      graph: the function.
    """

    name: str
    subgraph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    graph: LiteRTGraph


def read_litert_signature(data: bytes, name: str, file: str) -> LiteRTSignatureGraph:
    """Reads a signature of a LiteRT model.

    Args:
      data: the bytes of the file.
      name: the name of the signature; a model's only signature may have another name.
      file: the path of the file, for messages.

    Raises:
      FileFormatError: the file is damaged, or is not a LiteRT model.
      BridgeError: it has several signatures, and none of this name; or it has none.
    """
    return _Model(data, file).read_signature(name, file)


def read_litert_graphs(data: bytes) -> list[LiteRTGraph]:
    """Reads the functions of a LiteRT model.

    Raises:
      FileFormatError: the bytes are damaged.
    """
    model = _Model(data)
    return [model.read_graph(number) for number in range(len(model.subgraphs))]


def _read_tensor(tensor: FlatBufferTable) -> LiteRTTensor:
    scales: tuple[int, ...] = ()
    zero_points: tuple[int, ...] = ()
    quantization = tensor.table(LiteRTTensorField.QUANTIZATION)
    if quantization is not None:
        scales = quantization.integers(QuantizationField.SCALE)
        zero_points = quantization.integers(QuantizationField.ZERO_POINT)
    scale = None
    if len(scales) == 1:
        (scale,) = struct.unpack("<f", struct.pack("<I", *scales))
    zero_point = zero_points[0] if scale is not None and zero_points else 0
    name = tensor.string(LiteRTTensorField.NAME) or ""
    return LiteRTTensor(name, _get_dtype(tensor), scale, zero_point)


def _look_up(entries: Sequence[Any], table: FlatBufferTable, field: Field) -> Any:
    """Returns the entry at the index in a field."""
    return _get_entry(entries, table.integer(field), table, field)


def _get_entry(entries: Sequence[Any], index: int, table: FlatBufferTable, field: Field) -> Any:
    if not 0 <= index < len(entries):
        raise table.error(field, f"an index below {len(entries)}", f"{index}")
    return entries[index]


def _get_operator_name(code: FlatBufferTable) -> tuple[str, bool]:
    """Returns the name, and whether the operator is custom rather than LiteRT's own."""
    number = code.integer(OperatorCodeField.BUILTIN_CODE)
    # The newer field is 0 if the number fits the older one.
    number = number or code.integer(OperatorCodeField.DEPRECATED_BUILTIN_CODE)
    if number == CUSTOM_OPERATOR:
        return code.string(OperatorCodeField.CUSTOM_CODE) or "CUSTOM", True
    name = OPERATORS[number] if 0 <= number < len(OPERATORS) else f"operator {number}"
    return name, False


def _describe_port(name: str, tensor: FlatBufferTable) -> dict[str, Any]:
    sizes = tensor.integers(LiteRTTensorField.SHAPE_SIGNATURE) or tensor.integers(
        LiteRTTensorField.SHAPE
    )
    return {
        "name": name,
        "dtype": _get_dtype(tensor),
        "shape": [None if size < 0 else size for size in sizes],
    }


def _get_dtype(tensor: FlatBufferTable) -> str:
    number = tensor.integer(LiteRTTensorField.TYPE)
    return DTYPES[number] if 0 <= number < len(DTYPES) else f"dtype {number}"


def _get_buffer_size(buffer: FlatBufferTable) -> int:
    data = buffer.bytes(BufferField.DATA)
    return buffer.integer(BufferField.SIZE) if data is None else len(data)


def format_litert(facts: Mapping[str, Any], ops: int) -> Iterator[str]:
    """Yields `inspect`'s lines for a LiteRT model, with the `ops` commonest operators."""
    file = facts["file"]
    yield f"{file['path']}, a LiteRT model, {format_bytes(file['bytes'])}"
    yield ""
    for signature in facts["signatures"]:
        yield _format_signature(signature)
    yield from format_table(summarize_litert(facts, ops))


def _format_signature(signature: Mapping[str, Any]) -> str:
    name = signature["name"]
    start = "main function, without a signature, " if name is None else f"signature {name}"
    return f"{start}({format_ports(signature['inputs'])}) -> ({format_ports(signature['outputs'])})"


def format_ports(ports: Sequence[Mapping[str, Any]]) -> str:
    """Lists inputs or outputs with their types."""
    return ", ".join(f"{p['name']}: {array_type_text(p['dtype'], p['shape'])}" for p in ports)


def summarize_litert(facts: Mapping[str, Any], ops: int) -> list[tuple[str, str]]:
    """Lists the facts other than signatures, as pairs of a title and a text."""
    weights, runtime = facts["weights"], facts["runtime"]
    total = sum(op["count"] for op in facts["ops"])
    shown = join_names([f"{op['count']} {op['name']}" for op in facts["ops"]], ops)
    rows = [
        ("runs on", f"LiteRT; TensorFlow Lite {runtime} or later" if runtime else ""),
        ("needs", _format_needs(facts["ops"])),
        ("constants", f"{weights['count']:,}, {format_bytes(weights['bytes'])}"),
        ("operators", f"{total:,}: {shown}" if ops and total else f"{total:,}"),
    ]
    return [(title, text) for title, text in rows if text]


def _format_needs(ops: Sequence[Mapping[str, Any]]) -> str:
    names = [op["name"] for op in ops if op["custom"]]
    flex = [name for name in names if name.startswith(FLEX_PREFIX)]
    custom = [name for name in names if name not in flex]
    return "; ".join(
        [
            *([f"the Flex delegate, for {join_names(flex)}"] if flex else []),
            *([f"custom operators: {join_names(custom)}"] if custom else []),
        ]
    )


# Schema of LiteRT's files, as far as `inspect` reads it.
#
# Source: tflite/converter/schema/schema.fbs of https://github.com/google-ai-edge/LiteRT.


IDENTIFIER = b"TFL3"

CUSTOM_OPERATOR = 32
"""Number of custom operators, whose names are in the file."""


class ModelField(Field):
    """Root table."""

    VERSION = "uint"
    OPERATOR_CODES = "[OperatorCode]"
    SUBGRAPHS = "[SubGraph]"
    DESCRIPTION = "string"
    BUFFERS = "[Buffer]"
    METADATA_BUFFER = "[int]"
    METADATA = "[Metadata]"
    SIGNATURE_DEFS = "[SignatureDef]"


class OperatorCodeField(Field):
    """Kind of operator. Files before 2020 have only the deprecated code."""

    DEPRECATED_BUILTIN_CODE = "byte"
    CUSTOM_CODE = "string"
    VERSION = "int", 1
    BUILTIN_CODE = "int"


class SubGraphField(Field):
    """Function."""

    TENSORS = "[Tensor]"
    INPUTS = "[int]"
    OUTPUTS = "[int]"
    OPERATORS = "[Operator]"
    NAME = "string"


class LiteRTTensorField(Field):
    """Tensor. Open sizes are -1 in `shape_signature`, and 1 in `shape`."""

    SHAPE = "[int]"
    TYPE = "byte"
    BUFFER = "uint"
    NAME = "string"
    QUANTIZATION = "QuantizationParameters"
    IS_VARIABLE = "ubyte"
    SPARSITY = "SparsityParameters"
    SHAPE_SIGNATURE = "[int]"


class QuantizationField(Field):
    """Quantization of a tensor. Floats are read as the integers of their bits."""

    MIN = "[uint]"
    MAX = "[uint]"
    SCALE = "[uint]"
    ZERO_POINT = "[long]"


class OperatorField(Field):
    """Operator; `opcode_index` is an index into the model's operator codes.

    An input of -1 is an optional one that is left out.
    """

    OPCODE_INDEX = "uint"
    INPUTS = "[int]"
    OUTPUTS = "[int]"


class BufferField(Field):
    """Constant. Files of over 2 GB have the data after the FlatBuffer, at `offset`."""

    DATA = "[ubyte]"
    OFFSET = "ulong"
    SIZE = "ulong"


class MetadataField(Field):
    """Named buffer."""

    NAME = "string"
    BUFFER = "uint"


class SignatureDefField(Field):
    """Signature."""

    INPUTS = "[TensorMap]"
    OUTPUTS = "[TensorMap]"
    SIGNATURE_KEY = "string"
    DEPRECATED_TAG = "string"
    SUBGRAPH_INDEX = "uint"


class TensorMapField(Field):
    """Name of an input or output in a signature."""

    NAME = "string"
    TENSOR_INDEX = "uint"


DTYPES = (
    *("float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "complex64"),
    *("int8", "float64", "complex128", "uint64", "resource", "variant", "uint32", "uint16", "int4"),
    *("bfloat16", "int2", "uint4"),
)
"""Names of the enumeration TensorType, by number."""

_OPERATOR_NAMES = (
    "ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE "
    "DEQUANTIZE EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION "
    "L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL "
    "RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH "
    "CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD "
    "UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE "
    "MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE "
    "BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE "
    "BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 "
    "GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE "
    "TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT "
    "REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK "
    "REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE "
    "RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE "
    "CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG "
    "QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 "
    "NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL "
    "PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG "
    "REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL "
    "CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS "
    "RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU "
    "DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX "
    "UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT "
    "STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY "
    "STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE "
    "STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE "
    "STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE "
    "STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM "
    "STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT "
    "STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER "
    "STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE "
    "STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL "
    "STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER "
    "STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW "
    "STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE "
)

OPERATORS = tuple(_OPERATOR_NAMES.split())
"""Names of the enumeration BuiltinOperator, by number."""
