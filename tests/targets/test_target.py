"""Tests targets: the table of releases, the choices, the errors."""

import functools
import re
from typing import Any

import pytest

from jax2tf_bridge import Target
from jax2tf_bridge.errors import TargetError

# Only the seam asks an installed release that the table has.
from jax2tf_bridge.targets import _target, as_target, find_releases
from jax2tf_bridge.targets._tf_compat import ask_versions


def test_the_widest_prefers_the_oldest() -> None:
    versions = Target.widest().stablehlo_versions
    assert versions[0] == (0, 14, 24)
    assert list(versions) == sorted(versions)


@pytest.mark.parametrize("release", ["2.17", "2.17.1", "2.17.0rc1", "2.17rc1"])
def test_a_release(release: str) -> None:
    target = Target.tensorflow(release)
    assert target.name == "TensorFlow 2.17"
    assert target.stablehlo_versions == ((1, 1, 1),)
    assert target.calling_convention == 9


@pytest.mark.parametrize(
    ("release", "text"),
    [
        ("2.14", "2.15 is the oldest that can run a module: use Target.tensorflow('2.15') or new"),
        ("1.15.5", "2.15 is the oldest that can run a module: use Target.tensorflow('2.15') or n"),
        (
            "2.23.0",
            "2.22 is the newest that is known here. Use Target.installed() where 2.23 is "
            "installed, elsewhere Target.tensorflow('2.22'), or leave the target out.",
        ),
        (
            "latest",
            "unknown TensorFlow release. The bridge knows 2.15 to 2.22; use "
            "Target.tensorflow('2.22').",
        ),
    ],
)
def test_a_release_that_does_not_exist(release: str, text: str) -> None:
    with pytest.raises(TargetError, match=re.escape(text)):
        Target.tensorflow(release)


def test_a_release_in_the_place_of_a_target() -> None:
    for given, nearest in (("2.17.1", "2.17"), ("2.14", "2.15"), ("tf", "2.17"), (2.17, "2.17")):
        with pytest.raises(TargetError, match=re.escape(f"as Target.tensorflow({nearest!r}) or")):
            as_target(given)


def test_the_table_says_what_the_installed_release_says() -> None:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow says what it reads")
    target = Target.installed()
    assert tf.__version__ in target.name
    known = Target.tensorflow(tf.__version__)
    assert target.stablehlo_versions == known.stablehlo_versions
    assert target.calling_convention == known.calling_convention
    assert ask_versions() == (known.stablehlo_versions[0], known.calling_convention)


@pytest.mark.parametrize("release", ["2.99.0", "2.21.0-rc1", "2.21.0-dev20260301"])
def test_a_release_that_is_not_in_the_table_is_asked(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow says what it reads")
    monkeypatch.setattr(tf, "__version__", release)
    monkeypatch.setattr(_target, "ask_versions", lambda: ((7, 8, 9), 77))
    target = Target.installed()
    assert target.name == f"the installed TensorFlow {release}"
    assert (target.stablehlo_versions, target.calling_convention) == (((7, 8, 9),), 77)


def test_targets_without_xla() -> None:
    target = Target.tensorflow("2.17", xla=False)
    assert target.name == "TensorFlow 2.17 without XLA"
    assert not target.xla
    assert Target.tensorflow("2.17").xla
    assert target.without_xla() is target
    assert Target.widest(xla=False).name == "every TensorFlow from 2.15 on without XLA"
    # All that JAX writes can be said, whatever the release.
    assert target.stablehlo_versions[0] >= (1, 13, 7)
    assert "shape_assertion" in target.handled_calls(["cpu"])
    assert "tpu_custom_call" not in target.handled_calls(["cpu"])
    with pytest.warns(DeprecationWarning, match=r"Call target\.handled_calls\(platforms\)"):
        assert target.custom_calls(["cpu"]) == target.handled_calls(["cpu"])


@pytest.mark.parametrize(
    "target",
    [Target.widest, Target.installed, functools.partial(Target.tensorflow, "2.17")],
)
def test_xla_is_true_or_false(target: Any) -> None:
    with pytest.raises(TargetError) as error:
        target(xla=None)
    assert str(error.value) == (
        "xla must be True or False. Got: None of type NoneType. Pass xla=False for a consumer "
        "without XLA, or leave it out."
    )


def test_which_releases_run_a_module() -> None:
    assert find_releases((0, 14, 24), 8)[0] == "2.15"
    assert find_releases((0, 14, 24), 9)[0] == "2.16"
    assert find_releases((1, 9, 1), 10) == ("2.20", "2.21", "2.22")
    assert find_releases((9, 0, 0), 8) == ()


def test_custom_calls_of_platforms() -> None:
    target = Target.widest()
    assert "LuDecomposition" not in target.handled_calls(["cpu", "cuda"])
    assert "LuDecomposition" in target.handled_calls(["cpu", "tpu"])
    assert {"ApproxTopK", "stablehlo.dynamic_approx_top_k"} <= target.handled_calls(["cpu"])


def test_that_for_converters_has_no_xla() -> None:
    target = Target.converters()
    assert not target.xla
    assert target.for_converters
    assert target.without_xla() is target
    assert not Target.widest(xla=False).for_converters
