"""Passes: rewrites of whole programs, in the order in which a consumer needs them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf_bridge._operations import COMPOSITES
from jax2tf_bridge.bytecode import Block, DenseElements, Operation, Program, TensorType, Value
from jax2tf_bridge.rewriting._complex_parts import split_complex
from jax2tf_bridge.rewriting._fake_quantization import FAKE_QUANTIZATIONS, NARROW_PRODUCTS
from jax2tf_bridge.rewriting._fusions import FUSIONS, FUSIONS_FOR_CONVERTERS
from jax2tf_bridge.rewriting._inlining import inline_calls
from jax2tf_bridge.rewriting._operands import PATTERNS_OF_OPERANDS
from jax2tf_bridge.rewriting._patterns import Matcher, Pattern, Replacement, rewrite
from jax2tf_bridge.rewriting._rounding import round_results
from jax2tf_bridge.rewriting._simplifications import BFLOAT16_BITS, PATTERNS_OF_ASSERTIONS

DUMP_TO = "JAX2TF_BRIDGE_DUMP_PROGRAMS_TO"
"""Environment variable with a directory for the text of programs before and after each pass."""


@dataclass(frozen=True)
class Pass:
    """Rewrite of a whole program.

    Law: the program computes the same, except that a widened one rounds less, and one that rounds
    its results more.

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
    rounding_seed: int | None = None,
    splits_complex: bool = False,
) -> tuple[Pass, ...]:
    """Returns the passes for TensorFlow's own operations.

    Args:
      platform: the index of the platform to choose, if the program's main function takes one as its
        first argument.
      checks_sizes: whether the program's own assertions on sizes stay.
      for_converters: whether a converter reads TensorFlow's graph.
      finds_rounding: whether rounding to the steps of integers becomes one operation.
      rounding_seed: the seed for rounding results to shorter floats; None to leave them.
      splits_complex: whether complex numbers become pairs of real ones.
    """
    fusions: tuple[Pattern, ...] = FUSIONS_FOR_CONVERTERS if for_converters else FUSIONS
    fusions = (*fusions, *NARROW_PRODUCTS)
    if finds_rounding:
        fusions = (*FAKE_QUANTIZATIONS, *fusions)
    if not checks_sizes:
        fusions = (*PATTERNS_OF_ASSERTIONS, *fusions)
    passes = [Pass("inline", functools.partial(inline_calls, composites=COMPOSITES))]
    if platform is not None:
        choose = functools.partial(_choose_platform, index=platform)
        passes.append(Pass("choose_platform", choose))
    if rounding_seed is not None:  # before bfloat16 is widened, which has larger errors
        passes.append(Pass("round", functools.partial(round_results, seed=rounding_seed)))
    if splits_complex:
        passes.append(Pass("split_complex", split_complex))
    if for_converters:
        passes.append(Pass("widen_bfloat16", _widen_bfloat16))
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


# Modules for several platforms: JAX writes `case(platform_index)` with a branch for each platform,
# even around parts of a softmax.


def _choose_platform(program: Program, index: int) -> Program:
    """Returns the module with choices between platforms replaced by one platform's branches.

    Args:
      program: the module without calls, whose main takes the platform index as its first argument.
      index: the index of the platform.
    """
    argument = program.main.body.arguments[0]

    def choose(operation: Operation, matcher: Matcher) -> Replacement | None:
        (choice,) = operation.operands
        number = index if choice is argument else matcher.number(choice)
        if number is None:
            return None
        # Indices out of range choose the last branch.
        regions = operation.regions
        branch = regions[int(number) if 0 <= number < len(regions) else -1]
        if branch.arguments or len(branch.returned) != len(operation.results):
            return None
        return Replacement(branch.operations[:-1], branch.returned)

    return rewrite(program, [Pattern(frozenset({"case"}), choose)])


# onnxruntime and OpenVINO lack bfloat16. Intermediate values are not rounded to it, so results are
# those of float32; JAX's are less exact.


def _widen_bfloat16(program: Program) -> Program:
    """Returns the module with float32 instead of bfloat16."""
    values: dict[Value, Value] = {}
    functions = {
        name: dataclasses.replace(function, body=_widen_block(function.body, values))
        for name, function in program.functions.items()
    }
    # Most modules have no bfloat16, and are returned unchanged.
    return dataclasses.replace(program, functions=functions) if values else program


def _is_narrow(kind: Any) -> bool:
    return isinstance(kind, TensorType) and kind.element == "bf16"


def _widen_value(value: Value, values: dict[Value, Value]) -> Value:
    if not _is_narrow(value.type):
        return value
    if value not in values:
        values[value] = Value(TensorType(value.tensor.shape, "f32"))
    return values[value]


def _widen_block(block: Block, values: dict[Value, Value]) -> Block:
    arguments = tuple(_widen_value(value, values) for value in block.arguments)
    return Block(arguments, tuple(_widen_operation(each, values) for each in block.operations))


def _widen_operation(operation: Operation, values: dict[Value, Value]) -> Operation:
    name = operation.name
    if name == "bitcast_convert":
        both = (*operation.operands, *operation.results)
        name = BFLOAT16_BITS if any(_is_narrow(value.type) for value in both) else name
    return dataclasses.replace(
        operation,
        name=name,
        operands=tuple(_widen_value(value, values) for value in operation.operands),
        results=tuple(_widen_value(value, values) for value in operation.results),
        attributes={key: _widen_attribute(value) for key, value in operation.attributes.items()},
        regions=tuple(_widen_block(region, values) for region in operation.regions),
    )


def _widen_attribute(attribute: Any) -> Any:
    if isinstance(attribute, DenseElements) and _is_narrow(attribute.type):
        # The data may have a single number for all elements.
        count = attribute.data.nbytes // 2
        bits = np.frombuffer(attribute.data, np.uint16, count).astype(np.uint32) << np.uint32(16)
        return DenseElements(TensorType(attribute.type.shape, "f32"), memoryview(bits.tobytes()))
    if _is_narrow(attribute):
        return TensorType(attribute.shape, "f32")
    if isinstance(attribute, Mapping):
        return {key: _widen_attribute(value) for key, value in attribute.items()}
    return attribute
