"""Random bits like those of XLA on the CPU, and random numbers without a key.

TensorFlow's Philox operation uses the same counters and order. TensorFlow has no CPU kernel for
ThreeFry, so it is expanded into arithmetic.
"""

from __future__ import annotations

import math

import numpy as np

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays, graph_dtype
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters.formulas.integers import wrap
from jax2tf_bridge.rewriting import RANDOM_UNIT
from shape_poly import Dim

_PHILOX = 1
"""TensorFlow's number of the algorithm."""
_LOW_WORD = 0xFFFFFFFF
_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
_NARROW = frozenset({"i8", "i16", "ui8", "ui16", "ui32"})
"""Integers that TensorFlow draws in 64 bits only."""
_ELEMENTS = _FLOATS | _NARROW | {"i4", "i32", "i64", "ui4", "ui64"}
"""Types for which XLA generates bits."""


@emits("rng_bit_generator", "stablehlo.dynamic_rng_bit_generator")
def _rng_bit_generator(scope: Scope, operation: Operation, operands: Arrays) -> list[Array]:
    state, *shape = operands
    kind = operation.results[1].tensor
    sizes = scope.result_sizes(operation, *shape)
    if kind.element not in _ELEMENTS:
        scope.fail(operation, f"there are no random bits for elements of {kind.element}")
    bits = dtype_of_element(kind.element).bits
    key_and_counter = scope.tensor(state)
    algorithm = operation.text("rng_algorithm")
    if algorithm in ("DEFAULT", "PHILOX"):  # XLA's default on the CPU
        after, tensor = _philox(scope, key_and_counter, sizes, bits)
    elif algorithm == "THREE_FRY":
        after, tensor = _three_fry(scope, key_and_counter, sizes, bits)
    else:
        scope.fail(operation, f"the algorithm {algorithm} is not known")
    return [
        scope.new_array(after, state.element, state.sizes),
        scope.new_array(_narrow(tensor, kind.element, bits), kind.element, sizes),
    ]


def _narrow(tensor: ops.Tensor, element: str, bits: int) -> ops.Tensor:
    """Converts words of 32 or 64 bits to the element's width, by their lowest bits."""
    if bits < 32:
        tensor = ops.cast(tensor, ops.uint16 if bits == 16 else ops.uint8)
    dtype = graph_dtype(element)
    return wrap(element, tensor if dtype == tensor.dtype else ops.bitcast(tensor, dtype))


def _philox(
    scope: Scope, state: ops.Tensor, sizes: tuple[Dim, ...], bits: int
) -> tuple[ops.Tensor, ops.Tensor]:
    """Generates words with Philox4x32 in 10 rounds.

    The state has the key and a 128-bit counter, lower half first. In a state of two elements the
    key is also the upper half of the counter, which is not returned.
    """
    has_upper = state.shape.as_list() == [3]
    counter = state[1:] if has_upper else ops.reverse(state, [0])
    words = ops.raw_ops.StatelessRandomUniformFullIntV2(
        shape=scope.sizes.shape(sizes) if sizes else ops.constant([], ops.int32),
        key=state[:1],
        counter=counter,
        alg=_PHILOX,
        dtype=ops.uint64 if bits == 64 else ops.uint32,
    )
    # Each counter value gives 128 bits.
    per_count = 2 if bits == 64 else 4
    used = scope.sizes.number((math.prod(sizes) + (per_count - 1)) // per_count, ops.uint64)
    if not has_upper:
        return ops.add(state, ops.stack([ops.constant(0, ops.uint64), used])), words
    key, lower, upper = ops.unstack(state)
    sum_ = ops.add(lower, used)
    carry = ops.cast(ops.less(sum_, lower), ops.uint64)
    return ops.stack([key, sum_, ops.add(upper, carry)]), words


def _three_fry(
    scope: Scope, state: ops.Tensor, sizes: tuple[Dim, ...], bits: int
) -> tuple[ops.Tensor, ops.Tensor]:
    """Generates words with ThreeFry2x32 in 20 rounds; the state is the key and a counter."""
    key, counter = ops.unstack(state)
    if bits == 64:
        total = math.prod(sizes)
        first, second = _blocks(scope, key, counter, total)
        high = ops.bitwise.left_shift(ops.cast(second, ops.uint64), ops.constant(32, ops.uint64))
        words = ops.bitwise.bitwise_or(ops.cast(first, ops.uint64), high)
    else:
        before, size, after = _find_halved_axis(scope, sizes)
        half = (size + 1) // 2
        total = before * half * after
        # The two words of a block are adjacent along the axis.
        parts = [
            ops.reshape(part, scope.sizes.reshape_shape((before, half, 1, after)))
            for part in _blocks(scope, key, counter, total)
        ]
        words = ops.reshape(
            ops.concat(parts, 2), scope.sizes.reshape_shape((before, 2 * half, after))
        )
        if 2 * half != size:
            words = words[:, : scope.sizes.size(size)]
    words = ops.reshape(words, scope.sizes.reshape_shape(sizes))
    return ops.stack([key, ops.add(counter, scope.sizes.number(total, ops.uint64))]), words


def _find_halved_axis(scope: Scope, sizes: tuple[Dim, ...]) -> tuple[Dim, Dim, Dim]:
    """Finds the axis along which elements form pairs: the first of even size, or the largest.

    Returns the number of elements before it, its size, and the number of elements after it.
    """
    if not sizes:
        return 1, 1, 1
    for axis, size in enumerate(sizes):
        lower, upper = scope.sizes.bounds(size % 2)
        if lower == upper == 0:
            return _around(sizes, axis)
        if not lower == upper == 1:
            return _find_halved_axis_at_run_time(scope, sizes)
    if all(isinstance(size, int) for size in sizes):
        return _around(sizes, int(np.argmax(np.array(sizes))))
    return _find_halved_axis_at_run_time(scope, sizes)


def _around(sizes: tuple[Dim, ...], axis: int) -> tuple[Dim, Dim, Dim]:
    return math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])


def _find_halved_axis_at_run_time(scope: Scope, sizes: tuple[Dim, ...]) -> tuple[Dim, Dim, Dim]:
    if len(sizes) == 1:
        return 1, sizes[0], 1
    shape = ops.convert_to_tensor(scope.sizes.shape(sizes), ops.int32)
    # All even sizes weigh more than odd ones, and argmax returns the first.
    weights = ops.where(ops.equal(shape % 2, 0), ops.int32.max, shape)
    axis = ops.argmax(weights, output_type=ops.int32)
    before = ops.reduce_prod(shape[:axis])
    after = ops.reduce_prod(shape[axis + 1 :])
    return (
        scope.sizes.new_size(before),
        scope.sizes.new_size(shape[axis]),
        scope.sizes.new_size(after),
    )


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def _blocks(
    scope: Scope, key: ops.Tensor, counter: ops.Tensor, total: Dim
) -> tuple[ops.Tensor, ops.Tensor]:
    """Returns the two words of each block that a key and a counter generate."""
    constants: dict[int, ops.Tensor] = {}

    def word(value: int) -> ops.Tensor:
        if value not in constants:
            constants[value] = ops.constant(value, ops.uint32)
        return constants[value]

    counts = ops.add(ops.cast(ops.range(scope.sizes.size(total)), ops.uint64), counter)
    first, second = _words(counts)
    low, high = _words(key)
    parity = ops.bitwise.bitwise_xor(ops.bitwise.bitwise_xor(low, high), word(_PARITY))
    keys = (low, high, parity)
    first, second = ops.add(first, low), ops.add(second, high)
    for step in range(5):
        for distance in _ROTATIONS[step % 2]:
            first = ops.add(first, second)
            left = ops.bitwise.left_shift(second, word(distance))
            right = ops.bitwise.right_shift(second, word(32 - distance))
            second = ops.bitwise.bitwise_xor(ops.bitwise.bitwise_or(left, right), first)
        first = ops.add(first, keys[(step + 1) % 3])
        second = ops.add(second, ops.add(keys[(step + 2) % 3], word(step + 1)))
    return first, second


def _words(values: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor]:
    """Splits 64-bit elements into lower and upper words."""
    low = ops.bitwise.bitwise_and(values, ops.constant(_LOW_WORD, ops.uint64))
    high = ops.bitwise.right_shift(values, ops.constant(32, ops.uint64))
    return ops.cast(low, ops.uint32), ops.cast(high, ops.uint32)


@emits("rng")
def _rng(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    """Draws numbers without a key, which differ in each run, as in XLA."""
    # The operands of a normal distribution are its mean and deviation.
    low, high, shape = operands
    kind = operation.result_type
    distribution = operation.text("rng_distribution")
    is_narrow = kind.element in _NARROW
    if distribution == "NORMAL" and kind.element in _FLOATS:
        draw = ops.random.normal
    elif distribution == "UNIFORM" and (is_narrow or kind.element in (*_FLOATS, "i32", "i64")):
        draw = ops.random.uniform
    else:
        scope.fail(operation, f"no {distribution} numbers of {kind.element} can be drawn")
    sizes = scope.sizes_of(shape, kind.shape)
    dtype = ops.int64 if is_narrow else graph_dtype(kind.element)
    limits = [ops.cast(scope.tensor(each), dtype) for each in (low, high)]
    tensor = draw(scope.sizes.shape(sizes), *limits, dtype)
    return scope.new_array(ops.cast(tensor, graph_dtype(kind.element)), kind.element, sizes)


@emits(RANDOM_UNIT)
def _emit_random_unit(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (fraction,) = operands
    # The conversion through signed integers is exact.
    number = ops.cast(ops.cast(scope.compact(fraction), ops.int32), ops.float32)
    tensor = number * ops.constant(2.0 ** -operation.int("fraction_bits")) + ops.constant(1.0)
    return scope.new_array(tensor, "f32", fraction.sizes)
