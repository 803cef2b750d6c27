"""Compares whole modules, read as trees, with what MLIR reads."""

from __future__ import annotations

import base64
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

import jax2tf_bridge as bridge
from jax2tf_bridge.bytecode import (
    Attribute,
    Block,
    DenseElements,
    Operation,
    OtherType,
    Program,
    TensorType,
    Unsupported,
    Value,
    read_program,
    read_summary,
    version_text,
)
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.from_jax import jax_compat
from tests.bytecode.checked_readers import at_version, operations_of
from tests.fresh_process import run_python
from tests.portable.exported_programs import portable_of
from tests.program_cases.reference import jax_arguments
from tests.programs import PROGRAMS, by_name
from tests.sampling import sampled
from tests.serialization.bytecode_by_hand import Module

ARCHIVES = sorted(
    (Path(__file__).parent.parent.parent / "saved_models" / "archives").glob("*.exported")
)
VERSIONS = ("0.14.24", "1.1.1", "1.13.5")  # JAX 0.8's is the last
BYTECODE_VERSIONS = range(7)

ELEMENT = re.compile(r"!vhlo\.([a-zA-Z0-9]+)_v1")
RENAMED = {"bool": "i1", "tf31": "tf32", "token": "!stablehlo.token"}
SOURCE = re.compile(r'"([^"<>]+\.\w+)":(\d+)')


def all_operations(program: Program) -> Iterator[Operation]:
    for function in program.functions.values():
        yield from operations_of(function.body)


def count(program: Program) -> Counter[str]:
    """Counts operations as a summary does."""
    counts: Counter[str] = Counter()
    for function in program.functions.values():
        counts["func.func"] += 1
        for op in operations_of(function.body):
            ends = op is function.body.operations[-1]
            dialect = "func." if op.name == "call" or ends else "stablehlo."
            counts[op.name if "." in op.name else dialect + op.name] += 1
    return counts


def named(program: Program, name: str) -> list[Operation]:
    return [op for op in all_operations(program) if op.name == name]


class Comparison:
    """Compares all that a tree and MLIR both have of the same bytes."""

    def __init__(self) -> None:
        self.values: dict[Any, Value] = {}
        self.sources = 0

    def program(self, program: Program, module: Any) -> None:
        functions = [o.operation for o in module.body if o.operation.name == "vhlo.func_v1"]
        assert len(functions) == len(program.functions)
        for function, (name, found) in zip(functions, program.functions.items(), strict=True):
            assert str(function.attributes["sym_name"]) == f'#vhlo.string_v1<"{name}">'
            self.attributes(found.attributes, function)
            self.block(found.body, function.regions[0].blocks[0])

    def block(self, found: Block, block: Any) -> None:
        self.define(found.arguments, list(block.arguments))
        operations = [o.operation for o in block.operations]
        assert len(found.operations) == len(operations)
        for op, expected in zip(found.operations, operations, strict=True):
            self.operation(op, expected)

    def operation(self, found: Operation, op: Any) -> None:
        match = re.fullmatch(r"vhlo\.(.*)_v\d+", op.name)
        assert found.name == (match.group(1) if match else op.name)
        assert [self.values[v] for v in op.operands] == list(found.operands)
        self.define(found.results, list(op.results))
        self.attributes(found.attributes, op)
        source = SOURCE.search(str(op.location))
        assert found.source == (f"{source.group(1)}:{source.group(2)}" if source else None)
        self.sources += source is not None
        blocks = [region.blocks[0] for region in op.regions if len(region.blocks)]
        assert len(blocks) == len(found.regions)
        for inner, expected in zip(found.regions, blocks, strict=True):
            self.block(inner, expected)

    def define(self, found: tuple[Value, ...], values: list[Any]) -> None:
        assert [str(v.type) for v in found] == [plain_type(str(v.type)) for v in values]
        self.values |= dict(zip(values, found, strict=True))

    def attributes(self, found: Mapping[str, Attribute], op: Any) -> None:
        names = [n if isinstance(n, str) else n.name for n in op.attributes]
        assert sorted(found) == sorted(names)
        for name in names:
            if name.startswith("sdy."):
                assert isinstance(found[name], Unsupported)
                continue
            assert unpunctuated(printed(found[name])) == plain(str(op.attributes[name])), (
                op.name,
                name,
            )


def plain_type(text: str) -> str:
    text = ELEMENT.sub(lambda match: RENAMED.get(match.group(1), match.group(1)), text)
    for kind in ("tensor", "complex"):
        text = text.replace(f"!vhlo.{kind}_v1", kind)
    return text


def plain(text: str) -> str:
    """Removes the types of numbers, which trees lack, from MLIR's text of an attribute."""
    text = re.sub(r"#vhlo\.integer_v1<(-?\d+) : \w+>", r"\1", text)
    text = re.sub(r"#vhlo\.float_v1<([^ ]*) : [^>]*>", lambda m: f"{float(m[1])!r}", text)
    text = re.sub(r"#vhlo<\w+ (\w+)>", r'#vhlo.string_v1<"\1">', text)
    return unpunctuated(plain_type(text.replace("!vhlo.func_v1", "")))


def unpunctuated(text: str) -> str:
    """Removes the differences between function types in VHLO and StableHLO from a text."""
    return re.sub(r"[()<> ]", "", text)


def printed(value: Attribute) -> str:
    if isinstance(value, bool):
        return f"#vhlo.bool_v1<{str(value).lower()}>"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return f"#vhlo.string_v1<{ir.StringAttr.get(value)}>"
    if isinstance(value, tuple):
        return f"#vhlo.array_v1<[{', '.join(map(printed, value))}]>"
    if isinstance(value, DenseElements):
        return f"#vhlo.tensor_v1<{dense(value)}>"
    if isinstance(value, TensorType | OtherType):
        return f"#vhlo.type_v1<{value}>"
    assert not isinstance(value, Unsupported), value
    if set(value) == {"atol", "rtol", "ulps", "mode"}:
        numbers = [f"{value['atol']:e}", f"{value['rtol']:e}", value["ulps"]]
        text = "atol = {}, rtol = {}, ulps = {}, mode = ".format(*numbers)
        return f"#vhlo.result_accuracy_v1<{text}{printed(value['mode'])}>"
    if "operand_index" in value:
        each = [list(v) if isinstance(v, tuple) else v for v in value.values()]
        text = "outputTupleIndices = {}, operandIndex = {}, operandTupleIndices = {}"
        return f"#vhlo.output_operand_alias_v1<{text.format(*each)}>"
    items = [f"{printed(name)} = {printed(inner)}" for name, inner in value.items()]
    return f"#vhlo.dict_v1<{{{', '.join(items)}}}>"


def dense(value: DenseElements) -> str:
    """Prints the elements of a NumPy array as MLIR does."""
    array = value.array()
    assert not array.flags.writeable
    if value.type.element == "index":
        kind: Any = ir.IndexType.get()
    else:
        kind = ir.Type.parse(value.type.element)
    if array.dtype == bool:
        if value.data.nbytes == 1 and array.size > 0 and array.all() == array.any():
            of: Any = ir.RankedTensorType.get(list(array.shape), kind)
            return str(ir.DenseElementsAttr.get_splat(of, ir.BoolAttr.get(bool(array.all()))))
        values: Any = np.ascontiguousarray(array)
        return str(ir.DenseElementsAttr.get(values))
    if value.data.nbytes == array.dtype.itemsize and array.size > 1:
        array = np.ascontiguousarray(array.reshape(-1)[:1])
    if value.type.element in ("i2", "i4"):
        array = array.astype(np.int8).view(np.uint8) & (2 ** int(value.type.element[1]) - 1)
    data: Any = np.frombuffer(array.tobytes(), np.uint8)
    shape = [size or 0 for size in value.type.shape]
    return str(ir.DenseElementsAttr.get(data, type=kind, shape=shape))


def check(artifact: bytes) -> tuple[Program, Comparison]:
    """Compares the tree with MLIR's, and its size with the summary's."""
    program = read_program(artifact)
    assert count(program) == Counter(read_summary(artifact).operations)
    comparison = Comparison()
    with jax_compat.make_ir_context(), ir.Location.unknown():
        comparison.program(program, ir.Module.parse(artifact))
    return program, comparison


def families(x: jax.Array, w: jax.Array) -> Any:
    """Has operations of all families: regions within regions, windows, indices, calls."""

    def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = lax.cond(row.sum() > 0, jnp.sin, jnp.cos, carry)
        return lax.while_loop(lambda c: c.sum() < 3, lambda c: c + 1, carry), row.argmax()

    scanned = lax.scan(step, jnp.zeros(4), x * jnp.arange(4.0))
    switched = lax.switch(x.astype(int)[0, 0], [jnp.sin, jnp.tanh, jnp.exp], x)
    convolved = lax.conv_general_dilated(
        *(w, w, (1, 2), ((1, 0), (2, 2))),
        lhs_dilation=(1, 2),
        rhs_dilation=(2, 1),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    key = jax.random.key(0, impl="rbg")
    return (
        *(scanned, switched, convolved, x[jnp.array([0, 1])], x.at[1].add(2.0)),
        *(jnp.sort(x), jnp.max(x, 0), jnp.einsum("bij,bkj->bik", w[0], w[0])),
        lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "SAME"),
        jax.grad(lambda y: lax.reduce_window(y, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID").sum())(
            x
        ),
        *(jax.random.bits(key, (3,)), jnp.fft.rfft(x), lax.reduce_precision(x, 5, 10)),
        lax.linalg.triangular_solve(w[0, 0, :2, :2], x[:, :2], left_side=True, lower=True),
        *(lax.cumsum(x), x.astype(jnp.bfloat16) > 1, jnp.pad(x, 1)[::2], x.T, x[:, ::-1]),
        lax.dynamic_update_slice(x, x[:1], (x[0, 0].astype(int), 0)),
    )


def families_artifact() -> bytes:
    arguments = jax.ShapeDtypeStruct((2, 4), "float32"), jax.ShapeDtypeStruct((2, 3, 5, 5), "f4")
    exported = jax.export.export(jax.jit(families), platforms=["tpu"])(*arguments)
    return bytes(exported.mlir_module_serialized)


@pytest.fixture(scope="module")
def artifact() -> bytes:
    return families_artifact()


def test_agrees_with_mlir(artifact: bytes) -> None:
    program, comparison = check(artifact)
    assert comparison.sources > 100
    names = {op.name for op in all_operations(program)}
    assert names >= {
        *("while", "case", "convolution", "gather", "scatter", "sort", "reduce", "dot_general"),
        *("reduce_window", "select_and_scatter", "rng_bit_generator", "fft", "triangular_solve"),
        *("reduce_precision", "compare", "pad", "slice", "transpose", "reverse", "call"),
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_older_versions_of_stablehlo(artifact: bytes, version: str) -> None:
    older = at_version(artifact, version)
    assert version_text(read_summary(older).stablehlo_version or (0, 0, 0)) == version
    _, comparison = check(older)
    assert comparison.sources > 100


@pytest.mark.costly
def test_every_version_of_bytecode(artifact: bytes) -> None:
    found = set()
    for version in BYTECODE_VERSIONS:
        buffer = io.BytesIO()
        with jax_compat.make_ir_context():
            module = ir.Module.parse(artifact)
            module.operation.write_bytecode(buffer, desired_version=version)
        check(buffer.getvalue())
        found.add(buffer.getvalue()[4] >> 1)
    assert found == set(BYTECODE_VERSIONS)


KINDS = ("control_flow", "sort_top_k_symbolic", "int4_arguments", "complex64", "qr", "no_results")


@pytest.mark.parametrize(
    "name", sampled([p.name for p in PROGRAMS], every=len(PROGRAMS), keep=KINDS)
)
def test_programs_agree_with_mlir(name: str) -> None:
    check(portable_of(by_name(name)).module.data)


@pytest.mark.parametrize(
    "path", sampled(ARCHIVES, every=4), ids=lambda path: path.name.removesuffix(".exported")
)
@pytest.mark.checkout
def test_archives_of_other_releases(path: Path) -> None:
    data = path.read_bytes()
    starts = [m.start() for m in re.finditer(rb"ML\xefR", data)]
    assert starts
    for start in starts:
        module = data[start : start + int.from_bytes(data[start - 4 : start], "little")]
        assert count(read_program(module)) == Counter(read_summary(module).operations)


CONSTANTS: tuple[tuple[str, Any], ...] = (
    (
        "dense<[[true, false, true, true, false, false, true, true, true, false, true]]>"
        " : tensor<1x11xi1>",
        np.array([[1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1]], bool),
    ),
    ("dense<[true, false]> : tensor<2xi1>", np.array([True, False])),
    ("dense<[[false], [true], [true]]> : tensor<3x1xi1>", np.array([[False], [True], [True]])),
    ("dense<true> : tensor<i1>", np.array(True)),
    ("dense<true> : tensor<3x4xi1>", np.ones((3, 4), bool)),
    ("dense<false> : tensor<5xi1>", np.zeros(5, bool)),
    ("dense<> : tensor<0xi1>", np.zeros(0, bool)),
    ("dense<[1, -2, 1, 0]> : tensor<4xi2>", np.array([1, -2, 1, 0], ml_dtypes.int2)),
    ("dense<[1, 2, 3]> : tensor<3xui2>", np.array([1, 2, 3], ml_dtypes.uint2)),
    ("dense<[1, -2, -8, 7, 0]> : tensor<5xi4>", np.array([1, -2, -8, 7, 0], ml_dtypes.int4)),
    ("dense<-3> : tensor<2x2xi4>", np.full((2, 2), -3, ml_dtypes.int4)),
    ("dense<[1, 15, 8]> : tensor<3xui4>", np.array([1, 15, 8], ml_dtypes.uint4)),
    ("dense<[-1, 127]> : tensor<2xi8>", np.array([-1, 127], np.int8)),
    ("dense<[255, 1]> : tensor<2xui8>", np.array([255, 1], np.uint8)),
    ("dense<[-2, 300]> : tensor<2xi16>", np.array([-2, 300], np.int16)),
    ("dense<[65535, 1]> : tensor<2xui16>", np.array([65535, 1], np.uint16)),
    ("dense<[[-2], [70000]]> : tensor<2x1xi32>", np.array([[-2], [70000]], np.int32)),
    ("dense<4000000000> : tensor<2xui32>", np.full(2, 4000000000, np.uint32)),
    ("dense<[-5000000000, 7]> : tensor<2xi64>", np.array([-5000000000, 7])),
    ("dense<18446744073709551615> : tensor<ui64>", np.array(2**64 - 1, np.uint64)),
    ("dense<[1.5, -0.0]> : tensor<2xf16>", np.array([1.5, -0.0], np.float16)),
    ("dense<[1.0, 2.5, -3.0]> : tensor<3xbf16>", np.array([1, 2.5, -3], ml_dtypes.bfloat16)),
    ("dense<[[1.5, 0x7F800000]]> : tensor<1x2xf32>", np.array([[1.5, np.inf]], np.float32)),
    ("dense<1.0e+300> : tensor<7xf64>", np.full(7, 1e300)),
    ("dense<[(1.0, 2.0), (3.0, 4.0)]> : tensor<2xcomplex<f32>>", np.array([1 + 2j, 3 + 4j], "c8")),
    ("dense<(1.0, -2.0)> : tensor<3xcomplex<f64>>", np.full(3, 1 - 2j)),
    ("dense<[1.0, -3.0]> : tensor<2xf8E4M3FN>", np.array([1, -3], ml_dtypes.float8_e4m3fn)),
    ("dense<[1.0, -3.0]> : tensor<2xf8E5M2>", np.array([1, -3], ml_dtypes.float8_e5m2)),
    ("dense<[1.0, -3.0]> : tensor<2xf4E2M1FN>", np.array([1, -3], ml_dtypes.float4_e2m1fn)),
    ("dense<> : tensor<2x0xf32>", np.zeros((2, 0), np.float32)),
)


def test_constants_of_every_dtype() -> None:
    lines = "\n".join(f"stablehlo.constant {text}" for text, _ in CONSTANTS)
    text = f"func.func @main() {{\n{lines}\nreturn }}"
    artifact = stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version())
    program, _ = check(artifact)
    constants = named(program, "constant")
    for (_, expected), op in zip(CONSTANTS, constants, strict=True):
        value = op.attributes["value"]
        assert isinstance(value, DenseElements)
        array = value.array()
        assert array.dtype == expected.dtype
        assert array.shape == expected.shape
        assert array.tobytes() == expected.tobytes()
        assert value.type == op.results[0].tensor


def test_large_constants_are_not_copied() -> None:
    table = np.arange(1000, dtype=np.float32)
    exported = jax.export.export(jax.jit(lambda x: x + table + jnp.full((300, 300), 7.0)[0, 0]))
    artifact = bytes(exported(table).mlir_module_serialized)
    shared = []
    for before in range(4):
        memory = np.zeros(before + len(artifact), np.uint8)
        memory[before:] = np.frombuffer(artifact, np.uint8)
        program = read_program(memory[before:].data)
        values = [op.attributes["value"] for op in named(program, "constant")]
        arrays = [v.array() for v in values if isinstance(v, DenseElements)]
        (large,) = [array for array in arrays if array.size == 1000]
        assert np.array_equal(large, table)
        assert large.flags.aligned
        assert not large.flags.writeable
        shared.append(np.shares_memory(memory, large))
    # The number of bytes before the artifact decides the alignment.
    assert sum(shared) == 1


def test_constant_that_repeats_one_value_takes_no_memory() -> None:
    text = "func.func @main() { stablehlo.constant dense<2.0> : tensor<9999999x999999xf32> return }"
    artifact = stablehlo.serialize_portable_artifact_str(text, "1.0.0")
    value = named(read_program(artifact), "constant")[0].attributes["value"]
    assert isinstance(value, DenseElements)
    assert value.array().shape == (9999999, 999999)
    assert value.array()[5, 6] == 2.0


ATTRIBUTES = """
func.func @other(%a: tensor<2x3xf32>) -> tensor<2x3xf32> { return %a : tensor<2x3xf32> }
func.func @main(%a: tensor<2x3xf32> {my.name = "x"}, %t: !stablehlo.token) -> tensor<2x3xf32> {
  %0 = stablehlo.tanh %a {result_accuracy = #stablehlo.result_accuracy<atol = 1.5, rtol = 2.5,
    ulps = 3, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<2x3xf32>
  %1 = stablehlo.custom_call @foo(%a) {mhlo.backend_config = {a = 1 : i32, b = 2.5 : f64,
    c = [1, 2], e = true, f = dense<[1, 2]> : tensor<2xi32>, g = "s", i = i32, j = @other,
    k = -3 : i64, l = 3.0 : bf16, n = -1 : i4, o = dense<[true, false, true]> : tensor<3xi1>,
    p = 255 : ui8, q = -0.5 : f16, r = 1.25 : f32, s = 2.0 : f8E5M2, u = 7 : index,
    v = tensor<2x?xf32>, w = 18446744073709551615 : ui64},
    called_computations = [@other], api_version = 4 : i32, backend_config = {x = 1 : i32},
    operand_layouts = [dense<[1, 0]> : tensor<2xindex>],
    result_layouts = [dense<[1, 0]> : tensor<2xindex>],
    output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [],
      operand_index = 0, operand_tuple_indices = []>]}
    : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %2 = stablehlo.composite "my.comp" %a {composite_attributes = {n = 1 : i64},
    decomposition = @other, version = 2 : i32} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %3 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [1],
    precision = [DEFAULT, DEFAULT], algorithm = <lhs_precision_type = tf32,
    rhs_precision_type = tf32, accumulation_type = f32, lhs_component_count = 1,
    rhs_component_count = 1, num_primitive_operations = 3,
    allow_imprecise_accumulation = false> : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>
  %4 = stablehlo.compare LT, %a, %a, TOTALORDER
    : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
  %5 = call @other(%a) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %6 = "stablehlo.all_reduce"(%a) ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %z = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %z : tensor<f32>
    }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>}
    : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %a : tensor<2x3xf32>
}
"""


def test_attributes_of_every_kind() -> None:
    version = stablehlo.get_current_version()
    program, _ = check(stablehlo.serialize_portable_artifact_str(ATTRIBUTES, version))
    by_op = {op.name: op for op in all_operations(program)}
    assert by_op["tanh"].attributes["result_accuracy"] == {
        **{"atol": 1.5, "rtol": 2.5, "ulps": 3, "mode": "TOLERANCE"}
    }
    call = by_op["custom_call"]
    assert call.attributes["called_computations"] == ("other",)
    assert call.attributes["backend_config"] == {"x": 1}
    assert call.text("api_version") == "API_VERSION_TYPED_FFI"
    assert not call.flag("has_side_effect")
    given = call.attributes["mhlo.backend_config"]
    assert isinstance(given, Mapping)
    simple = {k: v for k, v in given.items() if not isinstance(v, DenseElements)}
    assert simple == {
        **{"a": 1, "b": 2.5, "c": (1, 2), "e": True, "g": "s", "i": OtherType("i32")},
        **{"j": "other", "k": -3, "l": 3.0, "n": -1, "p": 255, "q": -0.5, "r": 1.25, "s": 2.0},
        **{"u": 7, "v": TensorType((2, None), "f32"), "w": 2**64 - 1},
    }
    assert by_op["composite"].attributes["composite_attributes"] == {"n": 1}
    assert by_op["composite"].text("decomposition") == "other"
    dot = by_op["dot_general"]
    assert dot.ints("lhs_contracting_dimensions") == (1,)
    assert dot.ints("lhs_batching_dimensions") == ()
    assert dot.attributes["precision_config"] == ("DEFAULT", "DEFAULT")
    assert dot.attributes["accumulation_type"] == OtherType("f32")
    assert dot.int("num_primitive_operations") == 3
    compare = by_op["compare"]
    assert (compare.text("comparison_direction"), compare.text("compare_type")) == (
        *("LT", "TOTALORDER"),
    )
    assert by_op["call"].text("callee") == "other"
    assert program.main.body.arguments[1].type == OtherType("!stablehlo.token")
    assert program.main.attributes["arg_attrs"] == ({"my.name": "x"}, {})


def test_names_of_enums() -> None:
    text = """
    func.func @main(%a: tensor<2x2xf32>, %s: tensor<2xui64>, %n: tensor<1xi64>,
                    %c: tensor<2x2xcomplex<f32>>, %f: tensor<f32>) {
      %0:2 = "stablehlo.rng_bit_generator"(%s) {rng_algorithm =
        #stablehlo<rng_algorithm ALGORITHM>} : (tensor<2xui64>) -> (tensor<2xui64>, tensor<3xui32>)
      %1 = "stablehlo.rng"(%f, %f, %n) {rng_distribution = #stablehlo<rng_distribution RANDOM>}
        : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<3xf32>
      %2 = "stablehlo.fft"(%c) {fft_type = #stablehlo<fft_type KIND>, fft_length = array<i64: 2>}
        : (tensor<2x2xcomplex<f32>>) -> tensor<2x2xcomplex<f32>>
      %3 = "stablehlo.triangular_solve"(%a, %a) {left_side = true, lower = true,
        unit_diagonal = false, transpose_a = #stablehlo<transpose TRANSPOSED>}
        : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %4 = stablehlo.dot %a, %a, precision = [PRECISION, DEFAULT]
        : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %5 = stablehlo.compare DIRECTION, %a, %a, FLOAT
        : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xi1>
      return
    }
    """
    variants = {
        "ALGORITHM": ("rng_algorithm", ("DEFAULT", "THREE_FRY", "PHILOX")),
        "RANDOM": ("rng_distribution", ("UNIFORM", "NORMAL")),
        "KIND": ("fft_type", ("FFT", "IFFT")),
        "TRANSPOSED": ("transpose_a", ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")),
        "PRECISION": ("precision_config", ("DEFAULT", "HIGH", "HIGHEST")),
        "DIRECTION": ("comparison_direction", ("EQ", "NE", "GE", "GT", "LE", "LT")),
    }
    for i in range(6):
        chosen = {word: names[i % len(names)] for word, (_, names) in variants.items()}
        written = text
        for word, name in chosen.items():
            written = re.sub(rf"\b{word}\b", name, written)
        program, _ = check(stablehlo.serialize_portable_artifact_str(written, "1.0.0"))
        found = {k: v for op in all_operations(program) for k, v in op.attributes.items()}
        for word, (attribute, _) in variants.items():
            value = found[attribute]
            assert (value[0] if isinstance(value, tuple) else value) == chosen[word]


def test_flags_and_messages_of_attributes() -> None:
    text = """
    func.func @main(%a: tensor<1x5x5x2xf32>, %k: tensor<3x3x2x2xf32>) {
      %0 = stablehlo.convolution(%a, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {stride = [2, 1], pad = [[1, 0], [0, 2]], reverse = [true, false]}
        {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<1x5x5x2xf32>, tensor<3x3x2x2xf32>) -> tensor<1x2x5x2xf32>
      return
    }
    """
    program, _ = check(stablehlo.serialize_portable_artifact_str(text, "1.0.0"))
    (op,) = named(program, "convolution")
    assert op.flags("window_reversal") == (True, False)
    assert op.ints("window_strides") == (2, 1)
    assert op.ints("padding") == (1, 0, 0, 2)
    assert op.int("input_feature_dimension") == 3
    assert op.ints("kernel_spatial_dimensions") == (0, 1)
    with pytest.raises(FileFormatError, match="attribute padding of convolution is Dense"):
        op.int("padding")
    with pytest.raises(FileFormatError, match="attribute nothing of convolution is missing"):
        op.flags("nothing")


def test_quantized_types_are_named() -> None:
    text = "func.func @main(%a: tensor<4x!quant.uniform<i8:f32, 0.5:3>>) { return }"
    artifact = stablehlo.serialize_portable_artifact_str(text, "1.0.0")
    (argument,) = read_program(artifact).main.body.arguments
    assert argument.tensor.element == "!quant.uniform<i8:f32, 5.000000e-01:3>"


def test_operations_of_other_dialects() -> None:
    program = by_name("dropout")
    with program.precision():
        example = program.build()
        args, kwargs = jax_arguments(program, example.calls[0]), dict(example.calls[0].kwargs)
        jitted = jax.jit(lambda args, kwargs: example.function(*args, **kwargs))
        artifact = bytes(jax.export.export(jitted)(args, kwargs).mlir_module_serialized)
    found = read_program(artifact)
    (constraint,) = named(found, "sdy.sharding_constraint")
    assert constraint.attributes == {
        "properties": Unsupported("properties of sdy.sharding_constraint")
    }
    given, taken = named(found, "builtin.unrealized_conversion_cast")
    assert (given.results, constraint.results) == (constraint.operands, taken.operands)
    assert taken.results[0].type == given.operands[0].type
    assert isinstance(taken.results[0].type, TensorType)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: memoryview(b)[::1]])
def test_kinds_of_buffers(kind: Any) -> None:
    artifact = bridge.export(lambda x: x + np.arange(9.0))(jnp.ones(9)).module.data
    twice: Any = np.repeat(np.frombuffer(artifact, np.uint8), 2)
    for data in (kind(artifact), memoryview(twice)[::2]):
        value = named(read_program(data), "constant")[0].attributes["value"]
        assert isinstance(value, DenseElements)
        assert np.array_equal(value.array(), np.arange(9.0, dtype=value.array().dtype))


def test_neither_jax_nor_tensorflow_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "module"
    path.write_bytes(bridge.export(jnp.sin)(jnp.ones(3)).module.data)
    code = """
    import sys
    from jax2tf_bridge.bytecode import read_program
    program = read_program(open(sys.argv[1], "rb").read())
    print([op.name for op in program.main.body.operations])
    assert not {"jax", "jaxlib", "tensorflow"} & set(sys.modules)
    """
    assert "'sine'" in run_python(code, str(path), without_jax=True)


def test_module_without_main() -> None:
    module = Module()
    module.text("for locations")
    with pytest.raises(FileFormatError, match="it has no function main"):
        read_program(module.build())


_COLLECTIVE_REDUCE = (
    "O-%1n4O4VsVr*qdOiy2SF)lGVE-(NA8wCLc3jqTQ0|^fk7aIdVB?|!+3lkF)6B82?6B7dw3kwSi4+~EV0}Bra7Y7"
    "#tuLTbm0RaIQ0RsaU0Rtl!0R;~i0S^Ti0S6Bk0S7S`0SOTo0SgBM0V4$+5gii~0~G}U9|<7<0000000001000000"
    "000511SLq9T5Wo0|5ys1qBHM1b+nqPy+!61aAWY1qDzA0|x|K0|g5M0|x*HRtW_I0RsUC1T6yx3k3rW0}lWR1`z`"
    "R1pxyC1QP=V0|W~L0|o;D1pxr76$1+e4=WKB4+{}ub!lvLX>I^^Xl!o)ZEs|CY-Ip)Wps6NZeMmW0A_V=V_$YL0A"
    "p`#Y-M9~X?A5_a%E(7V`X1<F#us?WM6hM04)G*VQFpv00<uk1pxsI6&Dp58wnjBAtL"
)
_COLLECTIVE_BROADCAST = (
    "O-%1n4O4VsVr*qdOiy2SF)lJNE-(NA83h3a2>}BO0|yTi7Xv#T4*?Gg6B82?6B7du3kwSi4+~EN4-*py8wUp$0-*"
    "&B7XbkQ7XbqU7Xbq!7XbrF7Xbwi7Xb$a0|6rk9S<E569p9o10M|`00000000000RR9100000DFYD+DFX!y9T5cq0"
    "|NmG8z}_^2?YdG1p!b40S5#_0|5mCPz3`A1TO;z3k3rQ2MGWLMhgW40R;gA2LufR1qK5F1pxq|69Wqc6)_PH3lU;"
    "<X>4?9ZUA;@Y;OQ<Z)A0BWdLS%Zew3|F#uz4Y;0v?bZK^FUt)4^VPs=rb97&JG5~UAbairWUv@D7EdXs{X>I@j2p"
    "tCn0RamS5f2j;2NxL|"
)
"""Modules of StableHLO 1.19 and 1.20, as StableHLO 1.22 writes them; older MLIR cannot."""


@pytest.mark.parametrize(
    ("text", "name", "flags"),
    [
        (
            _COLLECTIVE_REDUCE,
            "collective_reduce",
            {"has_dynamic_root": False, "use_global_device_ids": True},
        ),
        (_COLLECTIVE_BROADCAST, "collective_broadcast", {"has_dynamic_root": True}),
    ],
)
def test_collectives_of_later_versions(text: str, name: str, flags: dict[str, bool]) -> None:
    (found,) = named(read_program(base64.b85decode(text)), name)
    assert {key: found.attributes[key] for key in flags} == flags
    assert found.int("channel_id") == 5
    groups = found.attributes["replica_groups"]
    assert isinstance(groups, DenseElements)
    assert groups.array().tolist() == [[0, 1]]
