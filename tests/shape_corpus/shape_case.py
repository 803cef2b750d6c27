"""Cases of the corpus: a JAX function, plain shapes for it, and what it requires of them."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import export as jax_export

Label = Literal["provable", "requirement", "impossible"]
Obstacle = Literal["no size fits", "few sizes fit", "needs a number", "depends on values"]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class ShapeCase:
    """A function that JAX does not export with a plain specification.

    Attributes:
      name: of the case, unique.
      function: takes one pytree of arrays an argument.
      specs: for each argument a pytree of strings, as "(b, 8)": each open dimension is a variable.
      dtypes: of each argument.
      label: "provable": the function works at every size. "requirement": it works at the sizes
        that the requirement describes, infinitely many. "impossible": no constraint helps.
      requirement: the weakest one under which the function's body is valid; all of its
        comparisons must hold.
      sizes: assignments of the variables to try the function with: ten or more that satisfy the
        requirement, from small to large.
      stricter: whether the function works at some sizes that the requirement excludes, because
        tracing must decide what can turn out either way: a sign, or whether a size of 1 broadcasts.
      obstacle: why an impossible case is one.
      of_gradient: whether JAX exports the function and stops at its VJP only. Then the label, the
        requirement and all that follows from them are the gradient's.
      why: what JAX stops at, in a line.
    """

    name: str
    function: Callable[..., Any]
    specs: tuple[Any, ...]
    dtypes: tuple[str, ...]
    label: Label
    requirement: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    stricter: bool
    obstacle: Obstacle | None
    of_gradient: bool
    why: str

    @property
    def variables(self) -> tuple[str, ...]:
        """Returns the dimension variables, in the order of their first use."""
        return variables_of(self.specs)

    def fits(self, sizes: Sizes) -> bool:
        """Checks whether these sizes satisfy the requirement."""
        return all(holds(text, sizes) for text in self.requirement)

    def shapes(self, sizes: Sizes) -> list[Any]:
        """Makes the arguments as ShapeDtypeStructs of these sizes."""
        return self._structs(lambda spec: concrete_shape(spec, sizes))

    def symbolic_shapes(self, constraints: Sequence[str] = ()) -> list[Any]:
        """Makes the arguments as ShapeDtypeStructs with symbolic dimensions of one JAX scope."""
        scope = jax_export.SymbolicScope(tuple(constraints))
        return self._structs(lambda spec: jax_export.symbolic_shape(spec, scope=scope))

    def _structs(self, shape: Callable[[str], Any]) -> list[Any]:
        return [
            jax.tree.map(partial(_struct, shape, dtype), spec)
            for spec, dtype in zip(self.specs, self.dtypes, strict=True)
        ]

    def traced(self, arguments: Sequence[Any]) -> Any:
        """Calls the function, or for `of_gradient` its VJP at cotangents of 1."""
        if not self.of_gradient:
            return self.function(*arguments)
        results, pull_back = jax.vjp(self.function, *arguments)
        return pull_back(jax.tree.map(jnp.ones_like, results))

    def arguments(self, sizes: Sizes, seed: int = 0) -> list[Any]:
        """Makes arguments of these sizes: numpy arrays, the same for the same sizes and seed.

        Floats are normally distributed, integers lie in [0, 5).
        """
        numbers = np.random.default_rng([seed, *sizes.values()])
        arrays: list[Any] = jax.tree.map(
            lambda leaf: _values(numbers, leaf.shape, leaf.dtype), self.shapes(sizes)
        )
        return arrays

    def __str__(self) -> str:
        return self.name


def provable(*specs: Any, why: str, **attributes: Any) -> Callable[[Callable[..., Any]], ShapeCase]:
    """Makes a case of a function that works at every size."""
    return _case("provable", specs, why, **attributes)


def requires(
    *requirement: str, of: tuple[Any, ...], why: str, **attributes: Any
) -> Callable[[Callable[..., Any]], ShapeCase]:
    """Makes a case of a function that works where the requirement holds; `of` are its specs."""
    return _case("requirement", of, why, requirement=requirement, **attributes)


def impossible(
    *specs: Any, obstacle: Obstacle, why: str, **attributes: Any
) -> Callable[[Callable[..., Any]], ShapeCase]:
    """Makes a case of a function that no constraint on the sizes makes exportable."""
    return _case("impossible", specs, why, obstacle=obstacle, **attributes)


def _case(
    label: Label,
    specs: tuple[Any, ...],
    why: str,
    *,
    requirement: tuple[str, ...] = (),
    dtypes: tuple[str, ...] | None = None,
    sizes: tuple[Sizes, ...] | None = None,
    stricter: bool = False,
    obstacle: Obstacle | None = None,
    of_gradient: bool = False,
) -> Callable[[Callable[..., Any]], ShapeCase]:
    def make(function: Callable[..., Any]) -> ShapeCase:
        return ShapeCase(
            name=function.__name__,
            function=function,
            specs=specs,
            dtypes=dtypes or ("float32",) * len(specs),
            label=label,
            requirement=requirement,
            sizes=sizes or sample(variables_of(specs), requirement),
            stricter=stricter,
            obstacle=obstacle,
            of_gradient=of_gradient,
            why=why,
        )

    return make


def variables_of(specs: Any) -> tuple[str, ...]:
    """Finds the variables in a pytree of specifications, in the order of their first use."""
    names = [d for s in jax.tree.leaves(specs) for d in _dimensions(s) if not d.isdigit()]
    return tuple(dict.fromkeys(names))


def concrete_shape(spec: str, sizes: Sizes) -> tuple[int, ...]:
    """Evaluates a plain specification at these sizes.

    >>> concrete_shape("(b, 3)", {"b": 2})
    (2, 3)
    """
    return tuple(int(d) if d.isdigit() else sizes[d] for d in _dimensions(spec))


def _dimensions(spec: str) -> list[str]:
    return re.findall(r"\w+", spec)


_OPERATIONS = {"mod": lambda x, y: x % y, "floordiv": lambda x, y: x // y, "max": max, "min": min}


def holds(comparison: str, sizes: Sizes) -> bool:
    """Evaluates a comparison by Python's integers alone: nothing that is under test.

    >>> holds("mod(b, 8) == 0", {"b": 16}), holds("a >= b", {"a": 1, "b": 2})
    (True, False)
    """
    return bool(eval(comparison, {"__builtins__": {}}, {**_OPERATIONS, **sizes}))


def grid(variables: tuple[str, ...], largest: int, count: int) -> list[Sizes]:
    """Assignments of 1 to `largest`: at most `count` of the smallest, and as many random ones.

    The smallest come as a full grid, so that every combination of a few small sizes is there.
    """
    edge = min(largest, max(2, math.floor(count ** (1 / len(variables)))))
    small = itertools.product(range(1, edge + 1), repeat=len(variables))
    found = [dict(zip(variables, values, strict=True)) for values in small]
    if edge < largest:
        numbers = random.Random(0)
        found += [{v: numbers.randint(1, largest) for v in variables} for _ in range(count)]
    return list({tuple(sizes.values()): sizes for sizes in found}.values())


def sample(
    variables: tuple[str, ...], requirement: tuple[str, ...], count: int = 10
) -> tuple[Sizes, ...]:
    """`count` assignments that satisfy the requirement: the smallest, and some larger ones."""
    largest = {1: 100, 2: 24, 3: 12}.get(len(variables), 8)
    every = itertools.product(range(1, largest + 1), repeat=len(variables))
    found = [dict(zip(variables, values, strict=True)) for values in sorted(every, key=sum)]
    found = [sizes for sizes in found if all(holds(text, sizes) for text in requirement)]
    near, far = found[: count - 3], found[count - 3 :]
    first = len(far) // 8
    second = max(first + 1, len(far) // 4)
    third = max(second + 1, len(far) // 2)
    return (*near, far[first], far[second], far[third])


def weights(*shape: int) -> Any:
    """Small normally distributed numbers for the parameters of a layer, the same at every call."""
    return (np.random.default_rng(list(shape)).standard_normal(shape) / 4).astype(np.float32)


def _struct(shape: Callable[[str], Any], dtype: str, spec: str) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape(spec), dtype)


def _values(numbers: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    if np.issubdtype(dtype, np.integer):
        return numbers.integers(0, 5, shape).astype(dtype)
    if dtype == np.bool_:
        return numbers.integers(0, 2, shape).astype(dtype)
    return numbers.standard_normal(shape).astype(dtype)
