"""Writes the real models as graph models of TensorFlow.js, with JAX's answers.

    python -m tests.models.export_tfjs FOLDER [MODEL ...]

The process is of its own for Keras, whose backend is chosen once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

from jax2tf_bridge import Signature, save_tfjs
from tests.consumers.exchange import write_arrays, write_call_facts
from tests.models.export_litert import answers
from tests.models.export_models import export, named
from tests.models.model import Model


def _write(model: Model, folder: Path) -> None:
    folder.mkdir()
    built = model.build()
    signature = Signature(
        built.function, args=built.example, polymorphic_shapes=list(model.polymorphic_shapes)
    )
    saved = save_tfjs(folder / "model", signature, params=built.params)
    (served,) = saved.signatures.values()
    calls = [built.example, *built.calls]
    for i, args in enumerate(calls):
        write_arrays(folder / f"call-{i}.npz", answers(built, args))
    write_call_facts(folder, [*served.inputs], [*served.outputs], len(calls), model.tolerance)


def main(folder: Path, *names: str) -> None:
    """Writes the models named, or all."""
    export(folder, named(names), _write)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
