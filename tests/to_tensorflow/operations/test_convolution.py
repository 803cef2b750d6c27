"""Convolutions agree with sums in numpy, for all dimension numbers, and are TensorFlow's own."""

import itertools
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge.errors import ModuleError
from tests.to_tensorflow.operations.running import op_names, portable_of, run, run_each, trace


@dataclass
class Case:
    """A convolution: letters for the axes, b and f of images, i and o of kernels.

    Attributes:
      numbers: of image, kernel and result, as "b01f,01io,b01f".
      image: sizes of the image, as written.
      kernel: sizes of the kernel, as written.
      opened: letters of the image's axes whose sizes are open; the result's too, but for "f".
      opened_kernel: letters of the kernel's.
      opened_result: letters of the result's, if others.
    """

    numbers: str
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: Sequence[int] = ()
    padding: Sequence[tuple[int, int]] = ()
    spread: Sequence[int] = ()
    dilation: Sequence[int] = ()
    reverse: Sequence[bool] = ()
    groups: int = 1
    batch_groups: int = 1
    opened: str = ""
    opened_kernel: str = ""
    opened_result: str | None = None
    element: str = "f32"
    to: str = ""

    def __post_init__(self) -> None:
        n = len(self.image) - 2
        self.stride, self.spread, self.dilation = (
            tuple(x) or (1,) * n for x in (self.stride, self.spread, self.dilation)
        )
        self.padding = tuple(self.padding) or ((0, 0),) * n
        self.reverse = tuple(self.reverse) or (False,) * n
        self.to = self.to or self.element

    def reference(self, image: Any, kernel: Any) -> Any:
        """Adds the products, place by place of the window."""
        left, right, out = self.numbers.split(",")
        spatial = "".join(map(str, range(len(self.stride))))
        x = image.transpose([left.index(c) for c in f"b{spatial}f"])
        w = kernel.transpose([right.index(c) for c in f"{spatial}io"])
        groups = self.groups
        if self.batch_groups > 1:
            x = np.concatenate(np.split(x, self.batch_groups, 0), -1)
            groups = self.batch_groups
        for axis, (distance, (low, high)) in enumerate(
            zip(self.spread, self.padding, strict=True), 1
        ):
            sizes = list(x.shape)
            sizes[axis] = max((sizes[axis] - 1) * distance + 1, 0)
            spaced = np.zeros(sizes, x.dtype)
            spaced[(slice(None),) * axis + (slice(None, None, distance),)] = x
            pads = [(0, 0)] * x.ndim
            pads[axis] = (max(low, 0), max(high, 0))
            x = np.pad(spaced, pads)
            cut = slice(max(-low, 0), x.shape[axis] - max(-high, 0))
            x = x[(slice(None),) * axis + (cut,)]
        for axis, flag in enumerate(self.reverse):
            w = np.flip(w, axis) if flag else w
        windows = w.shape[:-2]
        results = [
            max((size - (k - 1) * d - 1) // s + 1, 0)
            for size, k, d, s in zip(
                x.shape[1:-1], windows, self.dilation, self.stride, strict=True
            )
        ]
        inner, features = w.shape[-2:]
        total = np.zeros((x.shape[0], *results, features), x.dtype)
        for place in itertools.product(*map(range, windows)):
            part = x
            for axis, (k, d, s, r) in enumerate(
                zip(place, self.dilation, self.stride, results, strict=True), 1
            ):
                chosen = k * d + s * np.arange(r)
                part = np.take(part, chosen, axis)
            for g in range(groups):
                columns = slice(g * features // groups, (g + 1) * features // groups)
                one = part[..., g * inner : (g + 1) * inner]
                total[..., columns] += np.tensordot(one, w[place][:, columns], 1)
        return total.transpose([f"b{spatial}f".index(c) for c in out])

    def _type(self, letters: str, sizes: Sequence[int], opened: str, element: str) -> str:
        found = ("?" if c in opened else str(n) for c, n in zip(letters, sizes, strict=True))
        return f"tensor<{'x'.join((*found, element))}>"

    def types(self) -> tuple[str, str, str]:
        left, right, out = self.numbers.split(",")
        result = self.reference(*(np.zeros(s) for s in (self.image, self.kernel))).shape
        return (
            self._type(left, self.image, self.opened, self.element),
            self._type(right, self.kernel, self.opened_kernel, self.element),
            self._type(out, result, self._opened_result(), self.to),
        )

    def _opened_result(self) -> str:
        if self.opened_result is not None:
            return self.opened_result
        return self.opened.replace("f", "")

    def operation(self, name: str, image: str, kernel: str) -> str:
        """Writes the operation."""
        dims = "x".join(f"[{', '.join(part)}]" for part in self.numbers.split(",")[:2])
        dims += f"->[{', '.join(self.numbers.split(',')[2])}]"
        lists = ", ".join(
            f"{key} = {[int(x) for x in value]}"
            for key, value in (
                ("stride", self.stride),
                ("lhs_dilate", self.spread),
                ("rhs_dilate", self.dilation),
            )
        )
        pads = [list(pair) for pair in self.padding]
        reverse = ", ".join(str(flag).lower() for flag in self.reverse)
        types = self.types()
        return (
            f"%{name} = stablehlo.convolution(%{image}, %{kernel}) dim_numbers = {dims}, "
            f"window = {{{lists}, pad = {pads}, reverse = [{reverse}]}} "
            f"{{batch_group_count = {self.batch_groups} : i64, "
            f"feature_group_count = {self.groups} : i64}} "
            f": ({types[0]}, {types[1]}) -> {types[2]}\n"
        )


def _text(cases: Sequence[Case]) -> str:
    types = [case.types() for case in cases]
    arguments = ", ".join(f"%x{i}: {t[0]}, %w{i}: {t[1]}" for i, t in enumerate(types))
    results = ", ".join(t[2] for t in types)
    lines = "".join(case.operation(f"o{i}", f"x{i}", f"w{i}") for i, case in enumerate(cases))
    names = ", ".join(f"%o{i}" for i in range(len(cases)))
    return f"func.func @main({arguments}) -> ({results}) {{\n{lines}return {names} : {results}\n}}"


def _symbols(cases: Sequence[Case]) -> str:
    """Names open sizes, of which all are different."""
    count = sum(t.count("?") for case in cases for t in case.types()[:2])
    return (string.ascii_letters + "".join(map(chr, range(0xE0, 0xF7))))[:count]


def _check(cases: Sequence[Case]) -> None:
    rng = np.random.default_rng(0)
    pairs = [
        [rng.standard_normal(s).astype(np.float32) for s in (case.image, case.kernel)]
        for case in cases
    ]
    values = [value for pair in pairs for value in pair]
    found = run(_text(cases), *values, symbols=_symbols(cases))
    for case, pair, one in zip(cases, pairs, found, strict=True):
        wanted = case.reference(*(value.astype(np.float64) for value in pair))
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-4, err_msg=str(case))


_SAME3 = ((1, 1), (1, 1))

_FORWARD = [
    Case("b01f,01io,b01f", (2, 5, 6, 3), (3, 2, 3, 4)),
    Case("bf01,oi01,bf01", (2, 3, 5, 6), (4, 3, 3, 2), (2, 1), ((1, 1), (0, 2))),
    Case("b01f,01io,b01f", (2, 7, 6, 3), (3, 3, 3, 4), (2, 2), ((1, 1), (0, 1))),
    Case("f01b,io10,01bf", (3, 5, 6, 2), (3, 4, 2, 3), padding=((-1, 2), (2, -2))),
    Case("b01f,01io,b01f", (2, 9, 8, 3), (3, 3, 3, 4), (2, 1), dilation=(2, 3)),
    Case("b01f,01io,b01f", (2, 5, 6, 3), (3, 2, 3, 4), (2, 3), spread=(2, 3)),
    Case("b01f,01io,b01f", (2, 5, 6, 3), (3, 2, 3, 4), reverse=(True, False)),
    Case("b01f,01io,b01f", (2, 5, 6, 3), (3, 2, 3, 4), reverse=(True, True)),
    Case("b0f,0io,b0f", (2, 7, 3), (3, 3, 4), (2,), ((1, 1),)),
    Case("bf0,oi0,bf0", (2, 3, 7), (4, 3, 3), dilation=(2,), padding=((2, 2),)),
    Case(
        "b012f,012io,b012f", (2, 4, 5, 4, 3), (2, 3, 2, 3, 4), (1, 2, 1), ((1, 0), (1, 1), (0, 0))
    ),
    Case("b012f,012io,b012f", (2, 5, 5, 4, 2), (2, 2, 2, 2, 3), dilation=(2, 1, 3)),
    Case("b012f,012io,b012f", (2, 4, 4, 4, 4), (2, 2, 2, 2, 6), groups=2),
    Case("b0123f,0123io,b0123f", (2, 3, 3, 3, 4, 2), (2, 2, 1, 2, 2, 3), (1, 1, 1, 2)),
    Case("bf,io,bf", (2, 3), (3, 4)),
    Case("b01f,01io,b01f", (2, 5, 6, 4), (3, 2, 2, 6), groups=2),
    Case("b01f,01io,b01f", (2, 5, 6, 4), (3, 3, 1, 8), padding=_SAME3, groups=4),
    Case("b01f,01io,b01f", (2, 5, 6, 4), (3, 3, 1, 4), (2, 2), groups=4, dilation=(1, 2)),
    Case("b01f,01io,b01f", (2, 5, 6, 4), (3, 3, 1, 4), (2, 1), groups=4),
    Case("b0f,0io,b0f", (2, 7, 4), (3, 1, 4), (2,), ((1, 1),), groups=4),
    # oneDNN misreads rows of one element.
    Case("b01f,01io,b01f", (2, 5, 3, 1), (1, 3, 1, 3), (1, 3)),
    Case("b01f,01io,b01f", (2, 4, 4, 1), (2, 2, 1, 3), (1, 3)),
    Case("b01f,01io,b01f", (4, 5, 6, 3), (3, 2, 3, 4), batch_groups=2),
    Case("b01f,01io,b01f", (2, 2, 3, 3), (3, 4, 3, 4)),  # no place for the window
]


@pytest.mark.costly
@pytest.mark.parametrize("opened", ["", "b", "b012"])
def test_forward(opened: str) -> None:
    """Every layout, stride, padding, dilation and grouping, with open sizes too."""
    cases = _FORWARD if not opened else _FORWARD[:-1]  # TensorFlow has no larger windows there
    _check([replace(case, opened=opened) for case in cases])


_GRADIENTS = [
    # For images: with holes where the convolution has strides.
    Case("b01f,01oi,b01f", (2, 5, 6, 4), (3, 3, 3, 4), padding=_SAME3, reverse=(True, True)),
    Case("b01f,01oi,b01f", (2, 3, 3, 4), (3, 3, 3, 4), (), ((2, 1),) * 2, (2, 2), (), (True,) * 2),
    Case("b01f,01oi,b01f", (2, 3, 3, 4), (3, 3, 3, 4), (), ((2, 3),) * 2, (2, 2), (), (True,) * 2),
    Case("b01f,01oi,b01f", (2, 3, 3, 4), (2, 3, 3, 4), (), ((4, 0), (0, 3)), (2, 1)),
    Case(
        "b01f,01oi,b01f", (2, 3, 3, 4), (2, 2, 3, 4), (), ((1, 2), (1, 1)), (2, 2), (), (True,) * 2
    ),
    Case("b0f,0oi,b0f", (2, 5, 4), (3, 3, 4), (), ((2, 1),), (2,), (), (True,)),
    Case("b012f,012oi,b012f", (2, 2, 3, 2, 3), (2, 2, 2, 2, 3), (), ((1, 1),) * 3, (2, 1, 2)),
    Case("b01f,01io,b01f", (2, 3, 3, 4), (3, 3, 1, 4), (), ((2, 1),) * 2, (2, 2), groups=4),
    Case("b01f,01io,b01f", (2, 3, 3, 4), (3, 3, 2, 4), (), ((2, 1),) * 2, (2, 2), groups=2),
    Case("b0f,0io,b0f", (2, 3, 4), (3, 1, 4), (), ((2, 1),), (2,), groups=4),
    # For kernels: the window is the image's gradient.
    Case("f01b,i01o,01bf", (2, 6, 6, 3), (2, 6, 6, 4), padding=_SAME3),
    Case("f01b,i01o,01bf", (2, 6, 6, 3), (2, 3, 3, 4), (), ((0, 1),) * 2, dilation=(2, 2)),
    Case("f01b,i01o,01bf", (2, 6, 6, 3), (2, 2, 2, 4), (), ((0, -1),) * 2, dilation=(2, 2)),
    Case("fb01,io01,bf01", (2, 3, 6, 7), (2, 4, 4, 7), padding=((0, 0), (1, 1))),
    Case("f0b,i0o,0bf", (2, 6, 3), (2, 6, 4), padding=((1, 1),)),
    Case("f012b,i012o,012bf", (2, 4, 4, 4, 3), (2, 3, 4, 4, 4), padding=((0, 0), (1, 0), (0, 1))),
    Case("f01b,i01o,01bf", (2, 6, 6, 4), (2, 6, 6, 8), padding=_SAME3, batch_groups=4),
    Case("f01b,i01o,01bf", (2, 6, 6, 4), (2, 6, 6, 8), padding=_SAME3, batch_groups=2),
    Case("f01b,i01o,01bf", (2, 6, 6, 4), (2, 2, 6, 4), (), ((0, 0), (1, 1)), batch_groups=4),
]


@pytest.mark.parametrize("opened", [False, True])
def test_gradients(opened: bool) -> None:
    """Gradients of convolutions are convolutions with odd numbers; their batch may be open."""
    _check([_with_open_batch(case) if opened else case for case in _GRADIENTS])


def _with_open_batch(case: Case) -> Case:
    if case.numbers[0] == "f":
        return replace(case, opened="f", opened_kernel="i")
    return replace(case, opened="b")


def test_gradient_for_kernel_over_open_sizes() -> None:
    """The window of many places may be of open sizes."""
    case = Case(
        "f01b,i01o,01bf",
        (2, 6, 7, 3),
        (2, 6, 7, 4),
        padding=_SAME3,
        opened="f01",
        opened_kernel="i01",
        opened_result="",
    )
    _check([case])


def test_dtypes() -> None:
    """Integers wrap around, 16 bits are summed in 32, complex numbers are multiplied as such."""
    rng = np.random.default_rng(1)
    elements = ["i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64"]
    elements += ["f16", "bf16", "f64", "complex<f32>", "complex<f64>"]
    pairs = [(element, element) for element in elements]
    pairs += [("i8", "i32"), ("f16", "f32"), ("bf16", "f32"), ("f32", "f64")]
    grouped = [("i32", "i32"), ("i64", "i64"), ("f16", "f16"), ("bf16", "bf16")]
    cases = [
        Case("b01f,01io,b01f", (1, 3, 4, 2), (2, 2, 2, 3), element=element, to=to)
        for element, to in pairs
    ]
    cases += [
        Case("b01f,01io,b01f", (1, 3, 4, 2), (2, 2, 1, 4), element=element, to=to, groups=2)
        for element, to in grouped
    ]
    cases.append(Case("b012f,012io,b012f", (1, 3, 4, 2, 2), (2, 2, 2, 2, 3), element="i32"))
    values, expected = [], []
    for case in cases:
        dtype, to = _DTYPES[case.element], _DTYPES[case.to]
        for shape in (case.image, case.kernel):
            if dtype.kind in "iu":
                low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
                values.append(rng.integers(low, high, shape, dtype, endpoint=True))
            else:
                imaginary = 1j * rng.standard_normal(shape) if dtype.kind == "c" else 0
                values.append((rng.standard_normal(shape) + imaginary).astype(dtype))
        if dtype.kind in "iu":
            exact = case.reference(*(value.astype(object) for value in values[-2:]))
            wrapped = np.vectorize(lambda x: int(x) % 2**64, otypes=[object])(exact)
            expected.append(wrapped.astype(np.uint64).astype(to))
        else:
            wide = np.complex128 if dtype.kind == "c" else np.float64
            expected.append(case.reference(*(v.astype(wide) for v in values[-2:])))
    for case, found, one in zip(cases, run(_text(cases), *values), expected, strict=True):
        assert found.dtype == _DTYPES[case.to], case
        if one.dtype.kind in "iu":
            np.testing.assert_array_equal(found, one, err_msg=str(case))
        else:
            # Rounded once, at the end.
            bits = {"f16": 10, "bf16": 7, "f64": 45, "complex<f64>": 45}.get(case.to, 18)
            given = found.astype(one.dtype)
            np.testing.assert_allclose(given, one, rtol=2.0**-bits, atol=2e-6, err_msg=str(case))


_DTYPES = {
    f"{letter}i{bits}".replace("si", "i"): np.dtype(f"{'u' if letter == 'u' else ''}int{bits}")
    for letter in "su"
    for bits in (8, 16, 32, 64)
} | {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
}


@pytest.mark.parametrize(
    ("case", "operations"),
    [
        (Case("b01f,01io,b01f", (2, 6, 6, 3), (3, 3, 3, 4), padding=_SAME3), {"Conv2D": 1}),
        (
            Case("b01f,01io,b01f", (2, 6, 6, 3), (3, 3, 3, 4), (2, 2), ((0, 1),) * 2),
            {"Conv2D": 1},
        ),
        (
            Case("b01f,01io,b01f", (2, 6, 6, 3), (3, 3, 3, 4), (2, 2), _SAME3),
            {"Pad": 1, "Conv2D": 1},
        ),
        (
            Case("b01f,01io,b01f", (2, 6, 6, 4), (3, 3, 1, 4), padding=_SAME3, groups=4),
            {"Reshape": 1, "DepthwiseConv2dNative": 1},
        ),
        (Case("b01f,01io,b01f", (2, 6, 6, 4), (3, 3, 2, 4), groups=2), {"Conv2D": 1}),
        (_GRADIENTS[0], {"Conv2DBackpropInput": 1, "Pack": 1}),
        (_GRADIENTS[1], {"Conv2DBackpropInput": 1, "Pack": 1}),
        (_GRADIENTS[10], {"Conv2DBackpropFilter": 1}),
        (_GRADIENTS[11], {"Conv2DBackpropFilter": 1}),
        (Case("b0f,0io,b0f", (2, 6, 3), (3, 3, 4)), {"Reshape": 3, "Conv2D": 1}),
    ],
)
def test_operations(case: Case, operations: dict[str, int]) -> None:
    """The convolutions of models, and their gradients, are one operation, with open batches."""
    case = _with_open_batch(case)
    args = [np.zeros(shape, np.float32) for shape in (case.image, case.kernel)]
    symbols = "AA" if case.opened_kernel else "A"
    graph = trace(portable_of(_text([case]), symbols=symbols), args).graph
    plain = {"Placeholder", "Const", "Identity", "NoOp", "PreventGradient"}
    plain |= {"Shape", "Unpack", "GreaterEqual", "Equal", "Assert"}
    assert Counter(name for name in op_names(graph) if name not in plain) == operations


def test_kernels_that_were_turned_are_taken_as_they_were() -> None:
    """The gradient for an image reads the kernel itself, not its reverse."""
    text = """func.func @main(%g: tensor<?x3x3x4xf32>, %w: tensor<3x3x3x4xf32>)
        -> tensor<?x6x6x3xf32> {
      %0 = stablehlo.reverse %w, dims = [0, 1] : tensor<3x3x3x4xf32>
      %1 = stablehlo.convolution(%g, %0) dim_numbers = [b, 0, 1, f]x[0, 1, o, i]->[b, 0, 1, f],
        window = {pad = [[2, 1], [2, 1]], lhs_dilate = [2, 2]}
        {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<?x3x3x4xf32>, tensor<3x3x3x4xf32>) -> tensor<?x6x6x3xf32>
      return %1 : tensor<?x6x6x3xf32>
    }"""
    rng = np.random.default_rng(2)
    args = [rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 3, 4), (3, 3, 3, 4))]
    graph = trace(portable_of(text), args).graph
    (gradient,) = (x for x in graph.as_graph_def().node if x.op == "Conv2DBackpropInput")
    assert not gradient.input[1].lower().startswith("reverse")
    (found,) = run(text, *args)
    case = replace(_GRADIENTS[1], reverse=(True, True))
    np.testing.assert_allclose(found, case.reference(*args), rtol=1e-4, atol=1e-4)


def test_padding_that_is_computed() -> None:
    """dynamic_conv takes its padding from an operand, as SAME over open sizes with strides."""
    text = """func.func @main(%x: tensor<?x?x3xf32>, %w: tensor<3x3x4xf32>, %p: tensor<1x2xi32>)
        -> tensor<?x?x4xf32> {
      %0 = "stablehlo.dynamic_conv"(%x, %w, %p) <{
        batch_group_count = 1 : i64, feature_group_count = 1 : i64,
        dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>,
        window_strides = array<i64: 2>}>
        : (tensor<?x?x3xf32>, tensor<3x3x4xf32>, tensor<1x2xi32>) -> tensor<?x?x4xf32>
      return %0 : tensor<?x?x4xf32>
    }"""
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 7, 3), (3, 3, 4)))
    paddings = ((1, 1), (-1, 2), (0, 0))
    calls = [(x, w, np.array([padding], np.int32)) for padding in paddings]
    for padding, (found,) in zip(paddings, run_each(text, calls), strict=True):
        case = Case("b0f,0io,b0f", x.shape, w.shape, (2,), (padding,))
        np.testing.assert_allclose(found, case.reference(x, w), rtol=1e-4, atol=1e-4)


def test_windows_without_a_form() -> None:
    """A window of open size over four axes is refused by name."""
    case = Case(
        "b0123f,0123io,b0123f",
        (1, 2, 2, 2, 2, 1),
        (1, 1, 1, 1, 1, 1),
        opened="0",
        opened_kernel="0",
    )
    args = [np.zeros(shape, np.float32) for shape in (case.image, case.kernel)]
    with pytest.raises(ModuleError, match=r"stablehlo\.convolution.*over 4 axes of f32"):
        run(_text([case]), *args)


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_windows_of_padding_alone_are_not_padded_by_onednn(element: str) -> None:
    """Its kernel for AMX ends the process."""
    image, kernel = f"tensor<1x1x1x2x{element}>", f"tensor<4x2x2x1x{element}>"
    result = f"tensor<1x1x2x1x{element}>"
    text = f"""func.func @main(%x: {image}, %w: {kernel}) -> {result} {{
      %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {{stride = [2, 2], pad = [[2, 1], [1, 2]]}}
        {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
        : ({image}, {kernel}) -> {result}
      return %y : {result} }}"""
    dtype = np.float16 if element == "f16" else ml_dtypes.bfloat16
    x, w = np.ones((1, 1, 1, 2), dtype), np.arange(16).reshape(4, 2, 2, 1).astype(dtype)
    assert "Pad" not in op_names(trace(portable_of(text), [x, w]).graph)
    np.testing.assert_array_equal(run(text, x, w)[0].reshape(-1).astype(float), [21, 0])
