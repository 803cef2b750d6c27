"""What is known of one argument of a function before it is traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions
from jax2tf_bridge.from_jax.shapes._symbols import dim_to_jax
from shape_poly import Dim


@dataclass(frozen=True)
class OpenSpec:
    """The shape and dtype of an argument of which some dimensions (None) are not known.

    `number` is the argument, if it was a number of Python.
    """

    shape: tuple[int | None, ...]
    dtype: Any
    number: complex | None = None

    @property
    def ndim(self) -> int:
        """How many dimensions it has; types of pytrees may ask."""
        return len(self.shape)


@dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of an argument, with the dimension variables as the user named them.

    `example` is the shape that it had when it was given, as far as it was known; `number` is the
    argument, if it was a number of Python.
    """

    shape: tuple[Dim, ...]
    dtype: Any
    sharding: Any = None
    example: tuple[int | None, ...] | None = None
    weak_type: bool = False
    number: complex | None = None

    @property
    def ndim(self) -> int:
        """How many dimensions it has; types of pytrees may ask."""
        return len(self.shape)

    def placed(
        self, assumptions: SizeAssumptions, scope: jax_export.SymbolicScope
    ) -> jax.ShapeDtypeStruct:
        """What JAX traces with, under the assumptions that is in its scope."""
        shape = tuple(dim_to_jax(assumptions.to_jax(d), scope) for d in self.shape)
        return jax.ShapeDtypeStruct(
            shape, self.dtype, sharding=self.sharding, weak_type=self.weak_type
        )


@dataclass(frozen=True)
class AutoSpec:
    """The sizes (None: not known) and dtype of an argument whose specification AUTO finds."""

    sizes: tuple[int | None, ...]
    dtype: Any
    sharding: Any = None

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The sizes; types of pytrees may ask."""
        return self.sizes

    @property
    def ndim(self) -> int:
        """How many dimensions it has; types of pytrees may ask."""
        return len(self.sizes)

    @property
    def example(self) -> tuple[int | None, ...]:
        """The shape that it had when it was given, as far as it was known."""
        return self.sizes
