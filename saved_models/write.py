"""Writes a member of the golden corpus: a program's SavedModel and its sidecar."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import tensorflow as tf

import jax2tf_bridge
from saved_models.sidecar import check_new, leave_out_paths, today, write_sidecar
from tests.program_cases.reference import reference
from tests.program_cases.tensorflow_side import flat_function, input_signature
from tests.programs import by_name

FOLDER = Path(__file__).parent


def write(name: str) -> Path:
    """Writes the program `name` as a new member, and returns its folder."""
    leave_out_paths()
    program = by_name(name)
    folder = FOLDER / f"{today()}-{name}"
    check_new(folder)
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
    write_sidecar(
        folder,
        references,
        recipe=f"python -m saved_models.write {name}",
        versions={
            "jax2tf_bridge": jax2tf_bridge.__version__,
            "jax": jax.__version__,
            "tensorflow": tf.__version__,
        },
        tolerance=program.tolerance,
    )
    return folder


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(write(argument))
