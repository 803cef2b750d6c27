"""Writes a member of the golden corpus: a program that the installed JAX archives, and its sidecar.

It runs in an environment of JAX 0.4.30 or later, and does not need the bridge.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import jax
import numpy as np

# First, because it gives older releases the names that the table of programs needs.
from tests.archives.write_archives import archive  # isort: skip
from saved_models.sidecar import check_new, leave_out_paths, today, write_sidecar
from tests.archives.register_types import register_types
from tests.program_cases.reference import reference
from tests.programs import by_name

FOLDER = Path(__file__).parent
MAX_BYTES = 20_000


def write(name: str) -> Path:
    """Writes the program `name` as a new member, and returns the archive's path."""
    leave_out_paths()
    program = by_name(name)
    path = FOLDER / f"{today()}-jax-{jax.__version__}-{name}.exported"
    check_new(path)
    with program.precision():
        example = program.build()
        references = [reference(program, example, call) for call in example.calls]
        data = archive(program, example)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{name} has {len(data)} bytes; members have at most {MAX_BYTES}")
    path.write_bytes(data)
    write_sidecar(
        path,
        references,
        recipe=f"python -m saved_models.archives.write {name}",
        versions={
            "jax": jax.__version__,
            "jaxlib": importlib.metadata.version("jaxlib"),
            "numpy": np.__version__,
        },
        program=name,
        tolerance=program.tolerance,
        x64=program.x64,
        differentiable=program.differentiable,
    )
    return path


if __name__ == "__main__":
    register_types()
    for argument in sys.argv[1:]:
        print(write(argument))
