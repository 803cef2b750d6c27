"""Compares the summary of a portable artifact with what MLIR reads."""

from __future__ import annotations

import io
import json
import math
import mmap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

import jax2tf_bridge as bridge
from jax2tf_bridge.bytecode import ModuleSummary, read_main_types, read_summary, version_text
from jax2tf_bridge.from_jax import jax_compat
from tests.bytecode.checked_readers import at_version, call_texts
from tests.fresh_process import run_python
from tests.portable.exported_programs import portable_of
from tests.program_cases.record import Program
from tests.program_cases.reference import jax_arguments
from tests.programs import PROGRAMS, SEVENTEEN, by_name
from tests.sampling import sampled

VERSIONS = (
    *("0.9.0", "0.10.0", "0.12.0", "0.14.0", "0.14.24", "0.15.0", "0.17.7", "0.20.0"),
    *("1.0.0", "1.1.1", "1.7.3", "1.9.1", "1.12.1", "1.13.1"),
)
BYTECODE_VERSIONS = range(7)

ELEMENTS = (
    *("i1", "i2", "i4", "i8", "i16", "i32", "i64", "ui2", "ui4", "ui8", "ui16", "ui32", "ui64"),
    *("f16", "bf16", "f32", "f64", "complex<f32>", "complex<f64>", "index", "tf32"),
    *("f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ", "f8E4M3B11FNUZ", "f8E4M3", "f8E3M4"),
    *("f8E8M0FNU", "f4E2M1FN", "f6E2M3FN", "f6E3M2FN"),
)
TYPES = (
    *(f"tensor<2x?x{element}>" for element in ELEMENTS),
    *("tensor<f32>", "tensor<0xf32>", "tensor<4000000000x?xi1>", "tensor<*xf32>"),
    *("tensor<?xf32, #stablehlo.bounds<4>>", "tensor<?x3x?xf32, #stablehlo.bounds<4, ?, 9>>"),
    *("!stablehlo.token", "none", "tuple<>", "tuple<tuple<tensor<i1>>, !stablehlo.token>"),
    *("() -> ()", "(tensor<i1>, f32) -> tensor<i1>", "(i32) -> (tensor<i1>, tensor<2xf32>)"),
    "tensor<4x!quant.uniform<i8:f32, 5.000000e-01:-3>>",
    "tensor<4x2x!quant.uniform<u4:bf16:1, {5.000000e-01:3,2.500000e-01}>>",
)


def _walk(operation: Any) -> Iterator[Any]:
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _walk(inner.operation)


def _text(attribute: Any) -> str | None:
    as_string = _cast(ir.StringAttr, attribute)
    return None if as_string is None else str(as_string.value)


def _cast(kind: Any, attribute: Any) -> Any:
    """Casts an attribute; returns None if it is of another kind, for any release of MLIR."""
    try:
        return kind(attribute)
    except (TypeError, ValueError):
        return None


def _items(attributes: Any) -> list[tuple[str, Any]]:
    """Reads a mapping of MLIR, whose iterator yields names or pairs, depending on the release."""
    names = [n if isinstance(n, str) else n.name for n in attributes]
    return [(name, attributes[name]) for name in names]


def _texts(call: Any) -> dict[str, str]:
    found: dict[str, str | None] = {}
    for name, value in _items(call.attributes):
        found[name] = _text(value)
        dictionary = _cast(ir.DictAttr, value)
        if dictionary is not None:
            found |= {f"{name}.{inner}": _text(v) for inner, v in _items(dictionary)}
    return {name: text for name, text in found.items() if text is not None}


def _constant(operation: Any) -> tuple[str, str, int]:
    """Returns a constant's text in MLIR, its type, and its expected size in bytes."""
    # Read from its text, because some releases lack Python objects for values of some types.
    text = operation.get_asm(enable_debug_info=False).split("stablehlo.constant ")[1]
    shaped = ir.RankedTensorType(operation.results[0].type)
    element = str(shaped.element_type)
    bits = {"complex<f32>": 64, "complex<f64>": 128, "bf16": 16}.get(element)
    if bits is None:
        bits = int(element.lstrip("uif").split("E")[0])
    is_splat = not text.startswith(("dense<[", 'dense<"', "dense<>"))
    count = 1 if is_splat else math.prod(shaped.shape)
    assert bits > 1 or count <= 1, "several booleans share a byte in some releases of MLIR only"
    return text, str(shaped), count * max(bits // 8, 1)


def _check(artifact: bytes) -> ModuleSummary:
    """Compares all that a summary says with what MLIR says."""
    summary = read_summary(artifact)
    with jax_compat.make_ir_context():
        module = jax_compat.deserialize_module(artifact)
        operations = list(_walk(module.operation))[1:]
        assert Counter(summary.operations) == Counter(op.name for op in operations)
        functions = [op for op in operations if op.name == "func.func"]
        names = tuple(_text(op.attributes["sym_name"]) for op in functions)
        assert summary.functions == names
        main = functions[names.index("main")]
        signature = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        assert summary.inputs == tuple(map(str, signature.inputs))
        assert summary.outputs == tuple(map(str, signature.results))
        calls = [_texts(op) for op in operations if op.name == "stablehlo.custom_call"]
        assert summary.custom_calls == Counter(call["call_target_name"] for call in calls)
        assert _distinct(call_texts(artifact)) == _distinct(calls)
        constants = {_constant(op) for op in operations if op.name == "stablehlo.constant"}
        assert summary.constant_bytes == sum(size for _, _, size in constants)
        types = Counter((kind, size) for _, kind, size in constants)
        largest = Counter((c.type, c.size) for c in summary.largest_constants)
        assert largest <= types
        assert largest.total() == min(10, len(constants))
    assert list(summary.operations.values()) == sorted(summary.operations.values(), reverse=True)
    assert read_main_types(artifact) == (summary.inputs, summary.outputs)
    assert summary.unknown == ()
    return summary


def _distinct(calls: list[dict[str, str]]) -> set[frozenset[tuple[str, str]]]:
    """Collects the attributes of calls, in any order and without empty configurations."""
    return {
        frozenset((k, v) for k, v in call.items() if (k, v) != ("backend_config", ""))
        for call in calls
    }


def _artifacts(program: Program) -> list[tuple[str, bytes]]:
    """The program and its VJP, as the bridge writes them and at JAX's own version."""
    portable = portable_of(program)
    with program.precision():
        portables = [portable, portable.vjp()] if program.differentiable else [portable]
    written = [(version_text(r.module.stablehlo_version), r.module.data) for r in portables]
    newest = version_text(jax_compat.get_stablehlo_version())
    return written + [(newest, at_version(artifact, newest)) for _, artifact in written]


# Regions, dimensions of convolutions, gather and scatter, custom calls, narrow and complex types.
KINDS = (
    *("conv_net", "control_flow", "sort_top_k_symbolic", "prng", "fft", "gather_in_batches"),
    *("scatter_in_batches", "booleans", "int4_arguments", "fp8_arguments", "complex64"),
    *("no_results", "related_dimensions", "qr"),
)


@pytest.mark.parametrize(
    "program", sampled(PROGRAMS, every=len(PROGRAMS), keep=lambda p: p.name in KINDS), ids=str
)
def test_agrees_with_mlir(program: Program) -> None:
    for version, artifact in _artifacts(program):
        summary = _check(artifact)
        assert summary.stablehlo_version is not None
        assert version_text(summary.stablehlo_version) == version


def _as_jax_writes_it(program: Program) -> bytes:
    """Exports by JAX alone, which keeps composites, Shardy and calls of LAPACK."""
    with program.precision():
        example = program.build()
        call = example.calls[0]
        args, kwargs = jax_arguments(program, call), dict(call.kwargs)
        lapack = [
            jax.export.DisabledSafetyCheck.custom_call(name)
            for name in ("Qr", "Eigh", "ProductOfElementaryHouseholderReflectors")
        ]
        jitted = jax.jit(lambda args, kwargs: example.function(*args, **kwargs))
        exported = jax.export.export(jitted, disabled_checks=lapack)(args, kwargs)
        return bytes(exported.mlir_module_serialized)


@pytest.mark.parametrize(
    "program",
    sampled(
        [*SEVENTEEN, by_name("dropout")],
        every=9,
        keep=lambda p: p.name in ("dropout", "eigh", "attention"),
    ),
    ids=str,
)
def test_what_jax_writes_agrees_with_mlir(program: Program) -> None:
    summary = _check(_as_jax_writes_it(program))
    if program.name == "dropout":
        assert summary.operations["sdy.sharding_constraint"] == 1


@pytest.mark.parametrize(
    "program",
    sampled(SEVENTEEN, every=17, keep=lambda p: p.name in ("control_flow", "qr")),
    ids=str,
)
def test_every_version_of_stablehlo_and_of_bytecode(program: Program) -> None:
    artifact = _as_jax_writes_it(program)
    if "stablehlo.composite" in read_summary(artifact).operations:
        artifact = portable_of(program).module.data
    expressed = 0
    for version in VERSIONS:
        try:
            older = at_version(artifact, version)
        except (ir.MLIRError, RuntimeError, ValueError):
            continue  # this version cannot express the program
        summary = _check(older)
        assert version_text(summary.stablehlo_version or (0, 0, 0)) == version
        expressed += 1
    assert expressed >= 3
    assert _check_bytecode_versions(artifact) == set(BYTECODE_VERSIONS)


def _check_bytecode_versions(artifact: bytes) -> set[int]:
    """Writes the same VHLO at every version of MLIR's bytecode."""
    expected = read_summary(artifact)
    found = set()
    with jax_compat.make_ir_context():
        module = ir.Module.parse(artifact)
        for version in BYTECODE_VERSIONS:
            buffer = io.BytesIO()
            module.operation.write_bytecode(buffer, desired_version=version)
            summary = read_summary(buffer.getvalue())
            assert summary.stablehlo_version is None
            for attribute in ("operations", "custom_calls", "inputs", "outputs", "functions"):
                assert getattr(summary, attribute) == getattr(expected, attribute)
            assert summary.largest_constants == expected.largest_constants
            assert read_main_types(buffer.getvalue()) == (expected.inputs, expected.outputs)
            found.add(buffer.getvalue()[4] >> 1)
    return found


def test_types_as_mlir_prints_them() -> None:
    parameters = ", ".join(f"%a{i}: {text}" for i, text in enumerate(TYPES))
    artifact = stablehlo.serialize_portable_artifact_str(
        f"func.func @main({parameters}) {{ return }}", stablehlo.get_current_version()
    )
    summary = read_summary(artifact)
    assert summary.inputs == TYPES
    assert summary.outputs == ()


@pytest.mark.parametrize("version", ["0.9.0", "1.0.0", "1.13.1"])
def test_types_of_older_versions(version: str) -> None:
    types = ("tensor<?xf32, #stablehlo.bounds<4>>", "tensor<2xui64>", "!stablehlo.token")
    parameters = ", ".join(f"%a{i}: {text}" for i, text in enumerate(types))
    text = f"func.func @main({parameters}) -> tensor<2xui64> {{ return %a1 : tensor<2xui64> }}"
    summary = read_summary(stablehlo.serialize_portable_artifact_str(text, version))
    assert summary.inputs == types
    assert summary.outputs == ("tensor<2xui64>",)


def test_assertions_about_shapes_can_be_read() -> None:
    portable = bridge.export(lambda x: x.reshape(2, -1), polymorphic_shapes="(2*b,)")(jnp.ones(4))
    summary = read_summary(portable.module.data)
    calls = call_texts(portable.module.data)
    assertions = [call for call in calls if call["call_target_name"] == "shape_assertion"]
    assert assertions
    assert summary.custom_calls["shape_assertion"] == len(assertions)
    assert all(a["error_message"].startswith("Input shapes do not match") for a in assertions)


def test_configuration_that_is_a_dictionary() -> None:
    def f(x: Any) -> Any:
        call = jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))
        return call(x, mode="fast", n=np.int32(3))

    check = jax.export.DisabledSafetyCheck.custom_call("my_kernel")
    exported = jax.export.export(jax.jit(f), disabled_checks=[check])(jnp.ones(3))
    _check(exported.mlir_module_serialized)
    (attributes,) = call_texts(exported.mlir_module_serialized)
    assert attributes["call_target_name"] == "my_kernel"
    assert attributes["mhlo.backend_config.mode"] == "fast"


def test_constants_are_counted_once_and_by_size() -> None:
    table = np.arange(1000, dtype=np.float32)
    exported = jax.export.export(jax.jit(lambda x: (x + table, x * table + 7)))(table)
    summary = _check(exported.mlir_module_serialized)
    assert [str(c) for c in summary.largest_constants] == [
        "ModuleConstant(type='tensor<1000xf32>', size=4000)",
        "ModuleConstant(type='tensor<f32>', size=4)",
    ]
    assert summary.constant_bytes == 4004


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: memoryview(b)[::1]])
def test_kinds_of_buffers(kind: Any) -> None:
    artifact = bridge.export(jnp.sin)(jnp.ones(3)).module.data
    assert read_summary(kind(artifact)) == read_summary(artifact)
    # Arrays are buffers, but NumPy's annotations say so only from Python 3.12 on.
    words: Any = np.frombuffer(artifact + bytes(-len(artifact) % 4), np.uint32)
    if len(artifact) % 4 == 0:
        assert read_summary(memoryview(words)) == read_summary(artifact)
    twice: Any = np.repeat(np.frombuffer(artifact, np.uint8), 2)
    assert read_summary(memoryview(twice)[::2]) == read_summary(artifact)


def test_mapped_file_can_be_closed_while_the_summary_lives(tmp_path: Path) -> None:
    path = tmp_path / "module"
    path.write_bytes(bridge.export(jnp.sin)(jnp.ones(3)).module.data)
    with path.open("rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            summary = read_summary(mapped)
        assert summary.functions == ("main",)


def test_neither_jax_nor_tensorflow_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "module"
    path.write_bytes(bridge.export(jnp.sin)(jnp.ones(3)).module.data)
    code = """
    import json, sys
    from jax2tf_bridge.bytecode import read_summary
    summary = read_summary(open(sys.argv[1], "rb").read())
    print(json.dumps([summary.inputs, sorted(summary.operations)]))
    assert not {"jax", "jaxlib", "tensorflow"} & set(sys.modules)
    """
    inputs, operations = json.loads(run_python(code, str(path), without_jax=True))
    assert inputs[-1] == "tensor<3xf32>"
    assert "stablehlo.sine" in operations
