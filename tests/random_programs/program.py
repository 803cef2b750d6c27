"""A random program: inputs, steps over named values, and results; printable as Python source."""

from __future__ import annotations

import dataclasses
import itertools
import linecache
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.random_programs.values import Array, make_values

_NAMES = re.compile(r"\b[xv]\d+\b")
_FILES = itertools.count()

Sizes = Mapping[str, int]
"""The sizes of a call, by symbol."""


@dataclass(frozen=True)
class Input:
    """An argument of a program.

    Attributes:
      name: as "x0".
      dtype: its name in NumPy or ml_dtypes.
      shape: sizes, or expressions of symbols, as ("b", 3).
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def shape_at(self, sizes: Sizes) -> tuple[int, ...]:
        """Returns the shape of a call."""
        return tuple(evaluate_size(size, sizes) for size in self.shape)


@dataclass(frozen=True)
class Step:
    """An assignment: `name = expression`; `operation` is the expression's name in reports."""

    name: str
    expression: str
    operation: str

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the values that the expression reads, each once."""
        return tuple(dict.fromkeys(_NAMES.findall(self.expression)))


@dataclass(frozen=True)
class Program:
    """A function of JAX, and the arguments that it is tried with.

    Attributes:
      inputs: its arguments.
      steps: its lines, in order.
      outputs: the names of its results.
      calls: the sizes of each call, by symbol.
      x64: whether JAX has 64-bit dtypes.
      seed: of the arguments' values.
      specials: the share of NaN, infinities and extremes among the arguments.
      values: the arguments of each call, where they do not follow from the seed.
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    calls: tuple[Mapping[str, int], ...] = ({},)
    x64: bool = False
    seed: int = 0
    specials: float = 0.0
    values: tuple[Mapping[str, Array], ...] | None = None

    def arguments(self, call: int) -> list[Array]:
        """Makes the arguments of a call."""
        if self.values is not None:
            return [self.values[call][i.name] for i in self.inputs]
        rng = np.random.default_rng([self.seed, call])
        return [
            make_values(rng, i.dtype, i.shape_at(self.calls[call]), self.specials)
            for i in self.inputs
        ]

    def source(self) -> str:
        """Writes the function; its steps begin in line 3."""
        names = ", ".join(i.name for i in self.inputs)
        return "\n".join(
            [
                f"def program({names}):",
                f"    {self._symbols()}",
                *(f"    {step.name} = {step.expression}" for step in self.steps),
                f"    return ({', '.join(self.outputs)},)\n",
            ]
        )

    def _symbols(self) -> str:
        sources = {
            size: f"{i.name}.shape[{axis}]"
            for i in reversed(self.inputs)
            for axis, size in reversed(list(enumerate(i.shape)))
            if isinstance(size, str) and size.isidentifier()
        }
        if len(self.calls) == 1:
            for symbol, size in self.calls[0].items():
                sources.setdefault(symbol, str(size))
        if not sources:
            return "pass"
        return f"{', '.join(sources)} = {', '.join(sources.values())}"

    def function(self) -> Callable[..., Any]:
        """Compiles the source; errors name its lines by a file of its own."""
        file = f"program_{next(_FILES)}.py"
        source = self.source()
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        names: dict[str, Any] = dict(NAMES)
        exec(compile(source, file, "exec"), names)
        function: Callable[..., Any] = names["program"]
        return function

    def step_of(self, source: str | None) -> Step | None:
        """Finds the step that an error's "file:line" names."""
        match = re.search(r"program_\d+\.py:(\d+)", source or "")
        number = int(match[1]) - 3 if match else -1
        return self.steps[number] if 0 <= number < len(self.steps) else None

    def polymorphic_shapes(self) -> list[str] | None:
        """The shapes of the arguments as the bridge takes them; None if all are fixed."""
        if not self.has_open_sizes():
            return None
        return ["(" + "".join(f"{size}, " for size in i.shape) + ")" for i in self.inputs]

    def pruned(self) -> Program:
        """Drops the steps and inputs that no result needs, but for those that have symbols."""
        needed = set(self.outputs)
        steps = []
        for step in reversed(self.steps):
            if step.name in needed:
                steps.append(step)
                needed.update(step.operands)
        symbols = {
            symbol
            for step in steps
            for symbol in self.symbols()
            if re.search(rf"\b{symbol}\b", step.expression)
        }
        inputs = []
        for i in self.inputs:
            mine = {size for size in i.shape if isinstance(size, str) and size in symbols}
            if i.name in needed or mine:
                inputs.append(i)
                symbols -= mine
        return dataclasses.replace(self, steps=tuple(reversed(steps)), inputs=tuple(inputs))

    def fixed(self, call: int) -> Program:
        """Returns the program of one call, whose sizes are known."""
        sizes = self.calls[call]
        return dataclasses.replace(
            self,
            inputs=tuple(dataclasses.replace(i, shape=i.shape_at(sizes)) for i in self.inputs),
            calls=(sizes,),
            values=(dict(zip([i.name for i in self.inputs], self.arguments(call), strict=True)),),
        )

    def has_open_sizes(self) -> bool:
        """Returns whether an input has a symbol in its shape."""
        return any(isinstance(size, str) for i in self.inputs for size in i.shape)

    def symbols(self) -> tuple[str, ...]:
        """The names of the open sizes."""
        return tuple(self.calls[0]) if self.calls else ()

    def script(self) -> str:
        """Writes a script that makes the arguments and calls jax.jit."""
        lines = [
            "import jax, jax.numpy as jnp, ml_dtypes, numpy as np",
            "from jax import lax",
            "from tests.random_programs.program import floordiv, max, min, mod",
            *([f'jax.config.update("jax_enable_x64", {self.x64})'] if self.x64 else []),
            "",
            self.source(),
        ]
        for call in range(len(self.calls)):
            arguments = ", ".join(array_text(a) for a in self.arguments(call))
            lines.append(f"args = ({arguments},)" if arguments else "args = ()")
            lines.append("print(jax.jit(program)(*args))")
        lines.append(f"# polymorphic_shapes={self.polymorphic_shapes()}")
        return "\n".join(lines)


def array_text(array: Array) -> str:
    """Writes an array as Python.

    >>> array_text(np.array([1, np.nan], np.float32))
    "np.array([1.0, float('nan')], 'float32')"
    """
    dtype = str(array.dtype)
    wide = array
    if dtype in ("bfloat16", "float16"):
        wide = array.astype(np.float32)
    kind = f"ml_dtypes.{dtype}" if dtype == "bfloat16" else repr(dtype)
    shaped = f"np.array({_text_of(wide.tolist())}, {kind})"
    return shaped if array.size else f"np.zeros({array.shape}, {kind})"


def _text_of(value: Any) -> str:
    """Writes nested lists of numbers, NaN and infinity included, as Python."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text_of, value))}]"
    if isinstance(value, complex):
        # `1-infj` is no literal, and `-0.0+1j` loses the sign of its real part.
        return f"complex({_text_of(value.real)}, {_text_of(value.imag)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def floordiv(a: Any, b: Any) -> Any:
    """Divides sizes, as JAX writes it."""
    return a // b


def mod(a: Any, b: Any) -> Any:
    """Remainder of sizes, as JAX writes it."""
    return a % b


def max(a: Any, b: Any) -> Any:
    """The larger of two sizes, as JAX writes it."""
    return jax.core.max_dim(a, b)


def min(a: Any, b: Any) -> Any:
    """The smaller of two sizes, as JAX writes it."""
    return jax.core.min_dim(a, b)


NAMES: Mapping[str, Any] = {
    "jax": jax,
    "jnp": jnp,
    "lax": lax,
    "np": np,
    "floordiv": floordiv,
    "mod": mod,
    "max": max,
    "min": min,
}
"""The names that expressions use."""


def evaluate_size(size: int | str, sizes: Sizes) -> int:
    """Evaluates a size of an input.

    >>> evaluate_size("2*b + 1", {"b": 3})
    7
    """
    return size if isinstance(size, int) else int(eval(size, dict(NAMES), dict(sizes)))
