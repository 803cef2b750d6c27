"""Writes the real models as LiteRT models, with JAX's answers.

    python -m tests.models.export_litert FOLDER [MODEL ...]

Each at one size ("fixed.tflite") and with open sizes ("open.tflite"). The process is of its own
for Keras, whose backend is chosen once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax

from jax2tf_bridge import Signature, save_litert
from tests.consumers.exchange import write_arrays
from tests.models.export_models import export, named
from tests.models.model import Arguments, Built, Model
from tests.program_cases.reference import crossing


def _write(model: Model, folder: Path) -> None:
    folder.mkdir()
    built = model.build()
    facts: dict[str, Any] = {"tolerance": model.tolerance, "calls": {}}
    cases: dict[str, tuple[Any, Sequence[Arguments]]] = {
        "fixed": (None, [built.example]),
        "open": (list(model.polymorphic_shapes), [built.example, *built.calls]),
    }
    for case, (shapes, calls) in cases.items():
        signature = Signature(built.function, args=built.example, polymorphic_shapes=shapes)
        saved = save_litert(folder / f"{case}.tflite", signature, params=built.params)
        (served,) = saved.signatures.values()
        facts |= {"inputs": list(served.inputs), "outputs": list(served.outputs)}
        facts["calls"][case] = len(calls)
        for i, args in enumerate(calls):
            write_arrays(folder / f"{case}-{i}.npz", answers(built, args))
    (folder / "model.json").write_text(json.dumps(facts))


def answers(built: Built, args: Arguments) -> dict[str, list[Any]]:
    """Returns the flat inputs of a call and JAX's results."""
    results = jax.jit(built.function)(built.params, *args)
    leaves, found = map(jax.tree_util.tree_leaves, (args, results))
    return {"inputs": list(map(crossing, leaves)), "results": list(map(crossing, found))}


def main(folder: Path, *names: str) -> None:
    """Writes the models named, or all."""
    export(folder, named(names), _write)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
