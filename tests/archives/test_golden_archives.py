"""Every archive of the golden corpus is read, runs under JAX and runs in TensorFlow.

They answer as the JAX that wrote them did, first gradients included.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from jax2tf_bridge import PortableFunction, Target, retarget, to_exported, to_tf
from jax2tf_bridge.bytecode import read_summary
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax import jax_compat
from jax2tf_bridge.serialization import read_function
from saved_models.sidecar import array_of
from tests.archives.check_in_jax import compared
from tests.archives.check_in_tensorflow import answers
from tests.archives.register_types import register_types
from tests.fresh_process import run_python
from tests.program_cases.answers import Reference
from tests.sampling import sampled

pytestmark = pytest.mark.checkout

FOLDER = Path(__file__).parent.parent.parent / "saved_models" / "archives"
MEMBERS = sorted(FOLDER.glob("*.json"))
LARGEST = 20_000
EVERY_RELEASE = {"0.4.30", "0.4.38", "0.5.3", "0.6.2", "0.7.2", "0.12.0.1"}


@functools.cache
def _types_are_registered() -> None:
    register_types()


def _read(sidecar: Path) -> tuple[dict[str, Any], PortableFunction]:
    _types_are_registered()
    facts = json.loads(sidecar.read_text())
    return facts, read_function(sidecar.with_suffix(".exported"))


def _calls(facts: dict[str, Any]) -> list[Reference]:
    return [_call(listed) for listed in facts["calls"]]


def _call(listed: dict[str, Any]) -> Reference:
    names = ("inputs", "results", "cotangents", "gradients")
    arrays = {name: tuple(array_of(a) for a in listed[name]) for name in names}
    sources, targets = tuple(listed["sources"]), tuple(listed["targets"])
    return Reference(**arrays, sources=sources, targets=targets)


def test_there_are_members_and_each_has_both_parts() -> None:
    assert sorted(FOLDER.glob("*.exported")) == [m.with_suffix(".exported") for m in MEMBERS]
    for members in (MEMBERS, FUNCTIONS.values()):
        assert {json.loads(m.read_text())["versions"]["jax"] for m in members} >= EVERY_RELEASE
    assert max(m.with_suffix(".exported").stat().st_size for m in MEMBERS) <= LARGEST


def test_members_are_read_without_jax() -> None:
    printed = run_python(
        """
        import sys
        from jax2tf_bridge.serialization import read_function
        for path in sys.argv[1:]:
            record = read_function(path)
            vjp = record.vjp()
            print(len(record.in_avals), len(record.out_avals), len(vjp.in_avals))
        """,
        *(str(m.with_suffix(".exported")) for m in MEMBERS),
        without_jax=True,
    )
    counts = [tuple(map(int, line.split())) for line in printed.splitlines()]
    expected = []
    for sidecar in MEMBERS:
        call = json.loads(sidecar.read_text())["calls"][0]
        ins, outs = len(call["inputs"]), len(call["results"])
        expected.append((ins, outs, ins + outs))
    assert counts == expected


# One of a function is enough to compile: they differ in the release that wrote them.
FUNCTIONS = {member.stem.rpartition("-")[2]: member for member in reversed(MEMBERS)}


@pytest.mark.parametrize(
    "sidecar",
    sampled(MEMBERS, every=100, keep=FUNCTIONS.values()),
    ids=lambda path: path.stem,
)
def test_member_runs_under_jax(sidecar: Path) -> None:
    facts, portable = _read(sidecar)
    if portable.module.stablehlo_version > jax_compat.get_stablehlo_version():
        with pytest.raises(ModuleError, match="upgrade JAX"):
            to_exported(portable)
        return
    with jax.enable_x64(facts["x64"]):
        exported = to_exported(portable)
        for call in _calls(facts):
            assert list(compared(exported, call, facts["tolerance"])) == []


@pytest.mark.parametrize(
    "sidecar",
    sampled(MEMBERS, every=100, keep=FUNCTIONS.values()),
    ids=lambda path: path.stem,
)
def test_member_runs_in_tensorflow(sidecar: Path) -> None:
    facts, portable = _read(sidecar)
    if portable.module.stablehlo_version > jax_compat.get_stablehlo_version():
        with pytest.raises(ModuleError, match="upgrade JAX"):
            retarget(portable)
        return
    retargeted = retarget(portable, Target.installed())
    for call in _calls(facts)[:1]:
        assert list(answers(retargeted, call, facts["tolerance"])) == []


def test_calls_of_lapack_are_refused_until_they_are_replaced() -> None:
    refused = 0
    for sidecar in MEMBERS:
        _, portable = _read(sidecar)
        called = [
            name for name in read_summary(portable.module.data).custom_calls if "lapack" in name
        ]
        newest = Target.installed().stablehlo_versions[0]
        if not called or portable.module.stablehlo_version > newest:
            continue
        with pytest.raises(
            ModuleError, match=rf"no handler for the custom calls? '{called[0]}'.*Retarget the"
        ):
            to_tf(portable)
        refused += 1
    assert refused >= 5
