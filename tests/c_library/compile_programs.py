"""Compiles the programs of the table to one C library, and compares their results with JAX's.

    python -m tests.c_library.compile_programs FOLDER [NAME ...]

prints a line for each program: "agrees", or the reason why not. A name may also be "seventeen" or
"all". A program is compiled for the sizes of its first call, and CMake builds the library.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jax2tf_bridge import Signature, compile_library, export, load_library, save
from jax2tf_bridge.c_library import CompiledLibrary
from jax2tf_bridge.errors import BridgeError
from tests.c_library.building import build_shared
from tests.consumers.comparison import differences
from tests.program_cases.answers import Reference
from tests.program_cases.record import Program
from tests.program_cases.reference import jax_arguments, over_key_words, reference
from tests.programs import PROGRAMS, SEVENTEEN, by_name

AGREES = "agrees"
_SIGNATURE = re.compile(r"\bsignature (\w+)\b")


def compile_programs(folder: Path, programs: Sequence[Program]) -> Mapping[str, str]:
    """Compiles all programs that tfcompile accepts.

    Args:
      folder: the folder to fill.
      programs: the programs.

    Returns: "agrees" or the reason why not, for each program.
    """
    results: dict[str, str] = {}
    signatures: dict[str, Signature] = {}
    references: dict[str, Reference] = {}
    for program in programs:
        with program.precision():
            example = program.build()
            call = example.calls[0]
            args = call.args if program.key_arguments else jax_arguments(program, call)
            function = _flatten_results(over_key_words(program, example.function))
            signatures[program.name] = Signature(export(function)(*args, **call.kwargs))
            references[program.name] = reference(program, example, call, gradients=False)
        jax.clear_caches()
    save(folder / "model", signatures, vjp_order=0, warm_up=False)
    names = list(signatures)
    library = None
    while library is None:
        try:
            library = _build(folder, names)
        except BridgeError as e:
            match = _SIGNATURE.search(str(e))
            if match is None:
                raise
            print(f"{match[1]}: {e}", flush=True)
            results[match[1]] = f"is refused: {e}"
            names.remove(match[1])
    for program in programs:
        if program.name in names:
            function = library[program.name]
            results[program.name] = _compare(function, references[program.name], program.tolerance)
    return {program.name: results[program.name] for program in programs}


def _flatten_results(function: Callable[..., Any]) -> Callable[..., Any]:
    def flat(*args: Any, **kwargs: Any) -> Any:
        return tuple(jax.tree_util.tree_leaves(function(*args, **kwargs)))

    return flat


def _build(folder: Path, names: Sequence[str]) -> Any:
    compiled: CompiledLibrary = compile_library(
        folder / "programs_lib", folder / "model", signatures=names
    )
    print(f"{len(names)} programs, {compiled.object_bytes / 1e3:.0f} kB", flush=True)
    return load_library(build_shared(compiled.path, folder / "build", "programs"))


def _compare(function: Any, expected: Reference, tolerance: float) -> str:
    try:
        outputs = function(**dict(zip(function.inputs, expected.inputs, strict=True)))
    except (BridgeError, ValueError) as e:
        return f"fails: {e}"
    lines = differences("result", list(outputs.values()), expected.results, tolerance)
    return "; ".join(lines) or AGREES


if __name__ == "__main__":
    tables = {"seventeen": SEVENTEEN, "all": PROGRAMS}
    words = sys.argv[2:] or ["seventeen"]
    selected = [p for word in words for p in (tables[word] if word in tables else (by_name(word),))]
    outcomes = compile_programs(Path(sys.argv[1]), selected)
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
    count = sum(outcome == AGREES for outcome in outcomes.values())
    print(f"{count} of {len(outcomes)} compile, link and agree")
