"""Every case of tests/primitives as TensorFlow's own operations, on every TensorFlow since 2.15.

The subjects are in as many parts as there are releases. One process exports a part for all of
them, and one process of each release runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from tests.consumers.exchange import Outcome, Report
from tests.consumers.harness import CONSUMER_RELEASES, Harness
from tests.primitives.differing import differing_in
from tests.primitives.groups import GROUPS
from tests.primitives.table import SUBJECTS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

_PARTS = [list(SUBJECTS)[i :: len(CONSUMER_RELEASES)] for i in range(len(CONSUMER_RELEASES))]
# Each part of the sample has one release, its own.
_CASES = [
    pytest.param(
        subject,
        release,
        part,
        marks=() if CONSUMER_RELEASES[part] == release else pytest.mark.complete,
    )
    for part, subjects in enumerate(_PARTS)
    for release in CONSUMER_RELEASES
    for subject in subjects
]


def _groups(subject: str, whole: bool) -> list[str]:
    """Names the groups of a subject; of a sample, the first."""
    names = [name for name in GROUPS if name.startswith(f"{subject}-")]
    return names if whole else names[:1]


def _outcomes(harness: Harness, part: int, release: str) -> Mapping[str, Outcome]:
    """Exports the cases of a part and runs them in a release, unless that was done already."""
    python = harness.consumer_python(release)
    folder = harness.folder / f"operations-{part}"
    folder.mkdir(exist_ok=True)
    export, report = Report(folder / "export.jsonl"), Report(folder / f"{release}.jsonl")
    groups = [name for subject in _PARTS[part] for name in _groups(subject, harness.whole)]
    module = "tests.primitives.export_operations"
    title = f"exporting part {part + 1} of the primitives for TensorFlow without XLA"
    command = [sys.executable, "-m", module, folder, *groups]
    # XLA's quickest settings differentiate Rotation.as_euler wrongly.
    harness.complete(title, command, export)
    assert [outcome for outcome in export.outcomes().values() if outcome.failures] == []
    module = "tests.primitives.consume_operations"
    title = f"TensorFlow {release} on part {part + 1} of the primitives as its own operations"
    harness.complete(title, [python, "-m", module, folder, report.path], report)
    outcomes = report.outcomes()
    assert set(outcomes) == {c.name for name in groups for c in GROUPS[name] if c.exists}
    return outcomes


@pytest.mark.parametrize(("subject", "release", "part"), _CASES)
def test_values_and_gradients_are_those_of_jax(
    harness: Harness, subject: str, release: str, part: int
) -> None:
    outcomes = _outcomes(harness, part, release)
    names = {case.name for case in SUBJECTS[subject]} & set(outcomes)
    assert names
    listed = differing_in(release.rpartition(".")[0]) & names
    failed = {name for name in names if outcomes[name].failures}
    texts = [str(outcomes[name]) for name in sorted(failed - listed)]
    assert not texts, "\n".join(texts)
    assert failed == listed, f"listed, but they agree: {', '.join(sorted(listed - failed))}"
