"""Passes: rewrites of whole programs, in the order in which a consumer needs them."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax2tf_bridge._operations import COMPOSITES
from jax2tf_bridge.bytecode import Program
from jax2tf_bridge.rewriting._fake_quantization import FAKE_QUANTIZATIONS, NARROW_PRODUCTS
from jax2tf_bridge.rewriting._fusions import FUSIONS, FUSIONS_FOR_CONVERTERS
from jax2tf_bridge.rewriting._inlining import inline_calls
from jax2tf_bridge.rewriting._operands import PATTERNS_OF_OPERANDS
from jax2tf_bridge.rewriting._patterns import Pattern, rewrite
from jax2tf_bridge.rewriting._platforms import choose_platform
from jax2tf_bridge.rewriting._simplifications import PATTERNS_OF_ASSERTIONS
from jax2tf_bridge.rewriting._widening import widen_bfloat16

DUMP_TO = "JAX2TF_BRIDGE_DUMP_PROGRAMS_TO"
"""Environment variable with a directory for the text of programs before and after each pass."""


@dataclass(frozen=True)
class Pass:
    """Rewrite of a whole program.

    Law: the program computes the same, except that a widened one rounds less.

    Attributes:
      name: a name for logs and file names.
      run: returns the new program, or the program itself if there is nothing to do.
    """

    name: str
    run: Callable[[Program], Program]


def passes_for_tensorflow(
    *,
    platform: int | None,
    checks_sizes: bool,
    for_converters: bool,
    finds_rounding: bool = False,
) -> tuple[Pass, ...]:
    """Returns the passes for TensorFlow's own operations.

    Args:
      platform: the index of the platform to choose, if the program's main function takes one as its
        first argument.
      checks_sizes: whether the program's own assertions on sizes stay.
      for_converters: whether a converter reads TensorFlow's graph.
      finds_rounding: whether rounding to the steps of integers becomes one operation.
    """
    fusions: tuple[Pattern, ...] = FUSIONS_FOR_CONVERTERS if for_converters else FUSIONS
    fusions = (*fusions, *NARROW_PRODUCTS)
    if finds_rounding:
        fusions = (*FAKE_QUANTIZATIONS, *fusions)
    if not checks_sizes:
        fusions = (*PATTERNS_OF_ASSERTIONS, *fusions)
    passes = [Pass("inline", functools.partial(inline_calls, composites=COMPOSITES))]
    if platform is not None:
        choose = functools.partial(choose_platform, index=platform)
        passes.append(Pass("choose_platform", choose))
    if for_converters:
        passes.append(Pass("widen_bfloat16", widen_bfloat16))
    passes.append(Pass("fuse", functools.partial(rewrite, patterns=fusions)))
    passes.append(Pass("absorb", functools.partial(rewrite, patterns=PATTERNS_OF_OPERANDS)))
    return tuple(passes)


def run_passes(program: Program, passes: Sequence[Pass], name: str) -> Program:
    """Runs passes one after another.

    If the environment variable JAX2TF_BRIDGE_DUMP_PROGRAMS_TO has a directory, the text of the
    program is written there, and again after each pass that changes it.

    Args:
      program: the program.
      passes: the passes.
      name: the name of the function, for file names.
    """
    dump = _make_dump(name)
    dump("read", program)
    for each in passes:
        before, program = program, each.run(program)
        if program is not before:
            dump(each.name, program)
    return program


def _make_dump(name: str) -> Callable[[str, Program], None]:
    parent = os.environ.get(DUMP_TO)
    if not parent:
        return lambda name, program: None
    folder = _make_folder(Path(parent), re.sub(r"[^\w.-]+", "_", name))

    numbers = itertools.count()

    def write(name: str, program: Program) -> None:
        (folder / f"{next(numbers)}-{name}.mlir").write_text(str(program))

    return write


def _make_folder(parent: Path, name: str) -> Path:
    """Makes a new folder, with a number behind its name if there is one of this name."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        folder = parent / (f"{name}.{number}" if number else name)
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder
