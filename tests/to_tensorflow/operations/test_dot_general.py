"""dot_general and its kin agree with numpy.einsum in every layout and dtype, as plain MatMuls."""

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.to_tensorflow.operations.running import op_names, portable_of, run, trace

_SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 2, "o": 1}
# The axes of the left operand, of the right one, and of an elementwise factor.
_EQUATIONS = [
    ("ab", "bc", ""),
    ("ba", "bc", ""),
    ("ab", "cb", ""),
    ("ba", "cb", ""),
    ("abc", "cd", ""),
    ("bac", "dc", ""),
    ("acb", "cd", ""),
    ("abcd", "cd", ""),
    ("abcd", "dc", ""),
    ("acbd", "ced", ""),
    ("abc", "abd", ""),
    ("cab", "dba", ""),
    ("abc", "acd", "a"),
    ("abdc", "aebc", "ab"),
    ("bacd", "ecab", "ab"),
    ("abcd", "aebd", "ab"),
    ("cabd", "abde", "ba"),
    ("b", "bc", ""),
    ("ab", "b", ""),
    ("b", "b", ""),
    ("ab", "ab", ""),
    ("abc", "cba", ""),
    ("ab", "ab", "a"),
    ("ab", "ac", "a"),
    ("ab", "ba", "ba"),
    ("a", "b", ""),
    ("", "ab", ""),
    ("aob", "boc", ""),
    ("oab", "obc", "o"),
    ("ab", "bo", ""),
]


def _type(term: str, element: str, opened: str) -> str:
    sizes = ("?" if x in opened else str(_SIZES[x]) for x in term)
    return f"tensor<{'x'.join((*sizes, element))}>"


def _result(left: str, right: str, batch: str) -> str:
    summed = set(left) & set(right) - set(batch)
    return batch + "".join(
        x for term in (left, right) for x in term if x not in summed and x not in batch
    )


def _operation(
    name: str, left: str, right: str, batch: str, types: tuple[str, str, str], operands: str
) -> str:
    summed = [x for x in left if x in right and x not in batch]

    def places(term: str, labels: Any) -> str:
        return ", ".join(str(term.index(x)) for x in labels)

    return (
        f'%{name} = "stablehlo.dot_general"({operands}) <{{dot_dimension_numbers = '
        f"#stablehlo.dot<lhs_batching_dimensions = [{places(left, batch)}], "
        f"rhs_batching_dimensions = [{places(right, batch)}], "
        f"lhs_contracting_dimensions = [{places(left, summed)}], "
        f"rhs_contracting_dimensions = [{places(right, summed)}]>}}>"
        f" : ({types[0]}, {types[1]}) -> {types[2]}\n"
    )


@pytest.mark.parametrize("opened", ["", "a", "abcdeo"])
def test_layouts(opened: str) -> None:
    """All layouts at once, each size known or open."""
    rng = np.random.default_rng(0)
    arguments, lines, values, expected, symbols = [], [], [], [], ""
    results = []
    for i, (left, right, batch) in enumerate(_EQUATIONS):
        result = _result(left, right, batch)
        l_type, r_type, o_type = (_type(x, "f32", opened) for x in (left, right, result))
        arguments += [f"%l{i}: {l_type}", f"%r{i}: {r_type}"]
        symbols += "".join(x for x in left + right if x in opened)
        lines.append(
            _operation(f"o{i}", left, right, batch, (l_type, r_type, o_type), f"%l{i}, %r{i}")
        )
        results.append(o_type)
        pair = [
            rng.standard_normal([_SIZES[x] for x in t]).astype(np.float32) for t in (left, right)
        ]
        values += pair
        expected.append(np.einsum(f"{left},{right}->{result}", *pair))
    text = (
        f"func.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{\n{''.join(lines)}"
        f"return {', '.join(f'%o{i}' for i in range(len(lines)))} : {', '.join(results)}\n}}"
    )
    for equation, found, right_one in zip(
        _EQUATIONS, run(text, *values, symbols=symbols), expected, strict=True
    ):
        np.testing.assert_allclose(found, right_one, rtol=1e-5, atol=1e-5, err_msg=str(equation))
        assert found.dtype == np.float32


_INTEGERS = ["i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64"]


def _numpy(element: str) -> Any:
    named = {"i1": bool, "bf16": ml_dtypes.bfloat16, "complex<f32>": np.complex64}
    named |= {"complex<f64>": np.complex128, "f16": np.float16, "f32": np.float32}
    named |= {"f64": np.float64}
    return named.get(element) or np.dtype(element.replace("ui", "uint").replace("i", "int", 1))


def _numpy_integer(element: str) -> Any:
    return np.dtype(f"{'u' if element[0] == 'u' else ''}int{element.lstrip('ui')}")


def test_dtypes() -> None:
    """Integers wrap around at the result's width, 16 bits are summed in 32, bools are `any`."""
    rng = np.random.default_rng(1)
    cases = [(x, x) for x in (*_INTEGERS, "i1", "f64", "complex<f32>", "complex<f64>")]
    cases += [("i8", "i32"), ("ui8", "i32"), ("ui32", "ui64"), ("i32", "f32"), ("bf16", "f32")]
    cases += [("f16", "f32"), ("f32", "f64"), ("f32", "bf16"), ("f32", "complex<f32>")]
    arguments, lines, values, expected, results = [], [], [], [], []
    for i, (source, target) in enumerate(cases):
        types = (_type("ab", source, ""), _type("bc", source, ""), _type("ac", target, ""))
        arguments += [f"%l{i}: {types[0]}", f"%r{i}: {types[1]}"]
        lines.append(_operation(f"o{i}", "ab", "bc", "", types, f"%l{i}, %r{i}"))
        results.append(types[2])
        pair = []
        for shape in ((2, 3), (3, 4)):
            if source in _INTEGERS:
                dtype = _numpy_integer(source)
                bounds = np.iinfo(dtype)
                pair.append(rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True))
            elif source == "i1":
                pair.append(rng.random(shape) < 0.4)
            else:
                numbers = rng.standard_normal(shape) + (
                    1j * rng.standard_normal(shape) if "complex" in source else 0
                )
                pair.append(numbers.astype(_numpy(source)))
        values += pair
        if source == target == "i1":
            expected.append((pair[0][:, :, None] & pair[1]).any(1))
        elif target in _INTEGERS:
            exact = np.array(pair[0].astype(object)) @ np.array(pair[1].astype(object))
            dtype = _numpy_integer(target)
            bits = 8 * dtype.itemsize
            wrapped = np.vectorize(lambda x, bits=bits: int(x) % (1 << bits), otypes=[object])(
                exact
            )
            expected.append(wrapped.astype(np.uint64).astype(dtype))
        else:
            wide = np.complex128 if "complex" in target else np.float64
            expected.append((pair[0].astype(wide) @ pair[1].astype(wide)).astype(_numpy(target)))
    text = (
        f"func.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{\n{''.join(lines)}"
        f"return {', '.join(f'%o{i}' for i in range(len(lines)))} : {', '.join(results)}\n}}"
    )
    for case, found, right in zip(cases, run(text, *values), expected, strict=True):
        assert found.dtype == right.dtype, case
        if right.dtype.kind in "iub":
            np.testing.assert_array_equal(found, right, err_msg=str(case))
        else:
            one, other = (x.astype(np.complex128) for x in (found, right))
            np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-5, err_msg=str(case))


def test_sixteen_bits_are_summed_in_more() -> None:
    """A sum of 4096 ones stays 4096, where bfloat16 would stop at 256 and float16 at 2048."""
    text = "func.func @main("
    elements = ("bf16", "f16")
    text += ", ".join(
        f"%{x}: tensor<1x4096x{x}>, %{x}_: tensor<4096x{x}>, %{x}__: tensor<4096x3x{x}>"
        for x in elements
    )
    text += ") -> (tensor<1xbf16>, tensor<1x3xbf16>, tensor<1xf16>, tensor<1x3xf16>) {\n"
    for x in elements:
        text += (
            f"%{x}0 = stablehlo.dot_general %{x}, %{x}_, contracting_dims = [1] x [0]"
            f" : (tensor<1x4096x{x}>, tensor<4096x{x}>) -> tensor<1x{x}>\n"
            f"%{x}1 = stablehlo.dot_general %{x}, %{x}__, contracting_dims = [1] x [0]"
            f" : (tensor<1x4096x{x}>, tensor<4096x3x{x}>) -> tensor<1x3x{x}>\n"
        )
    text += (
        "return %bf160, %bf161, %f160, %f161"
        " : tensor<1xbf16>, tensor<1x3xbf16>, tensor<1xf16>, tensor<1x3xf16>\n}"
    )
    values = [
        np.ones(shape, dtype)
        for dtype in (ml_dtypes.bfloat16, np.float16)
        for shape in ((1, 4096), (4096,), (4096, 3))
    ]
    for found in run(text, *values):
        assert np.all(found == 4096)


def test_narrow_integers() -> None:
    """Integers of 4 bits wrap around at 4."""
    text = """func.func @main(%a: tensor<2x3xi8>, %b: tensor<3x2xi8>)
        -> (tensor<2x2xi8>, tensor<2x2xui8>) {
      %0 = stablehlo.convert %a : (tensor<2x3xi8>) -> tensor<2x3xi4>
      %1 = stablehlo.convert %b : (tensor<3x2xi8>) -> tensor<3x2xi4>
      %2 = stablehlo.dot %0, %1 : (tensor<2x3xi4>, tensor<3x2xi4>) -> tensor<2x2xi4>
      %3 = stablehlo.convert %2 : (tensor<2x2xi4>) -> tensor<2x2xi8>
      %4 = stablehlo.convert %a : (tensor<2x3xi8>) -> tensor<2x3xui4>
      %5 = stablehlo.convert %b : (tensor<3x2xi8>) -> tensor<3x2xui4>
      %6 = stablehlo.dot %4, %5 : (tensor<2x3xui4>, tensor<3x2xui4>) -> tensor<2x2xui4>
      %7 = stablehlo.convert %6 : (tensor<2x2xui4>) -> tensor<2x2xui8>
      return %3, %7 : tensor<2x2xi8>, tensor<2x2xui8>
    }"""
    a = np.array([[7, 5, 3], [1, 6, 2]], np.int8)
    b = np.array([[7, 1], [4, 3], [2, 6]], np.int8)
    exact = a.astype(int) @ b
    signed, unsigned = run(text, a, b)
    np.testing.assert_array_equal(signed, (exact + 8) % 16 - 8)
    np.testing.assert_array_equal(unsigned, exact % 16)


def test_floats_saturate_as_integers() -> None:
    """A sum of floats becomes the nearest integer towards zero, and NaN becomes 0."""
    text = """func.func @main(%a: tensor<6x2xf32>, %b: tensor<2x1xf32>)
        -> (tensor<6x1xi32>, tensor<6x1xui8>, tensor<6x1xi32>) {
      %0 = stablehlo.dot %a, %b : (tensor<6x2xf32>, tensor<2x1xf32>) -> tensor<6x1xi32>
      %1 = stablehlo.dot %a, %b : (tensor<6x2xf32>, tensor<2x1xf32>) -> tensor<6x1xui8>
      %2 = stablehlo.convert %a : (tensor<6x2xf32>) -> tensor<6x2xf64>
      %3 = stablehlo.convert %b : (tensor<2x1xf32>) -> tensor<2x1xf64>
      %4 = stablehlo.dot %2, %3 : (tensor<6x2xf64>, tensor<2x1xf64>) -> tensor<6x1xi32>
      return %0, %1, %4 : tensor<6x1xi32>, tensor<6x1xui8>, tensor<6x1xi32>
    }"""
    a = [[np.nan, 0], [np.inf, 0], [3e10, 1], [-np.inf, 0], [-5, -2.7], [0.5, 0.7]]
    signed, unsigned, wide = run(text, np.array(a, np.float32), np.ones((2, 1), np.float32))
    expected = [0, 2**31 - 1, 2**31 - 1, -(2**31), -7, 1]
    assert signed.ravel().tolist() == wide.ravel().tolist() == expected
    assert unsigned.ravel().tolist() == [0, 255, 255, 0, 0, 1]


def test_nothing_to_sum() -> None:
    """Sums of nothing are 0, and empty results have their sizes."""
    text = """func.func @main(%a: tensor<2x0xf32>, %b: tensor<0x3xf32>,
        %c: tensor<?x0x4xf32>, %d: tensor<4x3xf32>)
        -> (tensor<2x3xf32>, tensor<?x0x3xf32>) {
      %0 = stablehlo.dot %a, %b : (tensor<2x0xf32>, tensor<0x3xf32>) -> tensor<2x3xf32>
      %1 = stablehlo.dot_general %c, %d, contracting_dims = [2] x [0]
        : (tensor<?x0x4xf32>, tensor<4x3xf32>) -> tensor<?x0x3xf32>
      return %0, %1 : tensor<2x3xf32>, tensor<?x0x3xf32>
    }"""
    shapes = [(2, 0), (0, 3), (5, 0, 4), (4, 3)]
    first, second = run(text, *(np.ones(shape, np.float32) for shape in shapes))
    np.testing.assert_array_equal(first, np.zeros((2, 3)))
    assert second.shape == (5, 0, 3)


def _ops(text: str, *shapes: tuple[int, ...], symbols: str = "") -> dict[str, int]:
    """Counts the operations, by kind, but those of the checks of the arguments' sizes."""
    args = [np.zeros(shape, np.float32) for shape in shapes]
    graph = trace(portable_of(text, symbols=symbols), args).graph
    plain = {"Placeholder", "Const", "Identity", "NoOp", "PreventGradient"}
    plain |= {"Shape", "Unpack", "GreaterEqual", "Equal", "Assert"}
    return Counter(name for name in op_names(graph) if name not in plain)


def test_repeated_operands_are_not_copied() -> None:
    """BatchMatMul broadcasts along batch axes, or one operand serves all of them."""
    text = """func.func @main(%x: tensor<2x3x4xf32>, %w: tensor<4x5xf32>, %v: tensor<4xf32>)
        -> (tensor<2x3x5xf32>, tensor<2x5xf32>, tensor<2x3xf32>) {
      %0 = stablehlo.broadcast_in_dim %w, dims = [1, 2] : (tensor<4x5xf32>) -> tensor<2x4x5xf32>
      %1 = stablehlo.dot_general %x, %0, batching_dims = [0] x [0], contracting_dims = [2] x [1]
        : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
      %2 = stablehlo.broadcast_in_dim %v, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
      %3 = stablehlo.dot_general %2, %0, batching_dims = [0] x [0], contracting_dims = [1] x [1]
        : (tensor<2x4xf32>, tensor<2x4x5xf32>) -> tensor<2x5xf32>
      %4 = stablehlo.dot_general %x, %2, batching_dims = [0] x [0], contracting_dims = [2] x [1]
        : (tensor<2x3x4xf32>, tensor<2x4xf32>) -> tensor<2x3xf32>
      return %1, %3, %4 : tensor<2x3x5xf32>, tensor<2x5xf32>, tensor<2x3xf32>
    }"""
    rng = np.random.default_rng(2)
    x, w, v = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 4), (4, 5), (4,)))
    first, second, third = run(text, x, w, v)
    np.testing.assert_allclose(first, x @ w, 1e-5)
    np.testing.assert_allclose(second, np.broadcast_to(v @ w, (2, 5)), 1e-5)
    np.testing.assert_allclose(third, x @ v, 1e-5)
    text = text.replace(
        "return %1, %3, %4 : tensor<2x3x5xf32>, tensor<2x5xf32>, tensor<2x3xf32>",
        "return %1 : tensor<2x3x5xf32>",
    )
    text = text.replace(
        "(tensor<2x3x5xf32>, tensor<2x5xf32>, tensor<2x3xf32>) {", "tensor<2x3x5xf32> {"
    )
    assert "BroadcastTo" not in _ops(text, x.shape, w.shape, v.shape)


def test_repetition_along_the_sum() -> None:
    """An operand that is repeated along what is summed counts as often as it is there."""
    text = """func.func @main(%x: tensor<?x4xf32>, %s: tensor<f32>) -> tensor<?xf32> {
      %0 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4xf32>
      %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0]
        : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?xf32>
      return %1 : tensor<?xf32>
    }"""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (found,) = run(text, x, np.float32(2))
    np.testing.assert_allclose(found, 2 * x.sum(1))


@pytest.mark.parametrize(
    ("left", "right", "batch", "opened", "expected"),
    [
        ("ab", "bc", "", "a", {"MatMul": 1}),
        ("ba", "cb", "", "a", {"MatMul": 1}),
        ("zyb", "bc", "", "zy", {"BatchMatMulV2": 1}),
        ("abcd", "abed", "ab", "ac", {"BatchMatMulV2": 1}),
        ("abcd", "abde", "ab", "abcde", {"BatchMatMulV2": 1}),
        ("yzb", "yzc", "", "yz", {"Reshape": 2, "MatMul": 1}),
        ("abc", "bad", "", "", {"Transpose": 1, "Reshape": 2, "MatMul": 1}),
    ],
)
def test_operations(
    left: str, right: str, batch: str, opened: str, expected: dict[str, int]
) -> None:
    """The layouts that models have need a product and nothing else, with open sizes too."""
    sizes = {**_SIZES, "y": 16, "z": 16}

    def kind(term: str) -> str:
        return "x".join(["?" if x in opened else str(sizes[x]) for x in term] + ["f32"])

    found = [f"tensor<{kind(x)}>" for x in (left, right, _result(left, right, batch))]
    types = (found[0], found[1], found[2])
    operation = _operation("o", left, right, batch, types, "%l, %r")
    text = f"func.func @main(%l: {types[0]}, %r: {types[1]}) -> {types[2]} {{\n{operation}"
    text += f"return %o : {types[2]}\n}}"
    symbols = "".join(x for x in left + right if x in opened)
    shapes = [tuple(sizes[x] for x in term) for term in (left, right)]
    assert _ops(text, *shapes, symbols=symbols) == expected


def test_transposes_are_folded() -> None:
    """A transpose before a product becomes a flag of MatMul."""
    text = """func.func @main(%x: tensor<3x4xf32>, %w: tensor<5x4xf32>) -> tensor<3x5xf32> {
      %0 = stablehlo.transpose %w, dims = [1, 0] : (tensor<5x4xf32>) -> tensor<4x5xf32>
      %1 = stablehlo.dot %x, %0 : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
      return %1 : tensor<3x5xf32>
    }"""
    args = [np.zeros((3, 4), np.float32), np.zeros((5, 4), np.float32)]
    graph = trace(portable_of(text), args).graph
    (product,) = (x for x in graph.as_graph_def().node if x.op == "MatMul")
    assert product.attr["transpose_b"].b
