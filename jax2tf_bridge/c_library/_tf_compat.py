"""The private name of TensorFlow that this package uses; no other module of it uses any.

Run as a program, it compiles the programs of a JSON file. XLA reads its flags once per process, and
a fault in the compiler ends the process, so this one is not the user's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from jax2tf_bridge._utils import SeamName

TFCOMPILE = SeamName(
    "tensorflow.python._pywrap_tfcompile",
    "Compile",
    "2.15 to 2.22",
    "no C library can be compiled: ModuleError",
)
SEAM: Sequence[SeamName] = (TFCOMPILE,)


def compile_programs(jobs_file: str) -> None:
    """Compiles the programs that a JSON file lists, and writes the failures beside it.

    Args:
      jobs_file: the file, with a list of keyword arguments of tfcompile. FILE.failures gets a list
        with None for each program that was compiled, and the compiler's text for each other.
    """
    compile_program = TFCOMPILE.get()
    failures: list[str | None] = []
    for job in json.loads(Path(jobs_file).read_text()):
        try:
            compile_program(**job)
            failures.append(None)
        except (RuntimeError, ValueError) as e:
            failures.append(str(e))
    Path(f"{jobs_file}.failures").write_text(json.dumps(failures))


if __name__ == "__main__":
    compile_programs(sys.argv[1])
