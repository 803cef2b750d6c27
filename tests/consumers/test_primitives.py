"""Every case of tests/primitives as TensorFlow's own operations, on every TensorFlow since 2.15.

Each subject is exported once for all of them.
"""

from __future__ import annotations

import sys

import pytest

from tests.consumers.exchange import Report
from tests.consumers.harness import TENSORFLOW_RELEASES, Harness
from tests.primitives.differing import differing_in
from tests.primitives.groups import GROUPS
from tests.primitives.table import SUBJECTS

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

# Each subject of the sample has one release, in turn.
_PAIRS = [
    pytest.param(
        subject,
        release,
        marks=() if i % len(TENSORFLOW_RELEASES) == j else pytest.mark.complete,
    )
    for i, subject in enumerate(SUBJECTS)
    for j, release in enumerate(TENSORFLOW_RELEASES)
]


def _groups(subject: str, whole: bool) -> list[str]:
    """Names the groups of a subject; of a sample, the first."""
    names = [name for name in GROUPS if name.startswith(f"{subject}-")]
    return names if whole else names[:1]


@pytest.mark.parametrize(("subject", "release"), _PAIRS)
def test_values_and_gradients_are_those_of_jax(
    harness: Harness, subject: str, release: str
) -> None:
    python = harness.consumer_python(release)
    folder = harness.folder / f"operations-{subject}"
    folder.mkdir(exist_ok=True)
    export, report = Report(folder / "export.jsonl"), Report(folder / f"{release}.jsonl")
    groups = _groups(subject, harness.whole)
    module = "tests.primitives.export_operations"
    title = f"exporting {subject.replace('_', ' ')} for TensorFlow without XLA"
    harness.complete(title, [sys.executable, "-m", module, folder, *groups], export)
    assert [outcome for outcome in export.outcomes().values() if outcome.failures] == []
    module = "tests.primitives.consume_operations"
    title = f"TensorFlow {release} on {subject.replace('_', ' ')} as its own operations"
    harness.complete(title, [python, "-m", module, folder, report.path], report)
    outcomes = report.outcomes()
    assert set(outcomes) == {c.name for name in groups for c in GROUPS[name] if c.exists}
    listed = differing_in(release.rpartition(".")[0]) & set(outcomes)
    found = {name for name, outcome in outcomes.items() if outcome.failures}
    texts = [str(outcomes[name]) for name in sorted(found - listed)]
    assert not texts, "\n".join(texts)
    assert found == listed, f"listed, but they agree: {', '.join(sorted(listed - found))}"
