"""Exports the real models: a SavedModel of each, with JAX's answers.

    python -m tests.models.export_models FOLDER [MODEL ...]

The process is of its own for Keras, whose backend is chosen once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import tensorflow as tf

from tests.consumers.exchange import Report
from tests.consumers.one_by_one import one_by_one
from tests.models.expected import export_model
from tests.models.table import MODELS, by_name


def _export(name: str, folder: Path) -> list[str]:
    export_model(by_name(name), folder / name)
    jax.clear_caches()
    return []


def main(folder: Path, *names: str) -> None:
    """Exports the models named, or all."""
    report = Report(folder / "export.jsonl")
    python = "{}.{}.{}".format(*sys.version_info[:3])
    report.head({"jax": jax.__version__, "tensorflow": tf.__version__, "python": python})
    wanted = names or tuple(m.name for m in MODELS)
    one_by_one(report, wanted, lambda name: _export(name, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
