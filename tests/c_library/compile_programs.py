"""Compiles the programs of the table to one C library, and compares their results with JAX's.

python -m tests.c_library.compile_programs FOLDER [NAME ...]

prints a line for each program: whether it compiles, links and agrees, or the reason why not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax2tf_bridge import Signature, compile_library, export, load_library
from jax2tf_bridge.errors import BridgeError
from tests.program_cases.record import Program
from tests.programs import PROGRAMS, SEVENTEEN, by_name


def compile_programs(folder: Path, programs: Sequence[Program]) -> None:
    """Compiles all programs that tfcompile accepts, and prints how each came out."""
    results: dict[str, str] = {}
    signatures: dict[str, Signature] = {}
    calls: dict[str, tuple[list[Any], list[Any], float]] = {}
    for program in programs:
        with program.precision():
            example = program.build()
            call = example.calls[0]
            try:
                function = export(example.function)(*call.args, **call.kwargs)
                expected = jax.jit(example.function)(*call.args, **call.kwargs)
            except BridgeError as e:
                results[program.name] = f"is not exported: {e}"
                continue
        signatures[program.name] = Signature(function)
        leaves = list(map(np.asarray, jax.tree.leaves((call.args, dict(call.kwargs)))))
        wanted = list(map(np.asarray, jax.tree.leaves(expected)))
        calls[program.name] = leaves, wanted, program.tolerance
    library = None
    while signatures and library is None:
        try:
            compiled = compile_library(folder / "programs_lib", signatures, shared=True)
            assert compiled.shared is not None
            library = load_library(compiled.shared)
        except BridgeError as e:
            names = [name for name in signatures if f"signature {name}" in str(e)]
            if not names:
                raise
            for name in names:
                results[name] = f"is refused: {e}"
                del signatures[name]
    for name in signatures:
        assert library is not None
        results[name] = _compare(library[name], *calls[name])
    for program in programs:
        print(f"{program.name}: {results[program.name]}")
    count = sum(result == "agrees" for result in results.values())
    print(f"{count} of {len(programs)} compile, link and agree")


def _compare(function: Any, leaves: list[Any], expected: list[Any], tolerance: float) -> str:
    names = list(function.inputs)
    try:
        outputs = function(**dict(zip(names, leaves, strict=True)))
    except (BridgeError, ValueError) as e:
        return f"fails: {e}"
    for (name, actual), wanted in zip(outputs.items(), expected, strict=True):
        kind = complex if wanted.dtype.kind == "c" else float
        if not np.allclose(
            actual.astype(kind), wanted.astype(kind), tolerance, tolerance, equal_nan=True
        ):
            return f"differs in {name}"
    return "agrees"


if __name__ == "__main__":
    tables = {"seventeen": SEVENTEEN, "all": PROGRAMS}
    words = sys.argv[2:] or ["seventeen"]
    selected = [p for word in words for p in (tables[word] if word in tables else (by_name(word),))]
    compile_programs(Path(sys.argv[1]), selected)
