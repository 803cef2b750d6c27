"""Exports the real models: a SavedModel of each, with JAX's answers.

    python -m tests.models.export_models FOLDER [MODEL ...]

The process is of its own for Keras, whose backend is chosen once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import tensorflow as tf

from tests.consumers.exchange import Report
from tests.consumers.one_by_one import one_by_one
from tests.models.expected import export_model
from tests.models.model import Model
from tests.models.table import MODELS, by_name


def export(
    folder: Path,
    models: Iterable[Model],
    write: Callable[[Model, Path], None] = export_model,
) -> None:
    """Exports models into folders of their names, and writes export.jsonl.

    Args:
      folder: of the folders.
      models: to export.
      write: exports a model into its folder, which it makes.
    """
    report = Report(folder / "export.jsonl")
    python = "{}.{}.{}".format(*sys.version_info[:3])
    report.head({"jax": jax.__version__, "tensorflow": tf.__version__, "python": python})
    by = {model.name: model for model in models}

    def written(name: str) -> list[str]:
        write(by[name], folder / name)
        jax.clear_caches()
        return []

    one_by_one(report, by, written)


def named(names: Sequence[str]) -> Iterable[Model]:
    """Returns the models of these names, or all."""
    return map(by_name, names) if names else MODELS


def main(folder: Path, *names: str) -> None:
    """Exports the models named, or all."""
    export(folder, named(names))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
