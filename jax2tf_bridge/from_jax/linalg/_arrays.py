"""Small operations on batches of matrices, shared by the decompositions; written in jax.lax."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

State = TypeVar("State")
Results = TypeVar("Results")


def matmul(a: Any, b: Any) -> Any:
    """Multiplies [..., m, k] by [..., k, n], at the dtype's full precision on every platform."""
    batch = tuple(range(a.ndim - 2))
    return lax.dot_general(
        a,
        b,
        (((a.ndim - 1,), (b.ndim - 2,)), (batch, batch)),
        precision=lax.Precision.HIGHEST,
    )


class RowMatrix:
    """A matrix [m, n] that a loop writes row by row and multiplies with vectors.

    A complex matrix is stored as its real and imaginary parts: on CPU, XLA multiplies vectors and
    matrices fast only if they are real.
    """

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts

    @classmethod
    def of(cls, a: Any) -> "RowMatrix":
        return cls((lax.real(a), lax.imag(a)) if is_complex(a) else (a,))

    def whole(self) -> Any:
        """Returns the matrix as one array."""
        return _combine([*self.parts])

    def write(self, values: Any, first: Any) -> "RowMatrix":
        """Returns these rows with `values` in place of the rows from `first` on."""
        values = RowMatrix.of(values).parts
        pairs = zip(self.parts, values, strict=True)
        return RowMatrix(tuple(lax.dynamic_update_slice_in_dim(x, v, first, 0) for x, v in pairs))

    def row(self, k: Any) -> Any:
        """Returns row k [1, n]."""
        return _combine([lax.dynamic_slice_in_dim(x, k, 1, 0) for x in self.parts])

    def column(self, k: Any) -> Any:
        """Returns column k as a row [1, m]."""
        slices = [lax.dynamic_slice_in_dim(x, k, 1, 1) for x in self.parts]
        return _combine([lax.reshape(x, (1, x.shape[0])) for x in slices])

    def times(self, x: Any, transposed: bool = False) -> Any:
        """Computes x A for a row x [1, m], or x A^T for x [1, n]; A is this matrix."""
        contracted = (((1,), (1 if transposed else 0,)), ((), ()))

        def product(x: Any, a: Any) -> Any:
            return lax.dot_general(x, a, contracted, precision=lax.Precision.HIGHEST)

        if not is_complex(x):
            return product(x, *self.parts)
        real, imaginary = self.parts
        return lax.complex(
            product(lax.real(x), real) - product(lax.imag(x), imaginary),
            product(lax.real(x), imaginary) + product(lax.imag(x), real),
        )


jax.tree_util.register_pytree_node(
    RowMatrix, lambda r: (r.parts, None), lambda _, parts: RowMatrix(parts)
)


def _combine(parts: list[Any]) -> Any:
    return lax.complex(*parts) if len(parts) > 1 else parts[0]


def adjoint(a: Any) -> Any:
    """Returns the conjugate transpose of the last two dimensions."""
    return conj(transpose(a))


def transpose(a: Any) -> Any:
    """Exchanges the last two dimensions."""
    return lax.transpose(a, (*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))


def conj(a: Any) -> Any:
    """Returns the conjugate, which for a real array is the array itself."""
    return lax.conj(a) if is_complex(a) else a


def is_complex(a: Any) -> bool:
    return bool(np.issubdtype(a.dtype, np.complexfloating))


def real(a: Any) -> Any:
    """Returns the real part, which for a real array is the array itself."""
    return lax.real(a) if is_complex(a) else a


def real_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns the dtype of the real part."""
    return np.finfo(dtype).dtype


def cast_like(x: Any, a: Any) -> Any:
    return lax.convert_element_type(x, a.dtype)


def max_over(x: Any, *axes: int) -> Any:
    """Returns the maximum of numbers that are not negative, and 0 for an empty array."""
    return lax.reduce(x, np.zeros((), x.dtype), lax.max, axes)


def abs1(x: Any) -> Any:
    """Returns |re| + |im|, by which LAPACK compares complex numbers."""
    return lax.abs(lax.real(x)) + lax.abs(lax.imag(x)) if is_complex(x) else lax.abs(x)


def unit_phase(x: Any) -> Any:
    """Returns x / |x|, or 1 where x is 0."""
    size = lax.abs(x)
    nonzero = size > 0
    return where(nonzero, x / cast_like(where(nonzero, size, 1), x), 1)


def find_scale(a: Any) -> tuple[Any, Any]:
    """Returns the largest absolute entry of a [m, n], and whether all entries are finite.

    The first is 1 if all entries are 0, or if one of them is not finite.
    """
    size = lax.abs(a)
    largest = max_over(size, 0, 1)
    is_finite = lax.reduce_and(lax.is_finite(size), (0, 1))
    return where((largest > 0) & is_finite, largest, 1), is_finite


def epsilon(dtype: Any) -> float:
    """Returns the machine epsilon: the distance from 1 to the next larger number."""
    return float(np.finfo(dtype).eps)


def diagonal(a: Any) -> Any:
    """Returns the main diagonal of [..., m, n], as [..., m]; 0 in rows that it does not reach."""
    masked = where(distance_below_diagonal(*a.shape[-2:]) == 0, a, 0)
    return lax.reduce_sum(masked, (a.ndim - 1,))


def take_at(a: Any, index: Any, axis: int) -> Any:
    """Returns the slice of `a` at an index that may be traced, without the axis.

    lax.dynamic_index_in_dim is a jitted function and would leave a call in the module.
    """
    return lax.squeeze(lax.dynamic_slice_in_dim(a, index, 1, axis), (axis,))


def columns(v: Any) -> Any:
    """Reshapes [..., n] to [..., n, 1]."""
    return lax.expand_dims(v, (v.ndim,))


def rows(v: Any) -> Any:
    """Reshapes [..., n] to [..., 1, n]."""
    return lax.expand_dims(v, (v.ndim - 1,))


def where(condition: Any, a: Any, b: Any) -> Any:
    """Chooses elementwise after broadcasting all three arrays; trailing dimensions are aligned.

    Unlike jax.numpy.where, this is not a jitted function, so it leaves no call in the module.
    """
    dtype = next(x.dtype for x in (a, b) if hasattr(x, "dtype"))
    shape: tuple[Any, ...] = ()
    for x in (condition, a, b):
        shape = lax.broadcast_shapes(shape, np.shape(x))
    return lax.select(
        broadcast(condition, shape), broadcast(a, shape, dtype), broadcast(b, shape, dtype)
    )


def broadcast(x: Any, shape: tuple[Any, ...], dtype: Any = None) -> Any:
    """Broadcasts `x` to `shape`, trailing dimensions aligned."""
    if not hasattr(x, "dtype"):
        x = np.asarray(x, dtype)
    offset = len(shape) - x.ndim
    return lax.broadcast_in_dim(x, shape, tuple(range(offset, len(shape))))


def distance_below_diagonal(m: int, n: int | None = None) -> Any:
    """Returns how many rows each entry of an [m, n] matrix is below the diagonal, int32.

    Comparisons of the result are triangular masks. A mask from numpy would be stored in the module
    as a constant of that size.
    """
    shape = (m, m if n is None else n)
    return lax.broadcasted_iota(np.int32, shape, 0) - lax.broadcasted_iota(np.int32, shape, 1)


def eye_like(a: Any, rows_count: int, columns_count: int) -> Any:
    """Returns identities [..., rows, columns] with the batch and dtype of `a` [..., m, n]."""
    eye = cast_like(distance_below_diagonal(rows_count, columns_count) == 0, a)
    return broadcast(eye, (*a.shape[:-2], rows_count, columns_count))


def choose_block_width(n: int, least: int) -> int:
    """Returns a block width of at least `least` that splits n into at most 16 blocks."""
    return max(least, -(-n // 16))


def are_sizes_known(*sizes: Any) -> bool:
    """Returns whether all sizes are numbers, none of them symbolic."""
    return all(isinstance(size, int) for size in sizes)


def round_up_to_multiple(width: int, size: Any) -> Any:
    """Rounds a size, which may be symbolic, up to a multiple of `width`."""
    return (size + (width - 1)) // width * width


def resize(a: Any, shape: tuple[Any, ...]) -> Any:
    """Crops or zero-pads each dimension at its end.

    This uses pad instead of slice, because JAX would have to prove that a slice of symbolic size
    lies within the array.
    """
    if a.shape == shape:
        return a
    config = [(0, new - old, 0) for old, new in zip(a.shape, shape, strict=True)]
    return pad_zeros(a, config)


def pad_zeros(a: Any, config: Sequence[tuple[Any, Any, int]]) -> Any:
    """Pads with zeros; `config` is that of lax.pad."""
    return lax.pad(a, np.zeros((), a.dtype), config)


def shift(a: Any, count: int, *axes: int) -> Any:
    """Moves the entries `count` places along each of the axes, and fills up with zeros."""
    config = [(count, -count, 0) if axis in axes else (0, 0, 0) for axis in range(a.ndim)]
    return pad_zeros(a, config)


def int32(size: Any) -> Any:
    """Converts a size, which may be symbolic, or an integer array to int32."""
    if isinstance(size, int):
        return np.int32(size)
    return lax.convert_element_type(jnp.asarray(size), np.int32)


def loop(count: Any, step: Callable[[Any, State], State], state: State) -> State:
    """Calls `step(k, state)` for k = 0 .. count - 1; k is int32 even with jax_enable_x64.

    `count` is a size, which may be symbolic, or an int32 scalar.
    """

    def body(k: Any, state: State) -> State:
        return step(lax.convert_element_type(k, np.int32), state)

    result: State = lax.fori_loop(np.int32(0), int32(count), body, state)
    return result


def vmap_matrices(function: Callable[[Any], Results], a: Any) -> Results:
    """Applies `function` to all matrices of [..., m, n] at once."""
    for _ in a.shape[:-2]:
        function = jax.vmap(function)
    return function(a)


def map_matrices(function: Callable[[Any], Results], a: Any) -> Results:
    """Applies `function` to each matrix of [..., m, n] in turn, for loops of many small steps.

    Under jax.vmap, every matrix would take as many steps as the slowest one, and each would index
    at its own position.
    """
    if a.ndim == 2:
        return function(a)
    batch = a.shape[:-2]
    if a.ndim > 3:
        a = lax.collapse(a, 0, a.ndim - 2)
    results: Results = jax.tree_util.tree_map(
        lambda x: lax.reshape(x, (*batch, *x.shape[1:])), lax.map(function, a)
    )
    return results
