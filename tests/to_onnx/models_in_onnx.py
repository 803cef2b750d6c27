"""Runs the real models in ONNX Runtime, and reports where their results are not JAX's.

    python -m tests.to_onnx.models_in_onnx FOLDER [MODEL ...]

It writes FOLDER/report.jsonl. The process is of its own for Keras, whose backend is chosen once.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax

from tests.consumers.exchange import Report
from tests.consumers.one_by_one import one_by_one
from tests.models.export_for_converters import with_other_names
from tests.models.export_models import named
from tests.to_onnx.differences import find_differences


def main(folder: Path, *names: str) -> None:
    """Runs the models named, or all."""
    models = {model.name: model for model in named(names)}

    def check(name: str) -> list[str]:
        built = with_other_names(models[name].build())
        failures = list(find_differences(models[name], built, folder / f"{name}.onnx"))
        jax.clear_caches()
        return failures

    report = Report(folder / "report.jsonl")
    report.head({"jax": jax.__version__, "onnxruntime": version("onnxruntime")})
    one_by_one(report, models, check)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
