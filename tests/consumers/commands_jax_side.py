"""Programs that the test of the two commands exports, and JAX's answers for them.

    python -m tests.consumers.commands_jax_side FOLDER

needs JAX and no TensorFlow. Functions and arguments are attributes of this module, for the
command: `mlp_symbolic` and `mlp_symbolic_args`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax

from tests.consumers.exchange import write_reference
from tests.plugins.blocked_imports import require_absent
from tests.program_cases.reference import reference
from tests.programs import by_name

NAMES = (
    "mlp_symbolic",
    "attention",
    "nested_dicts",
    "mixed_arguments",
    "related_dimensions",
    "bf16",
)


def __getattr__(name: str) -> Any:
    program = name.removesuffix("_args")
    if program not in NAMES:
        raise AttributeError(name)
    example = by_name(program).build()
    return example.function if program == name else example.calls[0].args


def _words(name: str) -> list[str]:
    """Returns the arguments of `jax2tf-bridge export` for a program."""
    program = by_name(name)
    shapes = program.polymorphic_shapes
    given = [shapes] if isinstance(shapes, str) else map(str, shapes)
    words = [f"{__spec__.name}:{name}", "--args", f"@{__spec__.name}:{name}_args"]
    words += ["--shapes", *given]
    return words + (["--constraints", *program.constraints] if program.constraints else [])


def main(folder: Path) -> None:
    """Writes, for each program, how it is exported and what JAX answers."""
    require_absent("tensorflow")
    for name in NAMES:
        program = by_name(name)
        example = program.build()
        for i, call in enumerate(example.calls):
            write_reference(folder / f"{name}-{i}", reference(program, example, call))
        facts = {
            "words": _words(name),
            "calls": len(example.calls),
            "tolerance": program.tolerance,
            "jax": jax.__version__,
        }
        (folder / f"{name}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
