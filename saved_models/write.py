"""Writes a member of the golden corpus: a program's SavedModel and its sidecar."""

from __future__ import annotations

import datetime
import json
import platform
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf

import jax2tf_bridge
from tests.program_cases.reference import Reference, reference
from tests.program_cases.tensorflow_side import flat_function, input_signature
from tests.programs import by_name

FOLDER = Path(__file__).parent


def write(name: str) -> Path:
    """Writes the program `name` as a new member; gives its folder."""
    # Modules otherwise hold the paths of the files that they were traced from.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    program = by_name(name)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    folder = FOLDER / f"{today}-{name}"
    sidecar = folder.with_suffix(".json")
    if folder.exists() or sidecar.exists():
        raise FileExistsError(f"{folder} exists: members are never rewritten")
    with program.precision():
        example = program.build()
        references = [reference(program, example, call) for call in example.calls]
        module = tf.Module()
        module.f = tf.function(
            flat_function(program, example),
            input_signature=input_signature(references),
            autograph=False,
        )
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
        tf.saved_model.save(module, str(folder), options=options)
    facts = {
        "recipe": f"python -m saved_models.write {name}",
        "versions": {
            "jax2tf_bridge": jax2tf_bridge.__version__,
            "jax": jax.__version__,
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
        "tolerance": program.tolerance,
        "calls": [_call(r) for r in references],
    }
    sidecar.write_text(json.dumps(facts) + "\n")
    return folder


def _call(expected: Reference) -> dict[str, Any]:
    return {
        "inputs": [_listed(a) for a in expected.inputs],
        "results": [_listed(a) for a in expected.results],
        "sources": expected.sources,
        "targets": expected.targets,
        "cotangents": [_listed(a) for a in expected.cotangents],
        "gradients": [_listed(a) for a in expected.gradients],
    }


def _listed(array: Any) -> dict[str, Any]:
    array = np.asarray(array)
    return {"dtype": array.dtype.name, "shape": array.shape, "values": array.tolist()}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(write(argument))
