"""Types of the arrays that a saved signature takes and gives, as TensorFlow knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.portable import Aval
from shape_poly import Dim, is_symbolic_dim


@dataclass(frozen=True)
class ServedArray:
    """Type of an input or output of a saved signature.

    Attributes:
      dtype: TensorFlow's name of it, as "string".
      shape: a size, a dimension variable, or None for each dimension; None where TensorFlow does
        not know how many there are.

    >>> str(ServedArray("string", (None,))), str(ServedArray("float32", None))
    ('string[?]', 'float32[...]')
    """

    dtype: str
    shape: tuple[Dim | None, ...] | None

    @staticmethod
    def of_aval(aval: Aval) -> ServedArray:
        """Describes an argument or result of a JAX function, as TensorFlow sees it."""
        return ServedArray(aval.op_dtype, aval.op_shape)

    @staticmethod
    def of_tensor(tensor: Any) -> ServedArray:
        """Describes a tensor, or a tf.TensorSpec."""
        rank = tensor.shape.rank
        return ServedArray(tensor.dtype.name, None if rank is None else tuple(tensor.shape))

    @property
    def has_open_rows(self) -> bool:
        """True if its first dimension has no fixed size."""
        rows = self.shape[0] if self.shape else 0
        return rows is None or is_symbolic_dim(rows)

    @property
    def has_open_lengths(self) -> bool:
        """True if a dimension after the first has no fixed size."""
        return any(size is None or is_symbolic_dim(size) for size in (self.shape or ())[1:])

    def __str__(self) -> str:
        return array_type_text(self.dtype, self.shape)


Sides: TypeAlias = tuple[dict[str, ServedArray], dict[str, ServedArray]]
"""The inputs and outputs of a signature, by name."""


def served_text(arrays: Mapping[str, Any]) -> str:
    """Writes arrays by name for people: "x: float32[b,3], y: string[?]"."""
    return ", ".join(f"{name}: {array}" for name, array in arrays.items())
