"""Differences from JAX that are documented: each with its reason and the page that has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.random_programs.comparing import TOLERANCES, widened
from tests.random_programs.program import Step
from tests.random_programs.values import Array, kind_of


@dataclass(frozen=True)
class Case:
    """A step that differs, with the values around it.

    Attributes:
      way: of `WAYS`.
      step: the only one of the program.
      operands: its arguments.
      actual, expected: the result there, and JAX's.
      wrong: marks the elements that differ.
    """

    way: str
    step: Step
    operands: Sequence[Array]
    actual: Array
    expected: Array
    wrong: Array

    def has(self, *kinds: str) -> bool:
        """Returns whether a float or complex operand has "nan", "inf" or "-inf"."""
        checks: dict[str, Callable[[Array], bool]] = {
            "nan": lambda a: bool(np.isnan(a).any()),
            "inf": lambda a: bool(np.isinf(a).any()),
        }
        floats = [widened(a) for a in self.operands if kind_of(str(a.dtype)) in "fc"]
        return any(checks[kind](a) for kind in kinds for a in floats)


@dataclass(frozen=True)
class Explanation:
    """A documented difference.

    Attributes:
      reason: what differs, and why.
      page: where the documentation has it.
      applies: whether a case is one of these.
    """

    reason: str
    page: str
    applies: Callable[[Case], bool]


def _drops_nan_of_erf(case: Case) -> bool:
    return (
        case.way == "xla"
        and "erf" in case.step.operation
        and bool(np.isnan(widened(case.expected)[case.wrong]).all())
    )


def _multiplies_padding(case: Case) -> bool:
    if "convolution" not in case.step.operation or case.way == "xla":
        return False
    # The image may be the kernel.
    return not np.isfinite(widened(case.operands[-1])).all()


def _spreads_in_bfloat16(case: Case) -> bool:
    """Returns whether a convolution of bfloat16 has NaN beside an infinity or NaN of the image.

    oneDNN's kernel multiplies elements beside a window by zeros.
    """
    return (
        case.way == "operations"
        and "convolution" in case.step.operation
        and str(case.expected.dtype) == "bfloat16"
        and case.has("nan", "inf")
        and bool(np.isnan(widened(case.actual)[case.wrong]).all())
    )


def _subtracts_within(case: Case) -> bool:
    """Returns whether a step with a body of its own differs by rounding errors of its operands."""
    names = ("scan", "while", "fori")
    if not case.step.operation.startswith(names) or kind_of(str(case.expected.dtype)) != "f":
        return False
    floats = [widened(a) for a in case.operands if kind_of(str(a.dtype)) == "f"]
    sizes = [np.abs(each[np.isfinite(each)]) for each in floats]
    largest = max((float(each.max()) for each in sizes if each.size), default=0.0)
    errors = np.abs(widened(case.actual) - widened(case.expected))[case.wrong]
    return bool((errors <= TOLERANCES[str(case.expected.dtype)] * largest).all())


def _spreads_between_groups(case: Case) -> bool:
    """Returns whether JAX has NaN where another group of channels has NaN or infinity.

    XLA's CPU backend computes groups as one convolution, with zeros between them.
    """
    groups = re.search(r"feature_group_count=(\d+)", case.step.expression)
    return (
        case.way != "xla"
        and groups is not None
        and int(groups[1]) > 1
        and case.has("nan", "inf")
        and bool(np.isnan(widened(case.expected)[case.wrong]).all())
    )


def _is_gradient_of_saturated_tanh(case: Case) -> bool:
    """Returns whether 1 - tanh(x)**2 or 1 + tanh(x) differs by rounding errors of tanh alone."""
    names = ("grad jnp.tanh", "grad jax.nn.gelu", "jax.nn.gelu")
    if case.step.operation not in names or case.way == "xla":
        return False
    actual, expected = widened(case.actual), widened(case.expected)
    error = 2 * TOLERANCES[str(case.expected.dtype)]
    return bool((np.abs(actual - expected) <= error)[case.wrong].all())


def _is_complex_at_edge(case: Case) -> bool:
    """Returns whether complex numbers that are not finite, or huge, go in or should come out."""
    values = [widened(a) for a in case.operands if kind_of(str(a.dtype)) == "c"]
    if kind_of(str(case.expected.dtype)) == "c":
        values.append(widened(case.expected)[case.wrong])
    return case.way in ("operations", "onnx", "tfjs") and any(
        not (np.abs(part) < _EDGE).all() for a in values for part in (a.real, a.imag)
    )


def _is_complex_power_of_zero(case: Case) -> bool:
    return (
        case.way == "operations"
        and case.step.operation in ("jnp.power", "**", "lax.pow", "jnp.float_power")
        and kind_of(str(case.expected.dtype)) == "c"
        and bool((widened(case.operands[0]) == 0).any())
    )


def _divides_bools(case: Case) -> bool:
    return (
        case.way == "operations"
        and "divide" in case.step.operation
        and any(a.dtype == np.bool_ for a in case.operands)
        and bool(np.isnan(widened(case.actual)[case.wrong]).all())
    )


def _is_complex_product_of_infinity(case: Case) -> bool:
    return (
        case.way == "xla"
        and case.step.operation in ("matmul", "dot_general", "einsum", "outer")
        and kind_of(str(case.expected.dtype)) == "c"
        and case.has("nan", "inf")
    )


def _overflows_in_sum(case: Case) -> bool:
    """Returns whether sums or products overflow, in an order that may differ."""
    names = "matmul|dot_general|einsum|outer|convolution|cumsum|cumprod|prod|sum"
    return (
        re.search(names, case.step.operation) is not None
        and kind_of(str(case.expected.dtype)) == "f"
        and any((np.abs(widened(a)) > _EDGE).any() for a in case.operands)
        and not np.isfinite(widened(case.expected)[case.wrong]).any()
    )


def _is_index_beyond_32_bits(case: Case) -> bool:
    wide = [a for a in case.operands if a.dtype in (np.int64, np.uint64)]
    return re.search(
        "take|gather|scatter|dynamic|segment", case.step.operation
    ) is not None and any(((a > 2**31 - 1) | (a < -(2**31))).any() for a in wide)


def _shows_bits_of_subnormal_numbers(case: Case) -> bool:
    floats = [widened(a) for a in case.operands if kind_of(str(a.dtype)) == "f"]
    names = "" if case.way in ("onnx", "tfjs") else "bitcast|atan2|logical"
    return re.search(names, case.step.operation) is not None and any(
        ((a != 0) & (np.abs(a) < 1.4e-38)).any() for a in floats
    )


def _is_root_of_infinity(case: Case) -> bool:
    """Returns whether only powers of -inf, or of a negative zero, differ."""
    if case.way != "operations" or case.step.operation != "**":
        return False
    base = np.broadcast_to(widened(case.operands[0]), case.wrong.shape)[case.wrong]
    return bool((np.isneginf(base) | (base == 0)).all())


def _is_softmax_of_a_row_with_infinity(case: Case) -> bool:
    """Returns whether a softmax has zeros beside NaN, where JAX has NaN throughout."""
    return (
        case.way in ("operations", "onnx", "tfjs")
        and "softmax" in case.step.operation
        and case.has("nan", "inf")
        and bool(np.isnan(widened(case.expected)[case.wrong]).all())
    )


def _is_special_function_of_huge_numbers(case: Case) -> bool:
    return (
        case.way == "operations"
        and case.step.operation in ("lax.igamma", "lax.igammac", "lax.betainc")
        and (
            any((np.abs(widened(a)) > _EDGE).any() for a in case.operands)
            or "jnp.inf" in case.step.expression
        )
    )


def _overflows_between(case: Case) -> bool:
    """Returns whether partial sums of float16 overflow."""
    return (
        case.way == "operations"
        and str(case.expected.dtype) == "float16"
        and "convolution" in case.step.operation
        and any((np.abs(widened(a)) > 1e4).any() for a in case.operands)
        and not np.isfinite(widened(case.actual)[case.wrong]).any()
    )


_EDGE = 1e30
"""Numbers of this size overflow, or lose their digits, in some of LiteRT's kernels."""

NO_ELEMENTS = "LiteRT has no arrays without elements"


_SQUARES = frozenset({"jnp.var", "jnp.std", "jnp.linalg.norm", "jax.nn.standardize"})
"""Operations that add squares."""


def _edge_of(array: Array, operation: str = "") -> float:
    edge = 2.0**15 if str(array.dtype) == "float16" else _EDGE
    return edge**0.5 if operation in _SQUARES else edge


def _is_at_edge_in_litert(case: Case) -> bool:
    """Returns whether floats that are not finite, or huge, go in or should come out."""
    if case.way != "litert" or kind_of(str(case.expected.dtype)) not in "fib":
        return False
    floats = [a for a in case.operands if kind_of(str(a.dtype)) == "f"]
    expected = widened(case.expected)[case.wrong]
    return (
        any(not (np.abs(widened(a)) < _edge_of(a, case.step.operation)).all() for a in floats)
        or not (np.abs(expected) < _edge_of(case.expected)).all()
        or re.search(r"\bjnp\.(nan|inf)\b|-0\.(?!\d)", case.step.expression) is not None
    )


def _computes_16_bits_in_float32(case: Case) -> bool:
    """Returns whether 16-bit floats overflow, or are rounded, between the operations of a step."""
    dtypes = [str(case.expected.dtype), *(str(a.dtype) for a in case.operands)]
    if case.way not in ("onnx", "tfjs") or {"float16", "bfloat16"}.isdisjoint(dtypes):
        return False
    expected, actual = (widened(a)[case.wrong] for a in (case.expected, case.actual))
    if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
        return True
    floats = [a for a in case.operands if kind_of(str(a.dtype)) == "f"]
    if any((np.abs(widened(a)) > _edge_of(a, case.step.operation)).any() for a in floats):
        return True
    largest = max((float(np.abs(widened(a)).max()) for a in floats if a.size), default=1.0)
    error = np.abs(expected - actual).max()
    return "bfloat16" in dtypes and bool(error <= 2.0**-8 * max(1.0, largest))


def _pools_nan_in_onnx(case: Case) -> bool:
    names = "reduce_window lax.(max|min)"
    return (
        case.way == "onnx"
        and re.search(names, case.step.operation) is not None
        and bool(np.isnan(widened(case.expected)[case.wrong]).all())
    )


def _has_no_elements_in_tensorflow_js(case: Case) -> bool:
    return case.way == "tfjs" and 0 in (case.expected.size, *(a.size for a in case.operands))


def _loses_nan_in_tensorflow_js(case: Case) -> bool:
    names = "reduce_window|convolution|dot|matmul|einsum|mean|sum"
    return (
        case.way == "tfjs" and re.search(names, case.step.operation) is not None and case.has("nan")
    )


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "ONNX Runtime and TensorFlow.js compute 16-bit floats in float32, and overflow elsewhere",
        "docs/onnx-and-openvino.md",
        _computes_16_bits_in_float32,
    ),
    Explanation(
        "ONNX Runtime's MaxPool may lose NaN", "docs/onnx-and-openvino.md", _pools_nan_in_onnx
    ),
    Explanation(
        "TensorFlow.js has no arrays without elements",
        "docs/browser.md",
        _has_no_elements_in_tensorflow_js,
    ),
    Explanation(
        "TensorFlow.js may lose NaN in products and pooling",
        "docs/browser.md",
        _loses_nan_in_tensorflow_js,
    ),
    Explanation(
        "complex numbers with NaN or infinity, or beyond 1e30",
        "docs/targets.md",
        _is_complex_at_edge,
    ),
    Explanation(
        "TensorFlow's optimizer makes sqrt(x) of x**0.5, which is NaN at -inf",
        "docs/targets.md",
        _is_root_of_infinity,
    ),
    Explanation(
        "TensorFlow's softmax has zeros beside NaN in a row with NaN or infinity",
        "docs/targets.md",
        _is_softmax_of_a_row_with_infinity,
    ),
    Explanation(
        "incomplete gamma and beta functions beyond 1e30",
        "docs/targets.md",
        _is_special_function_of_huge_numbers,
    ),
    Explanation(
        "partial sums of float16 overflow in a convolution",
        "docs/targets.md",
        _overflows_between,
    ),
    Explanation(
        "padding is multiplied as zeros by a kernel with NaN or infinity",
        "docs/targets.md",
        _multiplies_padding,
    ),
    Explanation(
        "oneDNN multiplies elements beside a window by zeros in bfloat16",
        "docs/targets.md",
        _spreads_in_bfloat16,
    ),
    Explanation(
        "rounding errors that a loop's body enlarges by a difference",
        "docs/targets.md",
        _subtracts_within,
    ),
    Explanation(
        "JAX's convolution spreads NaN between groups of channels on CPU",
        "docs/targets.md",
        _spreads_between_groups,
    ),
    Explanation(
        "1 - tanh(x)**2 has rounding errors of tanh's size",
        "docs/targets.md",
        _is_gradient_of_saturated_tanh,
    ),
    Explanation(
        "0 to a complex power",
        "docs/targets.md",
        _is_complex_power_of_zero,
    ),
    Explanation(
        "XLA computes 0 for a bool divided by a constant 0",
        "docs/targets.md",
        _divides_bools,
    ),
    Explanation(
        "complex matrix products of infinity depend on the kernel",
        "docs/targets.md",
        _is_complex_product_of_infinity,
    ),
    Explanation(
        "sums and products that overflow depend on their order",
        "docs/targets.md",
        _overflows_in_sum,
    ),
    Explanation(
        "JAX wraps indices to 32 bits where sizes are numbers",
        "docs/targets.md",
        _is_index_beyond_32_bits,
    ),
    Explanation(
        "subnormal numbers may be 0, which their bits and quotients show",
        "docs/targets.md",
        _shows_bits_of_subnormal_numbers,
    ),
    Explanation("LiteRT differs at the edges of floats", "docs/litert.md", _is_at_edge_in_litert),
    Explanation(
        "TensorFlow's XLA clamps the argument of erf on CPU, which drops NaN",
        "docs/targets.md",
        _drops_nan_of_erf,
    ),
)


def explanation_of(case: Case) -> Explanation | None:
    """Finds the first explanation of a case."""
    return next((e for e in EXPLANATIONS if e.applies(case)), None)
