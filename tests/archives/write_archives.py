"""Writes programs of the table as JAX's own archives, with what this JAX answers.

    python -m tests.archives.write_archives FOLDER [PROGRAM ...]

runs in an environment of JAX 0.4.30 or later with nothing of the bridge in it. Each program gets
a folder with `program.exported`, and one `call-N.npz` and `call-N.json` for each call.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from tests.archives.old_jax import supply_missing_names

supply_missing_names()

from tests.archives.layout import ARCHIVE  # noqa: E402
from tests.archives.register_types import register_types  # noqa: E402
from tests.consumers.exchange import Report, write_reference  # noqa: E402
from tests.consumers.one_by_one import one_by_one  # noqa: E402
from tests.program_cases.record import Call, Example, Program  # noqa: E402
from tests.program_cases.reference import (  # noqa: E402
    jax_arguments,
    over_key_words,
    reference,
)
from tests.programs import PROGRAMS, by_name  # noqa: E402

# Constraints that JAX 0.4.30 requires and later releases do not.
MORE_CONSTRAINTS = (
    {"sort_top_k_symbolic": ("b <= 2147483646",)} if jax.__version_info__ < (0, 4, 36) else {}
)


def archive(program: Program, example: Example) -> bytes:
    """Serialises the program with this JAX, with its VJP where it has one.

    Typed PRNG keys cross as their words: archives could not hold them until 0.6.
    """
    call = example.calls[0]
    words = Call(tuple(_as_jax(program, call)), call.kwargs)
    function = jax.jit(over_key_words(program, example.function))
    exported = jax_export.export(function)(*_specs(program, words), **_plain(dict(words.kwargs)))
    return bytes(exported.serialize(vjp_order=1 if program.differentiable else 0))


def _as_jax(program: Program, call: Call) -> Sequence[Any]:
    """Makes the positional arguments of the dtypes that JAX gives them, and of keys words."""
    return [
        original if i in program.key_arguments else argument
        for i, (original, argument) in enumerate(
            zip(call.args, jax_arguments(program, call), strict=True)
        )
    ]


def _specs(program: Program, call: Call) -> Sequence[Any]:
    """Makes shapes and dtypes of the positional arguments, open where the program says so."""
    shapes = program.polymorphic_shapes
    if shapes is None:
        return [_plain(a) for a in call.args]
    one_each = [shapes] * len(call.args) if isinstance(shapes, str) else shapes
    scope = jax_export.SymbolicScope(
        (*program.constraints, *MORE_CONSTRAINTS.get(program.name, ()))
    )
    return [
        _plain(argument)
        if shape is None
        else jax_export.symbolic_args_specs(argument, shape, scope=scope)
        for argument, shape in zip(call.args, one_each, strict=True)
    ]


def _plain(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), tree)


def _write(program: Program, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    with program.precision():
        example = program.build()
        references = [reference(program, example, call) for call in example.calls]
        try:
            data = archive(program, example)
        except Exception as e:
            return [f"{type(e).__name__}: {str(e)[:1500]}"]
    for i, expected in enumerate(references):
        write_reference(folder / f"call-{i}", expected)
    facts = {
        "calls": len(references),
        "differentiable": program.differentiable,
        "tolerance": program.tolerance,
        "x64": program.x64,
    }
    (folder / "program.json").write_text(json.dumps(facts))
    (folder / ARCHIVE).write_bytes(data)
    return []


def versions() -> dict[str, str]:
    return {
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def main(folder: Path, *names: str) -> None:
    """Writes the programs named, or all."""
    # Modules otherwise hold the paths of the files that they were traced from.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    register_types()
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(folder / "written.jsonl")
    report.head(versions())
    wanted = names or tuple(p.name for p in PROGRAMS)
    one_by_one(report, wanted, lambda name: _write(by_name(name), folder / name))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
