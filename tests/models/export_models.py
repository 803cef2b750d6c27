"""Exports the real models: a SavedModel of each, with JAX's answers.

    python -m tests.models.export_models FOLDER [MODEL ...]

The process is of its own for Keras, whose backend is chosen once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import tensorflow as tf

from tests.consumers.exchange import Report
from tests.consumers.one_by_one import one_by_one
from tests.models.expected import export_model
from tests.models.model import Model
from tests.models.table import MODELS, by_name


def _export(model: Model, folder: Path) -> list[str]:
    export_model(model, folder / model.name)
    jax.clear_caches()
    return []


def export(folder: Path, models: Iterable[Model]) -> None:
    """Exports models into folders of their names, and writes export.jsonl."""
    report = Report(folder / "export.jsonl")
    python = "{}.{}.{}".format(*sys.version_info[:3])
    report.head({"jax": jax.__version__, "tensorflow": tf.__version__, "python": python})
    by = {model.name: model for model in models}
    one_by_one(report, by, lambda name: _export(by[name], folder))


def main(folder: Path, *names: str) -> None:
    """Exports the models named, or all."""
    export(folder, map(by_name, names) if names else MODELS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
