"""Archives of older JAX releases run under the newest JAX and in TensorFlow, with gradients.

Every archive is read where JAX is not installed.
"""

from __future__ import annotations

import pytest

from tests.archives.harness import NOT_WRITTEN, PROGRAMS, RELEASES, Archives
from tests.consumers.harness import Harness, NotAvailableError
from tests.programs import SEVENTEEN, by_name
from tests.sampling import sampled

pytestmark = [pytest.mark.slow, pytest.mark.consumers]


def test_the_seventeen_are_among_the_programs() -> None:
    assert {p.name for p in SEVENTEEN} <= set(PROGRAMS)
    assert {name for _, name in NOT_WRITTEN} <= set(PROGRAMS) == {by_name(p).name for p in PROGRAMS}


@pytest.fixture(scope="module")
def wanted(request: pytest.FixtureRequest) -> frozenset[str]:
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    return frozenset(spec.params["release"] for spec in specs if spec and "release" in spec.params)


# The releases first, so that several workers begin with different ones.
@pytest.mark.parametrize("release", sampled(RELEASES, every=len(RELEASES) - 1))
@pytest.mark.parametrize("program", PROGRAMS)
def test_archive(harness: Harness, wanted: frozenset[str], release: str, program: str) -> None:
    try:
        failures = Archives(harness).failures(release, program, wanted)
    except NotAvailableError as e:
        pytest.skip(str(e))
    reason = NOT_WRITTEN.get((release, program))
    if reason is None:
        assert not failures, "\n".join([f"{program}, archived by JAX {release}:", *failures])
    else:
        assert len(failures) == 1
        assert failures[0].startswith("when JAX wrote it")
        assert reason in failures[0]
