"""Specifications of a flat argument: with unknown sizes, decided, or left to AUTO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge.from_jax._symbols import dim_to_jax
from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions
from shape_poly import Dim


@dataclass(frozen=True)
class _ShapeAndDType:
    shape: tuple[Any, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        """Number of dimensions; pytree types may use it."""
        return len(self.shape)


@dataclass(frozen=True)
class OpenSpec(_ShapeAndDType):
    """Shape and dtype of an argument, with None for unknown sizes.

    Attributes:
      number: the argument, if it was a Python number.
    """

    shape: tuple[int | None, ...]
    number: complex | None = None


@dataclass(frozen=True)
class ArraySpec(_ShapeAndDType):
    """Shape and dtype of an argument, with the user's dimension variables.

    Attributes:
      example: the shape of the actual argument, with None for unknown sizes.
      number: the argument, if it was a Python number.
    """

    shape: tuple[Dim, ...]
    sharding: Any = None
    example: tuple[int | None, ...] | None = None
    weak_type: bool = False
    number: complex | None = None

    def to_jax(
        self, assumptions: SizeAssumptions, scope: jax_export.SymbolicScope
    ) -> jax.ShapeDtypeStruct:
        """Converts it to JAX's specification, in the scope of the assumptions."""
        shape = tuple(dim_to_jax(assumptions.to_jax(d), scope) for d in self.shape)
        return jax.ShapeDtypeStruct(
            shape, self.dtype, sharding=self.sharding, weak_type=self.weak_type
        )


@dataclass(frozen=True)
class AutoSpec(_ShapeAndDType):
    """Shape (with None for unknown sizes) and dtype of an argument that is left to AUTO."""

    shape: tuple[int | None, ...]
    sharding: Any = None

    @property
    def example(self) -> tuple[int | None, ...]:
        """Shape of the actual argument, as in ArraySpec."""
        return self.shape

    def with_shape(self, shape: tuple[Dim, ...]) -> ArraySpec:
        """Makes the specification with the shape that AUTO found."""
        return ArraySpec(shape, self.dtype, self.sharding, self.example)
