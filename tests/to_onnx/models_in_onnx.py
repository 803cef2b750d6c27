"""Runs the real models in ONNX Runtime, and prints where their results are not JAX's.

    python -m tests.to_onnx.models_in_onnx FOLDER [MODEL ...]

The process is of its own for Keras, whose backend is chosen once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax

from tests.models.export_for_converters import with_other_names
from tests.models.export_models import named
from tests.to_onnx.differences import find_differences


def main(folder: Path, *names: str) -> None:
    """Runs the models named, or all."""
    for model in named(names):
        built = with_other_names(model.build())
        for line in find_differences(model, built, folder / f"{model.name}.onnx"):
            print(f"{model.name}: {line}")
        jax.clear_caches()
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
