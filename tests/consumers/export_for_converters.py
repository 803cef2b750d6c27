"""Writes programs and the shape corpus as SavedModels that converters read.

    python -m tests.consumers.export_for_converters FOLDER [NAME ...]

`tests.models.consume_converted` runs them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf_bridge import Signature, Target, save
from tests.consumers.exchange import Array, Report, write_arrays, write_call_facts
from tests.consumers.one_by_one import one_by_one
from tests.program_cases.record import Program
from tests.program_cases.reference import jax_arguments, over_key_words, reference
from tests.programs import PROGRAMS
from tests.shape_corpus import labelled
from tests.shape_corpus.shape_case import ShapeCase

_BFLOAT16_TOLERANCE = 2.0**-6


def _flat(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that its results are called output_0 and so on, as no input is."""

    def f(*args: Any, **kwargs: Any) -> Any:
        return tuple(jax.tree_util.tree_leaves(function(*args, **kwargs)))

    return f


@dataclass(frozen=True)
class Answered:
    """A function with JAX's answers.

    Attributes:
      signature: has the function.
      answers: the flat inputs and results of each call, as they cross to a converted graph.
      tolerance: relative to the largest number of an array.
    """

    signature: Signature
    answers: Sequence[tuple[Sequence[Array], Sequence[Array]]]
    tolerance: float

    @staticmethod
    def of(signature: Signature, answers: Sequence[tuple[Any, Any]], tolerance: float) -> Answered:
        """Takes the answers in JAX's dtypes."""
        arrays = [array for pair in answers for side in pair for array in side]
        if any(array.dtype.name == "bfloat16" for array in arrays):
            tolerance = _BFLOAT16_TOLERANCE
        wide = [(list(map(_widened, i)), list(map(_widened, r))) for i, r in answers]
        return Answered(signature, wide, tolerance)


def _widened(array: Array) -> Array:
    """Returns the array as it crosses to a converted graph, which has no bfloat16."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _answer_program(program: Program) -> Answered:
    example = program.build()
    references = [reference(program, example, c, gradients=False) for c in example.calls]
    first = example.calls[0]
    function = example.function
    args: Sequence[Any] = jax_arguments(program, first)
    if program.key_arguments:
        function, args = over_key_words(program, function), first.args
    signature = Signature(
        _flat(function),
        args=list(args),
        kwargs=dict(first.kwargs),
        polymorphic_shapes=program.polymorphic_shapes,
        polymorphic_constraints=program.constraints,
    )
    answers = [(r.inputs, r.results) for r in references]
    return Answered.of(signature, answers, program.tolerance)


def _answer_case(case: ShapeCase) -> Answered:
    function = jax.jit(_flat(case.function))
    answers = []
    for sizes in case.sizes[:: max(1, len(case.sizes) // 3)][:3]:
        args = case.arguments(sizes)
        leaves = jax.tree_util.tree_leaves(args)
        answers.append((leaves, list(map(np.asarray, function(*args)))))
    signature = Signature(
        _flat(case.function),
        args=case.arguments(case.sizes[-1]),
        polymorphic_shapes=list(case.specs),
        polymorphic_constraints=case.requirement,
    )
    return Answered.of(signature, answers, 2e-4)


@dataclass(frozen=True)
class Exported:
    """A program or a case.

    Attributes:
      name: of its folder.
      answer: builds it, and runs it in JAX.
      precision: makes the context in which it is built and exported.
    """

    name: str
    answer: Callable[[], Answered]
    precision: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    def __str__(self) -> str:
        return self.name

    def write(self, folder: Path) -> None:
        """Saves the function, and beside it arguments and JAX's results as flat arrays."""
        folder.mkdir()
        with self.precision():
            answered = self.answer()
            target = Target.converters()
            saved = save(folder / "model", answered.signature, target=target, vjp_order=0)
        (served,) = saved.signatures.values()
        for i, (inputs, results) in enumerate(answered.answers):
            write_arrays(folder / f"call-{i}.npz", {"inputs": inputs, "results": results})
        names = [*served.inputs], [*served.outputs]
        write_call_facts(folder, *names, len(answered.answers), answered.tolerance)


EXPORTED: tuple[Exported, ...] = (
    *(Exported(p.name, functools.partial(_answer_program, p), p.precision) for p in PROGRAMS),
    *(
        Exported(f"case-{c.name}", functools.partial(_answer_case, c))
        for c in (*labelled("provable"), *labelled("requirement"))
    ),
)
"""The programs and cases that are exported."""


AT_INFINITY = np.array(
    [-np.inf, -7.5, -2.5, -0.7, -0.5, -0.0, 0.3, 0.49999997, 1.5, 3.0, 8388609.0, np.inf],
    np.float32,
)
"""Argument of `select_infinities`."""

FLAGS = np.arange(5000) % 3 == 0
"""Array that `select_infinities` captures; it is so large that it becomes a variable."""


def select_infinities(x: Any) -> dict[str, Any]:
    """Selects some floats of twelve, of which others are infinite."""
    half = x.astype(np.float16)
    greatest, place = x[-1], jnp.int32(x[9])
    return {
        "away_from_zero": lax.round(x),
        "cube_root": jnp.cbrt(x),
        "sign": jnp.sign(x),
        "logarithm": jnp.where(x > 0, jnp.log(x), 0),
        "leaky": jax.nn.leaky_relu(x),
        "elu": jax.nn.elu(x),
        "finite": jnp.nan_to_num(x, posinf=1, neginf=2),
        "masked": jnp.where(x > 0, x, -jnp.inf),
        "float16": jnp.where(half > 0, 0, half),
        "log1p": jnp.log1p(jnp.abs(x)),
        "next": jnp.nextafter(x, 1.0),
        "lgamma": lax.lgamma(x[3:]),
        "captured_flags": jnp.where(FLAGS, 0, x[1]),
        "constant_flags": jnp.where(jnp.arange(12) < 9, 0, x),
        "triangle": jnp.triu(jnp.outer(x, jnp.ones(3))),
        "padded": jnp.pad(x, 2, constant_values=greatest),
        "updated": lax.dynamic_update_slice(x, x[:2], (place,)),
        "out_of_bounds": jnp.zeros(4).at[jnp.array([0, 9])].add(x[jnp.array([3, 11])]),
        "segments": jax.ops.segment_max(x, jnp.arange(12) // 3, 5),
    }


def _answer_infinities() -> Answered:
    results = jax.jit(_flat(select_infinities))(AT_INFINITY)
    answers = [([AT_INFINITY], [*map(np.asarray, results)])]
    return Answered.of(Signature(_flat(select_infinities), args=[AT_INFINITY]), answers, 1e-5)


INFINITIES = Exported("infinities", _answer_infinities)
"""Floats of which some are infinite and not selected."""


def compute_with_constants(x: Any) -> dict[str, Any]:
    """Has constants as first operands: uint32 of 2**31 or more, and some that are computed."""
    high = jnp.uint32(0xF1234567)
    mixed = jnp.array([3, 0xF1234567, 7], jnp.uint32)
    places = lax.iota(jnp.int32, 4096)  # too many to be folded
    bits = (places >> 3) ^ (places & 5)
    return {
        "sum": high + x,
        "difference": high - x,
        "product": high * x,
        "and": high & x,
        "or": high | x,
        "xor": high ^ x,
        "larger": jnp.maximum(high, x),
        "smaller": jnp.minimum(high, x),
        "is_less": high < x,
        "chosen": jnp.where(x > 5, high, x),
        "quotient": high // x,
        "shifted": high >> (x & 7),
        "mixed": mixed + x,
        "masked": bits.astype(jnp.uint32) * x,
        "waves": jnp.sin(bits * 1e-3) - (x >> 8).astype(jnp.float32),
        "key": jax.random.key_data(jax.random.fold_in(jax.random.key(x[0]), high)),
    }


def _answer_constants() -> Answered:
    calls = [np.array([x], np.uint32) for x in (7, 0xF1234568)]
    function = _flat(compute_with_constants)
    answers = [([x], [*map(np.asarray, jax.jit(function)(x))]) for x in calls]
    return Answered.of(Signature(function, args=calls[:1]), answers, 1e-6)


CONSTANTS = Exported("constants", _answer_constants)
"""Constants beside arguments of fixed sizes, where OpenVINO writes results in place."""

MORE = (INFINITIES, CONSTANTS)
"""Programs that are not in the table of docs/onnx-and-openvino.md."""


def main(folder: Path, *names: str) -> None:
    """Writes those that are named, or all."""
    report = Report(folder / "export.jsonl")
    report.head({"jax": jax.__version__, "tensorflow": tf.__version__})
    by = {each.name: each for each in (*EXPORTED, *MORE)}

    def write(name: str) -> list[str]:
        by[name].write(folder / name)
        jax.clear_caches()
        return []

    one_by_one(report, names or by, write)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
