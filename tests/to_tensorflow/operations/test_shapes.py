"""Operations that move elements, in every dtype, with known and with open sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge.errors import ModuleError
from tests.to_tensorflow.operations.running import portable_of, run, trace
from tests.to_tensorflow.operations.test_gather import tensor

_ELEMENTS = {
    "i1": np.bool_,
    "i4": np.int8,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui4": np.uint8,
    "ui8": np.uint8,
    "ui16": np.uint16,
    "ui32": np.uint32,
    "ui64": np.uint64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}


class _Module:
    """Lines of a module, and what each of them gives."""

    def __init__(self) -> None:
        self.arguments: list[tuple[str, Any]] = []
        self.lines: list[str] = []
        self.expected: list[tuple[str, str, Any]] = []

    def argument(self, kind: str, value: Any) -> str:
        # Arguments and results are kept in 8 bits where they have fewer.
        self.arguments.append((_in_bytes(kind), value))
        name = f"%a{len(self.arguments) - 1}"
        if _in_bytes(kind) == kind:
            return name
        return self.line(f"stablehlo.convert {name} : ({_in_bytes(kind)}) -> {kind}")

    def line(self, text: str) -> str:
        self.lines.append(f"%l{len(self.lines)} = {text}")
        return f"%l{len(self.lines) - 1}"

    def expect(self, text: str, kind: str, value: Any) -> None:
        """Adds a result; its text ends before its type."""
        name = self.line(f"{text} {kind}")
        if _in_bytes(kind) != kind:
            name = self.line(f"stablehlo.convert {name} : ({kind}) -> {_in_bytes(kind)}")
        self.expected.append((name, _in_bytes(kind), value))

    def text(self) -> str:
        arguments = ", ".join(f"%a{i}: {kind}" for i, (kind, _) in enumerate(self.arguments))
        names = ", ".join(name for name, _, _ in self.expected)
        kinds = ", ".join(kind for _, kind, _ in self.expected)
        body = "\n".join(self.lines)
        return (
            f"func.func public @main({arguments}) -> ({kinds}) {{\n{body}\n"
            f"return {names} : {kinds}\n}}"
        )

    def check(self, symbols: str = "abcdefgh") -> None:
        found = run(self.text(), *(value for _, value in self.arguments), symbols=symbols)
        for result, (name, _, value) in zip(found, self.expected, strict=True):
            line = next(line for line in self.lines if line.startswith(f"{name} "))
            assert result.dtype == value.dtype, line
            assert result.shape == value.shape, line
            assert result.tobytes() == np.ascontiguousarray(value).tobytes(), line


def _in_bytes(kind: str) -> str:
    return kind.replace("i4>", "i8>")


def _padded(
    array: Any, value: Any, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> Any:
    """Pads element by element, as the specification says."""
    sizes = [
        left + max(0, size - 1) * between + size + right
        for size, left, right, between in zip(array.shape, low, high, interior, strict=True)
    ]
    result = np.full(sizes, value, array.dtype)
    for at in itertools.product(*map(range, array.shape)):
        to = [left + i * (between + 1) for i, left, between in zip(at, low, interior, strict=True)]
        if all(0 <= i < size for i, size in zip(to, sizes, strict=True)):
            result[tuple(to)] = array[at]
    return result


def _numbers(sizes: Sequence[int], dtype: Any = np.float32) -> Any:
    return np.arange(1, 1 + np.prod(sizes, dtype=int)).reshape(sizes).astype(dtype)


@pytest.mark.costly
def test_every_dtype_moves() -> None:
    module = _Module()
    for element, dtype in _ELEMENTS.items():
        value = _numbers((2, 3), np.int8).astype(dtype)
        kind, wide = tensor((2, 3), element), tensor((2, 2, 3), element)
        x = module.argument(kind, value)
        other = np.asarray(7).astype(dtype)
        v = module.argument(tensor((), element), other)
        module.expect(
            f"stablehlo.broadcast_in_dim {x}, dims = [0, 2] : ({kind}) ->",
            wide,
            np.broadcast_to(value[:, None], (2, 2, 3)),
        )
        module.expect(
            f"stablehlo.reshape {x} : ({kind}) ->", tensor((3, 2), element), value.reshape(3, 2)
        )
        module.expect(
            f"stablehlo.transpose {x}, dims = [1, 0] : ({kind}) ->",
            tensor((3, 2), element),
            value.T,
        )
        module.expect(
            f"stablehlo.slice {x} [0:2, 0:3:2] : ({kind}) ->",
            tensor((2, 2), element),
            value[:, ::2],
        )
        module.expect(f"stablehlo.reverse {x}, dims = [1] :", kind, value[:, ::-1])
        module.expect(
            f"stablehlo.concatenate {x}, {x}, dim = 0 : ({kind}, {kind}) ->",
            tensor((4, 3), element),
            np.concatenate([value, value]),
        )
        module.expect(
            f"stablehlo.pad {x}, {v}, low = [1, 0], high = [0, -1], interior = [1, 0] : "
            f"({kind}, {tensor((), element)}) ->",
            tensor((4, 2), element),
            _padded(value, other, (1, 0), (0, -1), (1, 0)),
        )
        zero = module.line(
            f"stablehlo.constant dense<{'false' if element == 'i1' else _zero(element)}> : "
            f"{tensor((), element)}"
        )
        module.expect(
            f"stablehlo.pad {x}, {zero}, low = [1, 0], high = [0, 1], interior = [0, 0] : "
            f"({kind}, {tensor((), element)}) ->",
            tensor((3, 4), element),
            _padded(value, np.zeros((), dtype), (1, 0), (0, 1), (0, 0)),
        )
    module.check()


def _zero(element: str) -> str:
    return "(0.0, 0.0)" if "complex" in element else "0.0" if "f" in element else "0"


def test_iota_of_every_dtype() -> None:
    module = _Module()
    size = module.argument("tensor<2xi32>", np.array([1, 300], np.int32))
    for element, dtype in _ELEMENTS.items():
        if element == "i1" or element.startswith("f8"):
            continue
        count = np.arange(300)
        if element in ("i4", "ui4"):
            count %= 16
            count = np.where((count > 7) & (element == "i4"), count - 16, count)
        wanted = count.astype(dtype)
        module.expect(
            "stablehlo.iota dim = 0 :", tensor((300, 2), element), wanted[:, None].repeat(2, 1)
        )
        module.expect(
            "stablehlo.iota dim = 1 :", tensor((2, 300), element), wanted[None].repeat(2, 0)
        )
        module.expect(
            f"stablehlo.dynamic_iota {size}, dim = 1 : (tensor<2xi32>) ->",
            tensor((-1, -1), element),
            wanted[None],
        )
    module.expect("stablehlo.iota dim = 0 :", "tensor<1100xi16>", np.arange(1100, dtype=np.int16))
    module.expect(
        "stablehlo.iota dim = 0 :", "tensor<1100x1xi8>", np.arange(1100).astype(np.int8)[:, None]
    )
    module.expect("stablehlo.iota dim = 1 :", "tensor<3x0xi32>", np.zeros((3, 0), np.int32))
    module.check()


# From sizes, and what is reshaped to what, of arrays that an argument fills or broadcasts do.
_RESHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()),
    ((), (1, 1)),
    ((1, 1), ()),
    ((6,), (2, 3)),
    ((2, 3), (6,)),
    ((2, 3), (3, 2)),
    ((2, 3), (1, 2, 1, 3, 1)),
    ((1, 2, 1, 3, 1), (2, 3)),
    ((1, 6), (6,)),
    ((4, 3), (2, 2, 3)),
    ((4, 3), (4, 1, 3)),
    ((2, 2, 3), (4, 3)),
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4), (2, 12)),
    ((2, 3, 4), (4, 6)),
    ((0, 3), (3, 0)),
    ((2, 0), (0,)),
    ((1, 3, 1), (3,)),
    ((2, 1, 3, 2), (2, 1, 6)),
)


def test_reshapes_of_arguments_broadcasts_and_constants() -> None:
    module = _Module()
    for sizes, wanted in _RESHAPES:
        kind, result = tensor(sizes, "f32"), tensor(wanted, "f32")
        value = _numbers(sizes)
        x = module.argument(kind, value)
        module.expect(f"stablehlo.reshape {x} : ({kind}) ->", result, value.reshape(wanted))
        # Each selection of axes is repeated.
        for chosen in itertools.product((False, True), repeat=len(sizes)):
            kept = [axis for axis, is_kept in enumerate(chosen) if is_kept]
            if len(kept) == len(sizes):
                continue
            part = _numbers([sizes[axis] for axis in kept])
            own = tensor(part.shape, "f32")
            given = module.argument(own, part)
            dims = f"dims = {kept}"
            broadcast = module.line(
                f"stablehlo.broadcast_in_dim {given}, {dims} : ({own}) -> {kind}"
            )
            whole = np.broadcast_to(
                part.reshape([s if i in kept else 1 for i, s in enumerate(sizes)]), sizes
            )
            module.expect(
                f"stablehlo.reshape {broadcast} : ({kind}) ->", result, whole.reshape(wanted)
            )
    module.check()


def test_leading_axes_of_size_1_are_left_out_of_broadcasts() -> None:
    """LiteRT's converter fails for a broadcast of a vector to six axes."""
    text = """module { func.func @main(%x: tensor<1x1x4xf32>) -> tensor<1x1x8xf32> {
        %0 = stablehlo.broadcast_in_dim %x, dims = [0, 2, 5]
            : (tensor<1x1x4xf32>) -> tensor<1x1x1x1x2x4xf32>
        %1 = stablehlo.reshape %0 : (tensor<1x1x1x1x2x4xf32>) -> tensor<1x1x8xf32>
        return %1 : tensor<1x1x8xf32> } }"""
    x = _numbers((1, 1, 4))
    np.testing.assert_array_equal(run(text, x)[0], np.tile(x, (1, 1, 2)))
    operations = trace(portable_of(text), [x]).graph.get_operations()
    (broadcast,) = (each for each in operations if each.type == "BroadcastTo")
    assert broadcast.outputs[0].shape == (2, 4)


def test_permuted_broadcasts_and_what_is_done_to_them() -> None:
    module = _Module()
    kind, wide = "tensor<2x3xf32>", "tensor<3x4x2xf32>"
    value = _numbers((2, 3))
    whole = np.broadcast_to(value.T[:, None], (3, 4, 2))
    for given in (
        module.argument(kind, value),
        module.line("stablehlo.constant dense<[[1., 2., 3.], [4., 5., 6.]]> : tensor<2x3xf32>"),
    ):
        module.expect(
            f"stablehlo.broadcast_in_dim {given}, dims = [2, 0] : ({kind}) ->", wide, whole
        )
        x = module.line(f"stablehlo.broadcast_in_dim {given}, dims = [2, 0] : ({kind}) -> {wide}")
        for order in itertools.permutations(range(3)):
            found = whole.transpose(order)
            module.expect(
                f"stablehlo.transpose {x}, dims = {list(order)} : ({wide}) ->",
                tensor(found.shape, "f32"),
                found,
            )
        for text, index in (
            ("[0:1, 0:4, 0:2]", np.s_[:1]),
            ("[2:3, 1:2, 0:2]", np.s_[2:, 1:2]),
            ("[0:3, 1:4:2, 0:2]", np.s_[:, 1::2]),
            ("[0:3, 1:1, 0:2]", np.s_[:, 1:1]),
            ("[1:2, 1:2, 1:2]", np.s_[1:2, 1:2, 1:2]),
            ("[0:3:2, 0:4:3, 1:2]", np.s_[::2, ::3, 1:]),
        ):
            found = whole[index]
            module.expect(
                f"stablehlo.slice {x} {text} : ({wide}) ->", tensor(found.shape, "f32"), found
            )
        for axes in ([0], [1], [2], [0, 1], [0, 1, 2]):
            module.expect(
                f"stablehlo.reverse {x}, dims = {axes} :", wide, np.flip(whole, tuple(axes))
            )
        for axis in range(3):
            found = np.concatenate([whole, whole, whole[:, :, :]], axis)
            module.expect(
                f"stablehlo.concatenate {x}, {x}, {x}, dim = {axis} : ({wide}, {wide}, {wide}) ->",
                tensor(found.shape, "f32"),
                found,
            )
    module.check()


_PADS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 2), (1, 0), (0, 2), (0, 0)),
    ((3, 2), (-1, 0), (0, 0), (0, 0)),
    ((3, 2), (-1, 2), (3, -1), (0, 0)),
    ((3, 2), (0, 0), (0, 0), (2, 1)),
    ((3, 2), (-2, 1), (-1, -2), (1, 2)),
    ((3, 2), (-2, 0), (-1, 0), (0, 0)),
    ((3, 2), (-3, 0), (2, 0), (0, 0)),
    ((3, 2), (4, 0), (-5, 0), (1, 0)),
    ((0, 2), (1, 0), (1, 0), (3, 1)),
    ((0, 2), (0, 0), (0, 0), (3, 1)),
    ((1, 2), (0, 0), (0, 0), (3, 0)),
    ((0, 2), (2, 0), (-1, 0), (0, 0)),
)


def _amounts(amounts: Sequence[int]) -> str:
    return f"array<i64: {', '.join(map(str, amounts))}>"


def test_padding_of_any_sign() -> None:
    module = _Module()
    minus = module.line("stablehlo.constant dense<-0.0> : tensor<f32>")
    value = module.argument("tensor<f32>", np.float32(9))
    for sizes, *amounts in _PADS:
        array = _numbers(sizes)
        kind = tensor(sizes, "f32")
        x = module.argument(kind, array)
        row = module.argument(
            tensor(sizes[1:], "f32"), array[:1].reshape(-1)[:2] if sizes[0] else _numbers((2,))
        )
        for filler, number in ((value, 9.0), (minus, -0.0)):
            found = _padded(array, number, *amounts)
            text = ", ".join(
                f"{name} = {list(amount)}"
                for name, amount in zip(("low", "high", "interior"), amounts, strict=True)
            )
            module.expect(
                f"stablehlo.pad {x}, {filler}, {text} : ({kind}, tensor<f32>) ->",
                tensor(found.shape, "f32"),
                found,
            )
        repeated = module.line(
            f"stablehlo.broadcast_in_dim {row}, dims = [1] : ({tensor(sizes[1:], 'f32')}) -> {kind}"
        )
        whole = np.broadcast_to(module.arguments[-1][1], sizes)
        found = _padded(whole, 9, *amounts)
        module.expect(
            f"stablehlo.pad {repeated}, {value}, {text} : ({kind}, tensor<f32>) ->",
            tensor(found.shape, "f32"),
            found,
        )
    module.check()


def test_open_sizes() -> None:
    module = _Module()
    kind = "tensor<?x?xf32>"
    value = _numbers((4, 3))
    x = module.argument(kind, value)
    n, m = (
        module.line(f"stablehlo.get_dimension_size {x}, dim = {axis} : ({kind}) -> tensor<i32>")
        for axis in (0, 1)
    )
    one, two = (
        module.line(f"stablehlo.constant dense<{number}> : tensor<1xi32>") for number in (1, 2)
    )
    rows, columns = (
        module.line(f"stablehlo.reshape {size} : (tensor<i32>) -> tensor<1xi32>") for size in (n, m)
    )
    total = module.line(f"stablehlo.multiply {rows}, {columns} : tensor<1xi32>")

    def shape(*parts: str) -> str:
        kinds = ", ".join(["tensor<1xi32>"] * len(parts))
        return module.line(
            f"stablehlo.concatenate {', '.join(parts)}, dim = 0 : ({kinds}) -> "
            f"tensor<{len(parts)}xi32>"
        )

    for parts, wanted in (
        ((total,), (12,)),
        ((columns, rows), (3, 4)),
        ((rows, one, columns), (4, 1, 3)),
        ((one, rows, columns, one), (1, 4, 3, 1)),
        ((two, two, columns), (2, 2, 3)),
        ((one, total), (1, 12)),
    ):
        module.expect(
            f"stablehlo.dynamic_reshape {x}, {shape(*parts)} : "
            f"({kind}, tensor<{len(parts)}xi32>) ->",
            tensor([-1] * len(parts), "f32"),
            value.reshape(wanted),
        )
    repeated = module.line(
        f"stablehlo.dynamic_broadcast_in_dim {x}, {shape(two, rows, two, columns)}, "
        f"dims = [1, 3] : ({kind}, tensor<4xi32>) -> tensor<?x?x?x?xf32>"
    )
    twice = module.line(f"stablehlo.multiply {rows}, {two} : tensor<1xi32>")
    wider = module.line(f"stablehlo.multiply {columns}, {two} : tensor<1xi32>")
    module.expect(
        f"stablehlo.dynamic_reshape {repeated}, {shape(twice, wider)} : "
        "(tensor<?x?x?x?xf32>, tensor<2xi32>) ->",
        kind,
        np.tile(value, (2, 2)),
    )
    behind = module.line(
        f"stablehlo.dynamic_broadcast_in_dim {x}, {shape(rows, two, columns, two)}, "
        f"dims = [0, 2] : ({kind}, tensor<4xi32>) -> tensor<?x?x?x?xf32>"
    )
    module.expect(
        f"stablehlo.dynamic_reshape {behind}, {shape(twice, wider)} : "
        "(tensor<?x?x?x?xf32>, tensor<2xi32>) ->",
        kind,
        value.repeat(2, 0).repeat(2, 1),
    )
    zeros, ones = (
        module.line(f"stablehlo.constant dense<{number}> : tensor<2xi32>") for number in (0, 1)
    )
    sizes = shape(rows, columns)
    last = module.line(f"stablehlo.subtract {sizes}, {ones} : tensor<2xi32>")
    kinds = f"({kind}, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) ->"
    module.expect(
        f"stablehlo.real_dynamic_slice {x}, {ones}, {sizes}, {ones} : {kinds}", kind, value[1:, 1:]
    )
    module.expect(
        f"stablehlo.real_dynamic_slice {x}, {zeros}, {last}, {ones} : {kinds}",
        kind,
        value[:-1, :-1],
    )
    module.expect(
        f"stablehlo.real_dynamic_slice {x}, {last}, {sizes}, {ones} : {kinds}",
        kind,
        value[-1:, -1:],
    )
    steps = module.line("stablehlo.constant dense<[2, 3]> : tensor<2xi32>")
    module.expect(
        f"stablehlo.real_dynamic_slice {x}, {zeros}, {sizes}, {steps} : {kinds}",
        kind,
        value[::2, ::3],
    )
    # These values are only known at run time.
    start, limit, step = (
        module.argument("tensor<2xi32>", np.array(numbers, np.int32))
        for numbers in ((0, 1), (4, 1), (3, 1))
    )
    module.expect(
        f"stablehlo.real_dynamic_slice {x}, {start}, {limit}, {step} : {kinds}",
        kind,
        value[::3, 1:1],
    )
    filler = module.argument("tensor<f32>", np.float32(-0.0))
    pads = f"({kind}, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) ->"
    for amounts in (((-1, 0), (2, -2), (0, 3)), ((0, 3), (-4, 0), (1, 0))):
        given = [module.argument("tensor<2xi32>", np.array(a, np.int32)) for a in amounts]
        module.expect(
            f"stablehlo.dynamic_pad {x}, {filler}, {', '.join(given)} : {pads}",
            kind,
            _padded(value, -0.0, *amounts),
        )
    module.expect(
        f"stablehlo.dynamic_pad {x}, {filler}, {last}, {zeros}, {ones} : {pads}",
        kind,
        _padded(value, -0.0, (3, 2), (0, 0), (1, 1)),
    )
    module.expect(
        f"stablehlo.concatenate {x}, {x}, dim = 1 : ({kind}, {kind}) ->",
        kind,
        np.concatenate([value, value], 1),
    )
    module.expect(f"stablehlo.reverse {x}, dims = [0] :", kind, value[::-1])
    module.expect(
        f"stablehlo.transpose {x}, dims = [1, 0] : ({kind}) ->", "tensor<?x?xf32>", value.T
    )
    module.expect(
        f"stablehlo.dynamic_iota {sizes}, dim = 0 : (tensor<2xi32>) ->",
        "tensor<?x?xbf16>",
        np.arange(4).astype(ml_dtypes.bfloat16)[:, None].repeat(3, 1),
    )
    module.check()


def test_sizes_as_values() -> None:
    found = run(
        """func.func public @main(%x: tensor<?x3xf32>)
          -> (tensor<i32>, tensor<i32>, tensor<?x3xf32>) {
        %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
        %m = stablehlo.get_dimension_size %x, dim = 1 : (tensor<?x3xf32>) -> tensor<i32>
        %y = stablehlo.set_dimension_size %x, %n, dim = 0
          : (tensor<?x3xf32>, tensor<i32>) -> tensor<?x3xf32>
        return %n, %m, %y : tensor<i32>, tensor<i32>, tensor<?x3xf32>
        }""",
        np.ones((5, 3), np.float32),
    )
    assert found[0] == 5
    assert found[1] == 3
    assert found[2].shape == (5, 3)


def test_a_size_that_tensors_cannot_have_is_refused() -> None:
    text = """func.func public @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
        %y = stablehlo.set_dimension_size %x, %n, dim = 0
          : (tensor<4xf32>, tensor<i32>) -> tensor<4xf32>
        return %y : tensor<4xf32>
        }"""
    with pytest.raises(ModuleError, match="set_dimension_size"):
        run(text, np.ones(4, np.float32), np.int32(3))
