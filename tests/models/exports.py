"""Exports of the real models, which the consumers of SavedModels share."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.consumers.exchange import Outcome, Report
from tests.consumers.harness import Harness
from tests.models.model import Model
from tests.models.table import MODELS

SAMPLE = frozenset({"lstm", "actor_critic", "recommender", "keras_text"})
"""One of each library, of those that compile soon."""

_HALF = (len(MODELS) + 1) // 2
PARTS = (MODELS[:_HALF], MODELS[_HALF:])
"""Two processes share the exports of all models, since compiling is what takes time."""


def part_of(harness: Harness, model: Model) -> int:
    """Returns the index of a model's part. A sample is small, so all of it is the first part."""
    if not harness.whole:
        return 0
    return next(i for i, models in enumerate(PARTS) if model in models)


def names_of_part(harness: Harness, part: int) -> Sequence[str]:
    """Returns the names of the models that a part has in this run."""
    return [model.name for model in PARTS[part]] if harness.whole else sampled(harness)


WRONG_IF_QUICK = frozenset({"quantised_dense"})
"""Models with infinite gradients under XLA's quickest settings, in JAX as in TensorFlow, on CPU.

XLA then computes a number and its copy with other roundings, so that no number is the maximum.
"""


def exported_part(harness: Harness, part: int) -> tuple[Path, Mapping[str, Outcome]]:
    """Exports the models of a part, unless that was done already.

    Returns: the folder with a folder for each, and how each came out.
    """
    names = names_of_part(harness, part)
    title = f"exporting real models, part {part + 1}"
    return exported(harness, title, f"models-{part}", "tests.models.export_models", names)


def exported_with_seeds(
    harness: Harness, names: Sequence[str]
) -> tuple[Path, Mapping[str, Outcome]]:
    """Exports models with seeds in place of keys, as `exported_part` does."""
    title = "exporting real models with seeds"
    return exported(harness, title, "models-seeded", "tests.models.export_with_seeds", names)


def sampled(harness: Harness, sample: Collection[str] = SAMPLE) -> list[str]:
    """Names the models that a run is for: all of them, or a sample."""
    return [m.name for m in MODELS if harness.whole or m.name in sample]


def exported(
    harness: Harness, title: str, name: str, module: str, names: Sequence[str]
) -> tuple[Path, Mapping[str, Outcome]]:
    """Exports models by a module of that name into a folder, unless that was done already.

    Returns: the folder with a folder for each, and how each came out.
    """
    folder = harness.folder / name
    folder.mkdir(exist_ok=True)
    report = Report(folder / "export.jsonl")
    command = [sys.executable, "-m", module, folder, *names]
    harness.complete(title, command, report, quickly=WRONG_IF_QUICK.isdisjoint(names))
    return folder, report.outcomes()


class Named(Protocol):
    """A model, or another function that was exported."""

    @property
    def name(self) -> str: ...


def consumed(
    harness: Harness,
    title: str,
    name: str,
    command: Sequence[object],
    exports: tuple[Path, Mapping[str, Outcome]],
    model: Named,
    *,
    quickly: bool = False,
) -> Outcome:
    """Runs a consumer on what was exported, unless that was done already.

    Args:
      harness: the runs.
      title: of this one.
      name: of its report.
      command: takes the folder, the report and the names of the models.
      exports: as `exported` returns them.
      model: whose outcome is returned: its export's, where that failed.
      quickly: whether XLA compiles with its quickest settings.
    """
    folder, outcomes = exports
    if outcomes[model.name].failures:
        return outcomes[model.name]
    good = [name for name, outcome in outcomes.items() if not outcome.failures]
    report = Report(folder / f"{name}.jsonl")
    harness.complete(title, [*command, folder, report.path, *good], report, quickly=quickly)
    return report.outcomes()[model.name]
