"""What JAX exports runs on every TensorFlow since 2.15, in processes that have no JAX.

One file each for all TensorFlow releases, exported by the JAX at hand and by the newest one.
"""

from __future__ import annotations

import pytest

from tests.consumers.harness import (
    EXPORTERS,
    NO_NEWER_PYTHON,
    TENSORFLOW_RELEASES,
    Harness,
    NotAvailableError,
    Pair,
    newer_python,
    newest_is_current,
)
from tests.programs import PROGRAMS, SEVENTEEN, Program

pytestmark = [pytest.mark.slow, pytest.mark.consumers]

# Where the running Python has the newest JAX, it is the current one.
_EXPORTERS = EXPORTERS[:1] if newest_is_current() else EXPORTERS


def _pair(harness: Harness, exporter: str, release: str) -> Pair:
    if exporter == "newest" and newer_python() is None:
        pytest.skip(NO_NEWER_PYTHON)
    try:
        return harness.pair(exporter, release)
    except NotAvailableError as e:
        pytest.skip(str(e))


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
@pytest.mark.parametrize("release", TENSORFLOW_RELEASES)
@pytest.mark.parametrize("exporter", _EXPORTERS)
def test_program(harness: Harness, exporter: str, release: str, program: Program) -> None:
    pair = _pair(harness, exporter, release)
    failures = pair.failures(program.name)
    assert not failures, "\n".join([f"{program.name}, {pair}:", *failures])


@pytest.mark.parametrize("release", TENSORFLOW_RELEASES)
@pytest.mark.parametrize("exporter", _EXPORTERS)
def test_all_seventeen_run(harness: Harness, exporter: str, release: str) -> None:
    pair = _pair(harness, exporter, release)
    assert pair.consumer["tensorflow"] == release
    failed = [p.name for p in SEVENTEEN if pair.failures(p.name)]
    assert not failed, f"{17 - len(failed)} of 17, {pair}: {', '.join(failed)} failed"
