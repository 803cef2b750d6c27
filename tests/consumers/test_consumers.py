"""Programs that JAX exports run on every TensorFlow since 2.15, in processes without JAX.

One file each for all TensorFlow releases, exported by the JAX at hand and by the newest one.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.consumers.harness import (
    CONSUMER_RELEASES,
    EXPORTERS,
    NIGHTLY,
    RELEASE_CANDIDATE,
    Harness,
    NotAvailableError,
    ends_of_releases,
    newest_exporter,
    newest_is_current,
    sampled_programs,
)
from tests.programs import PROGRAMS, SEVENTEEN, Program

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

# Where the running Python has the newest JAX, it is the current one.
_EXPORTERS = EXPORTERS[:1] if newest_is_current() else EXPORTERS
_SAMPLE = sampled_programs()


_RELEASES = (*CONSUMER_RELEASES, RELEASE_CANDIDATE)
# In a sample, the releases between the ends only run the seventeen programs.
_ENDS = ends_of_releases()
_PAIRS = [(exporter, release) for exporter in _EXPORTERS for release in _RELEASES]


def _parameters(exporter: str, *rest: Any, kept: bool = True) -> Any:
    """Marks what CI leaves out: all but a sample of what the newest JAX exports."""
    is_sampled = kept and exporter == newest_exporter()
    marks = () if is_sampled else pytest.mark.complete
    return pytest.param(exporter, *rest, marks=marks)


@pytest.mark.parametrize(
    ("exporter", "release", "program"),
    [
        _parameters(*pair, p, kept=p.name in _SAMPLE and pair[1] in _ENDS)
        for pair in _PAIRS
        for p in PROGRAMS
    ],
    ids=str,
)
def test_program(harness: Harness, exporter: str, release: str, program: Program) -> None:
    pair = harness.pair(exporter, release)
    failures = pair.failures(program.name)
    assert not failures, "\n".join([f"{program.name}, {pair}:", *failures])


@pytest.mark.parametrize(("exporter", "release"), [_parameters(*pair) for pair in _PAIRS])
def test_all_seventeen_run(harness: Harness, exporter: str, release: str) -> None:
    pair = harness.pair(exporter, release)
    assert pair.consumer["tensorflow"].replace("-rc", "rc") == release
    failed = [p.name for p in SEVENTEEN if pair.failures(p.name)]
    assert not failed, f"{17 - len(failed)} of 17, {pair}: {', '.join(failed)} failed"


def test_all_seventeen_run_on_the_nightly_build(harness: Harness) -> None:
    """Fails without ending CI, because the build changes daily; the summary of the run says so."""
    try:
        pair = harness.pair(newest_exporter(), NIGHTLY)
        failures = {p.name: pair.failures(p.name) for p in SEVENTEEN if pair.failures(p.name)}
    except NotAvailableError:
        raise
    except Exception as e:  # such as a process that ended, or a package that does not install
        pytest.xfail(f"TensorFlow's nightly build: {type(e).__name__}: {e}")
    if failures:
        pytest.xfail(f"TensorFlow's nightly build, {pair}: {failures}")
