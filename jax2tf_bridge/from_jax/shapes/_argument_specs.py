"""Specifications of one flat argument: open, decided, or left to AUTO."""

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
        """Counts the dimensions; types of pytrees may ask."""
        return len(self.shape)


@dataclass(frozen=True)
class OpenSpec(_ShapeAndDType):
    """Shape and dtype of an argument, with None for the sizes that are not known.

    Attributes:
      number: the argument, if it was a number of Python.
    """

    shape: tuple[int | None, ...]
    number: complex | None = None


@dataclass(frozen=True)
class ArraySpec(_ShapeAndDType):
    """Shape and dtype of an argument, with the dimension variables as the user named them.

    Attributes:
      example: the shape of the argument that was given, as far as it was known.
      number: the argument, if it was a number of Python.
    """

    shape: tuple[Dim, ...]
    sharding: Any = None
    example: tuple[int | None, ...] | None = None
    weak_type: bool = False
    number: complex | None = None

    def placed(
        self, assumptions: SizeAssumptions, scope: jax_export.SymbolicScope
    ) -> jax.ShapeDtypeStruct:
        """Returns the specification for JAX; `scope` is that of the assumptions."""
        shape = tuple(dim_to_jax(assumptions.to_jax(d), scope) for d in self.shape)
        return jax.ShapeDtypeStruct(
            shape, self.dtype, sharding=self.sharding, weak_type=self.weak_type
        )


@dataclass(frozen=True)
class AutoSpec(_ShapeAndDType):
    """Shape (None: not known) and dtype of an argument whose specification AUTO finds."""

    shape: tuple[int | None, ...]
    sharding: Any = None

    @property
    def example(self) -> tuple[int | None, ...]:
        """Shape of the argument that was given, as ArraySpec has it."""
        return self.shape

    def decided(self, shape: tuple[Dim, ...]) -> ArraySpec:
        """Returns the specification with the shape that AUTO found."""
        return ArraySpec(shape, self.dtype, self.sharding, self.example)
