"""What JAX exports runs on every TensorFlow since 2.15, in processes that have no JAX.

One file each for all TensorFlow releases, exported by the JAX at hand and by the newest one.
"""

from __future__ import annotations

import re

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
_WITHOUT_4_BITS = re.compile(r"(S4/U4|s4) is currently (not support|only supported in)")


def _pair(harness: Harness, exporter: str, release: str) -> Pair:
    if exporter == "newest" and newer_python() is None:
        pytest.skip(NO_NEWER_PYTHON)
    try:
        return harness.pair(exporter, release)
    except NotAvailableError as e:
        pytest.skip(str(e))


def _is_older(release: str, oldest: str) -> bool:
    return tuple(map(int, release.split(".")[:2])) < tuple(map(int, oldest.split(".")))


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
@pytest.mark.parametrize("release", TENSORFLOW_RELEASES)
@pytest.mark.parametrize("exporter", _EXPORTERS)
def test_program(harness: Harness, exporter: str, release: str, program: Program) -> None:
    pair = _pair(harness, exporter, release)
    failures = pair.failures(program.name)
    if _is_older(release, program.oldest_tensorflow):
        # XLA had no 4-bit values there: it has to say so, and not to give a wrong answer.
        assert len(failures) == 2
        assert all(_WITHOUT_4_BITS.search(failure) for failure in failures), failures
        return
    assert not failures, "\n".join([f"{program.name}, {pair}:", *failures])


@pytest.mark.parametrize("release", TENSORFLOW_RELEASES)
@pytest.mark.parametrize("exporter", _EXPORTERS)
def test_all_seventeen_run(harness: Harness, exporter: str, release: str) -> None:
    pair = _pair(harness, exporter, release)
    assert pair.consumer["tensorflow"] == release
    failed = [p.name for p in SEVENTEEN if pair.failures(p.name)]
    assert not failed, f"{17 - len(failed)} of 17, {pair}: {', '.join(failed)} failed"
