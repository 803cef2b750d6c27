"""Functions of complex numbers, by operations on their real and imaginary parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax2tf_bridge.to_onnx._control_flow import split_complex
from jax2tf_bridge.to_onnx._functions import function, to_tensor
from jax2tf_bridge.to_onnx._graph import (
    DTYPES,
    ComplexTensor,
    OnnxDType,
    OnnxGraph,
    Tensor,
    broadcast_shapes,
)
from jax2tf_bridge.to_onnx._reductions import multiply_halves


def has_complex(value: Any) -> bool:
    """Returns whether an argument is complex, or a list with something complex."""
    if isinstance(value, (list, tuple)):
        return any(map(has_complex, value))
    if isinstance(value, OnnxDType):
        return value.is_complex
    return isinstance(value, (ComplexTensor, complex, np.complexfloating)) or (
        isinstance(value, np.ndarray) and value.dtype.kind == "c"
    )


def _to_complex(graph: OnnxGraph, value: Any, dtype: OnnxDType) -> ComplexTensor:
    """Converts a number or tensor to complex numbers of a dtype."""
    part = dtype.real_dtype
    x = to_tensor(graph, value, None if isinstance(value, Tensor) else dtype)
    if isinstance(x, ComplexTensor):
        return ComplexTensor(graph.make("cast", x.real, part), graph.make("cast", x.imag, part))
    real = graph.make("cast", x, part)
    return ComplexTensor(real, graph.make("zeros_like", real))


def _to_same(graph: OnnxGraph, *values: Any) -> list[ComplexTensor]:
    dtype = next((x.dtype for x in values if isinstance(x, ComplexTensor)), DTYPES["complex64"])
    return [_to_complex(graph, x, dtype) for x in values]


@function("cast")
def _cast(graph: OnnxGraph, x: Any, dtype: OnnxDType) -> Tensor:
    tensor = to_tensor(graph, x)
    if not dtype.is_complex:
        assert isinstance(tensor, ComplexTensor), "an argument is complex"
        real: Tensor = graph.make("cast", tensor.real, dtype)
        return real
    return _to_complex(graph, tensor, dtype)


# Functions that treat both parts alike.


def _take_part(value: Any, part: str) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_take_part(x, part) for x in value)
    return getattr(value, part) if isinstance(value, ComplexTensor) else value


def _map_parts(name: str) -> Callable[..., Any]:
    @function(name)
    def call(graph: OnnxGraph, *args: Any, **options: Any) -> Any:
        real, imag = (
            graph.call(
                name,
                *(_take_part(x, part) for x in args),
                **{key: _take_part(x, part) for key, x in options.items()},
            )
            for part in ("real", "imag")
        )
        if isinstance(real, list):
            return [ComplexTensor(a, b) for a, b in zip(real, imag, strict=True)]
        return ComplexTensor(real, imag)

    return call


def _add_or_subtract(graph: OnnxGraph, x: Any, y: Any, *, name: str) -> ComplexTensor:
    x, y = _to_same(graph, x, y)
    return ComplexTensor(graph.make(name, x.real, y.real), graph.make(name, x.imag, y.imag))


@function("where")
def _where(graph: OnnxGraph, flag: Any, x: Any, y: Any) -> ComplexTensor:
    x, y = _to_same(graph, x, y)
    return ComplexTensor(
        graph.make("where", flag, x.real, y.real), graph.make("where", flag, x.imag, y.imag)
    )


# Parts.


@function("complex")
def make_complex(graph: OnnxGraph, real: Tensor, imag: Tensor) -> ComplexTensor:
    """Makes complex numbers; a part with fewer elements is broadcast."""
    parts = to_tensor(graph, real), to_tensor(graph, imag)
    shape = broadcast_shapes(*(x.shape for x in parts))

    def broadcast(x: Tensor, other: Tensor) -> Tensor:
        if x.shape == shape:
            return x
        sizes = graph.make("shape", other, DTYPES["int64"])
        return graph.add("Expand", [x, sizes], x.dtype, shape)

    return ComplexTensor(broadcast(*parts), broadcast(*reversed(parts)))


@function("equal")
def _equal(graph: OnnxGraph, x: Any, y: Any) -> Any:
    x, y = _to_same(graph, x, y)
    return graph.make(
        "logical_and", graph.make("equal", x.real, y.real), graph.make("equal", x.imag, y.imag)
    )


# Arithmetic.


@function("multiply")
def _multiply(graph: OnnxGraph, x: Any, y: Any) -> ComplexTensor:
    x, y = _to_same(graph, x, y)
    return ComplexTensor(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


@function("divide")
def _divide(graph: OnnxGraph, x: Any, y: Any) -> ComplexTensor:
    """Divides without overflow of squares (Smith, 1962, "Algorithm 116: Complex division")."""
    x, y = _to_same(graph, x, y)
    is_flat = graph.make("abs", y.real) >= graph.make("abs", y.imag)
    great = graph.make("where", is_flat, y.real, y.imag)
    small = graph.make("where", is_flat, y.imag, y.real)
    ratio = small / great
    bottom = great + small * ratio
    first = graph.make("where", is_flat, x.real, x.imag)
    other = graph.make("where", is_flat, x.imag, x.real)
    imag = (other - first * ratio) / bottom
    imag = graph.make("where", is_flat, imag, -imag)
    return ComplexTensor((first + other * ratio) / bottom, imag)


@function("abs", "math.abs")
def _length(graph: OnnxGraph, x: ComplexTensor) -> Any:
    a, b = graph.make("abs", x.real), graph.make("abs", x.imag)
    great, small = graph.make("maximum", a, b), graph.make("minimum", a, b)
    is_plain = graph.make("logical_and", great > 0, graph.make("math.is_finite", great))
    ratio = small / graph.make("where", is_plain, great, 1)
    length = great * graph.make("sqrt", ratio * ratio + 1)
    return graph.make("where", is_plain, length, a + b)


@function("exp")
def _exp(graph: OnnxGraph, x: ComplexTensor) -> ComplexTensor:
    size = graph.make("exp", x.real)
    imag = size * graph.make("sin", x.imag)
    is_real = graph.make("equal", x.imag, 0)  # also for infinite real parts
    return ComplexTensor(
        size * graph.make("cos", x.imag), graph.make("where", is_real, x.imag, imag)
    )


@function("math.log")
def _log(graph: OnnxGraph, x: ComplexTensor) -> ComplexTensor:
    angle = graph.make("math.atan2", x.imag, x.real)
    return ComplexTensor(graph.make("math.log", _length(graph, x)), angle)


@function("sqrt")
def _sqrt(graph: OnnxGraph, x: ComplexTensor) -> ComplexTensor:
    root = graph.make("sqrt", (_length(graph, x) + graph.make("abs", x.real)) * 0.5)
    is_zero = graph.make("equal", root, 0)
    other = graph.make("abs", x.imag) / graph.make("where", is_zero, 1, root * 2)
    is_right = x.real >= 0
    imag = graph.make("where", is_right, other, root)
    imag = graph.make("where", x.imag < 0, -imag, imag)
    return ComplexTensor(graph.make("where", is_right, root, other), imag)


@function("pow")
def _pow(graph: OnnxGraph, x: Any, y: Any) -> Any:
    x, y = _to_same(graph, x, y)
    is_zero = _equal(graph, x, 0)
    raised = _exp(graph, _multiply(graph, y, _log(graph, _where(graph, is_zero, 1, x))))
    return _where(graph, is_zero, 0, raised)


def _hyperbolic(graph: OnnxGraph, x: Tensor) -> tuple[Any, Any]:
    return graph.make("math.sinh", x), graph.make("math.cosh", x)


@function("sin", "math.sin")
def _sin(graph: OnnxGraph, x: ComplexTensor) -> ComplexTensor:
    sinh, cosh = _hyperbolic(graph, x.imag)
    return ComplexTensor(graph.make("sin", x.real) * cosh, graph.make("cos", x.real) * sinh)


@function("cos", "math.cos")
def _cos(graph: OnnxGraph, x: ComplexTensor) -> ComplexTensor:
    sinh, cosh = _hyperbolic(graph, x.imag)
    return ComplexTensor(graph.make("cos", x.real) * cosh, -(graph.make("sin", x.real) * sinh))


@function("math.sinh", "sinh")
def _sinh(graph: OnnxGraph, x: ComplexTensor) -> ComplexTensor:
    sinh, cosh = _hyperbolic(graph, x.real)
    return ComplexTensor(sinh * graph.make("cos", x.imag), cosh * graph.make("sin", x.imag))


@function("math.cosh", "cosh")
def _cosh(graph: OnnxGraph, x: ComplexTensor) -> ComplexTensor:
    sinh, cosh = _hyperbolic(graph, x.real)
    return ComplexTensor(cosh * graph.make("cos", x.imag), sinh * graph.make("sin", x.imag))


@function("tanh")
def _tanh(graph: OnnxGraph, x: ComplexTensor) -> ComplexTensor:
    """Computes (tanh(a) + i tan(b)) / (1 + i tanh(a) tan(b)), expanded by cos(b)."""
    height = graph.make("tanh", x.real)
    sine, cosine = graph.make("sin", x.imag), graph.make("cos", x.imag)
    top = ComplexTensor(height * cosine, sine)
    return _divide(graph, top, ComplexTensor(cosine, height * sine))


@function("math.tan", "tan")
def _tan(graph: OnnxGraph, x: ComplexTensor) -> ComplexTensor:
    y = _tanh(graph, ComplexTensor(-x.imag, x.real))
    return ComplexTensor(y.imag, -y.real)


@function("sigmoid")
def _sigmoid(graph: OnnxGraph, x: ComplexTensor) -> ComplexTensor:
    power = _exp(graph, ComplexTensor(-x.real, -x.imag))
    return _divide(graph, 1, ComplexTensor(power.real + 1, power.imag))


# Products.


def _bilinear(graph: OnnxGraph, call: Callable[..., Any], a: Any, b: Any) -> ComplexTensor:
    a, b = _to_same(graph, a, b)
    real = call(a.real, b.real) - call(a.imag, b.imag)
    return ComplexTensor(real, call(a.real, b.imag) + call(a.imag, b.real))


@function("linalg.matmul")
def _matmul(
    graph: OnnxGraph,
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
) -> ComplexTensor:
    a = graph.make("math.conj", a) if adjoint_a else a
    b = graph.make("math.conj", b) if adjoint_b else b
    call = functools.partial(
        graph.make,
        "linalg.matmul",
        transpose_a=transpose_a or adjoint_a,
        transpose_b=transpose_b or adjoint_b,
    )
    return _bilinear(graph, call, a, b)


@function("linalg.matvec")
def _matvec(graph: OnnxGraph, a: Any, b: Any, transpose_a: bool = False) -> ComplexTensor:
    call = functools.partial(graph.call, "linalg.matvec", transpose_a=transpose_a)
    return _bilinear(graph, call, a, b)


@function("einsum")
def _einsum(graph: OnnxGraph, equation: str, *operands: Any) -> Any:
    if len(operands) == 1:
        (x,) = operands
        return ComplexTensor(
            graph.make("einsum", equation, x.real), graph.make("einsum", equation, x.imag)
        )
    return _bilinear(graph, functools.partial(graph.call, "einsum", equation), *operands)


# Fourier transforms.


def _transform(graph: OnnxGraph, x: ComplexTensor, axes: Sequence[int], *, inverse: bool) -> Any:
    """Transforms axes, counted from the end."""
    for axis in axes:
        x = _transform_axis(graph, x, axis, inverse=inverse)
    return x


def _transform_axis(
    graph: OnnxGraph, x: Tensor, axis: int, *, inverse: bool = False
) -> ComplexTensor:
    """Transforms one axis of real or complex numbers; real ones give half of the spectrum."""
    is_real = not isinstance(x, ComplexTensor)
    apart = graph.make("stack", split_complex([x]), -1)
    place = x.shape.rank + axis
    has_batch = x.shape.rank > 1
    if not has_batch:
        apart, place = graph.make("expand_dims", apart, 0), place + 1
    size = x.shape[axis]
    sizes = [*apart.shape[:-1], 2]
    sizes[place] = None if size is None else (size // 2 + 1 if is_real else size)
    options: dict[str, Any] = {"inverse": int(inverse), "onesided": int(is_real)}
    operands: list[Tensor | None] = [apart]
    if graph.opset >= 20:
        operands += [None, graph.constant(np.array(place, np.int64))]
    else:
        options["axis"] = place
    result = graph.add("DFT", operands, apart.dtype, sizes, **options)
    result = result if has_batch else graph.make("squeeze", result, 0)
    return ComplexTensor(result[..., 0], result[..., 1])


def _real_fourier(
    graph: OnnxGraph, *, input: Tensor, fft_length: Any, Tcomplex: OnnxDType, n_axes: int
) -> Any:
    half = _transform_axis(graph, input, -1)
    return _transform(graph, half, range(-n_axes, -1), inverse=False)


def _inverse_real_fourier(
    graph: OnnxGraph, *, input: ComplexTensor, fft_length: Any, Treal: OnnxDType, n_axes: int
) -> Any:
    x = _transform(graph, input, range(-n_axes, -1), inverse=True)
    # The other half of the spectrum has the conjugate numbers in the reverse order.
    size = int(fft_length[-1])
    tail = x[..., (size - 1) // 2 : 0 : -1]
    whole = graph.make("concat", [x, ComplexTensor(tail.real, -tail.imag)], -1)
    return _transform_axis(graph, whole, -1, inverse=True).real


def _fourier(graph: OnnxGraph, *, input: ComplexTensor, n_axes: int, inverse: bool) -> Any:
    return _transform(graph, input, range(-n_axes, 0), inverse=inverse)


COMPLEX_FUNCTIONS = (
    function("math.real")(lambda graph, x: x.real),
    function("math.imag")(lambda graph, x: x.imag),
    function("math.conj")(lambda graph, x: ComplexTensor(x.real, -x.imag)),
    function("linalg.adjoint")(
        lambda graph, x: graph.make("linalg.matrix_transpose", graph.make("math.conj", x))
    ),
    function("not_equal")(lambda graph, x, y: ~_equal(graph, x, y)),
    function("square")(lambda graph, x: _multiply(graph, x, x)),
    function("reduce_prod")(functools.partial(multiply_halves)),
    *(
        function(name)(functools.partial(_add_or_subtract, name=name))
        for name in ("add", "subtract")
    ),
    *map(
        _map_parts,
        (
            *("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "tile", "concat"),
            *("stack", "unstack", "split", "getitem", "strided_slice", "slice", "reverse"),
            *("gather", "linalg.diag_part", "linalg.set_diag", "linalg.band_part"),
            *("linalg.matrix_transpose", "gather_nd", "tensor_scatter_nd_update"),
            *("tensor_scatter_nd_add", "pad", "math.unsorted_segment_sum", "raw_ops.PadV2"),
            *("negative", "reduce_sum", "reduce_mean", "cumsum", "add_n", "zeros_like"),
        ),
    ),
    *(
        function(f"raw_ops.{name}{axes}")(functools.partial(transform, n_axes=n_axes))
        for n_axes, axes in ((1, ""), (2, "2D"), (3, "3D"))
        for name, transform in (
            ("FFT", functools.partial(_fourier, inverse=False)),
            ("IFFT", functools.partial(_fourier, inverse=True)),
            ("RFFT", _real_fourier),
            ("IRFFT", _inverse_real_fourier),
        )
    ),
)
