"""Exports of the real models, which the consumers of SavedModels share."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.consumers.exchange import Outcome, Report
from tests.consumers.harness import Harness
from tests.models.model import Model
from tests.models.table import MODELS

SAMPLE = frozenset({"lstm", "actor_critic", "recommender", "keras_text"})
"""One of each library, of those that compile soon."""

_HALF = (len(MODELS) + 1) // 2
PARTS = (MODELS[:_HALF], MODELS[_HALF:])
"""Two processes share the exports, since compiling is what takes time."""


def part_of(model: Model) -> int:
    """Tells which part a model is of."""
    return next(i for i, models in enumerate(PARTS) if model in models)


def exported_part(harness: Harness, part: int) -> tuple[Path, Mapping[str, Outcome]]:
    """Exports the models of a part, unless that was done already.

    Returns: the folder with a folder for each, and how each came out.
    """
    names = [m.name for m in PARTS[part] if harness.whole or m.name in SAMPLE]
    title = f"exporting real models, part {part + 1} of {len(PARTS)}"
    return _exported(harness, title, f"models-{part}", "tests.models.export_models", names)


def exported_with_seeds(
    harness: Harness, names: Sequence[str]
) -> tuple[Path, Mapping[str, Outcome]]:
    """Exports models with seeds in place of keys, as `exported_part` does."""
    title = "exporting real models with seeds"
    return _exported(harness, title, "models-seeded", "tests.models.export_with_seeds", names)


def _exported(
    harness: Harness, title: str, name: str, module: str, names: Sequence[str]
) -> tuple[Path, Mapping[str, Outcome]]:
    folder = harness.folder / name
    folder.mkdir(exist_ok=True)
    report = Report(folder / "export.jsonl")
    harness.complete(title, [sys.executable, "-m", module, folder, *names], report)
    return folder, report.outcomes()
