"""Versions and custom calls decide together which TensorFlow releases run a portable function."""

import pytest

from jax2tf_bridge import DisabledSafetyCheck
from jax2tf_bridge.portable import find_releases_for, find_unhandled_calls
from tests.serialization.records import changed, simple

ALL = ("2.15", "2.16", "2.17", "2.18", "2.19", "2.20", "2.21", "2.22")


@pytest.mark.parametrize(
    ("calls", "first"),
    [
        ((), "2.15"),
        (("shape_assertion", "Eigh"), "2.15"),
        (("mhlo.topk",), "2.17"),
        (("mhlo.erf", "mhlo.acos"), "2.21"),
    ],
)
def test_custom_calls_that_some_releases_handle(calls: tuple[str, ...], first: str) -> None:
    portable = changed(simple(), stablehlo_version=(0, 14, 24), calling_convention_version=8)
    assert find_releases_for(portable.module, calls) == ALL[ALL.index(first) :]
    assert find_unhandled_calls(portable.module, calls) == ()


def test_custom_calls_that_no_release_handles() -> None:
    portable = changed(simple(), stablehlo_version=(0, 14, 24), calling_convention_version=8)
    calls = ("Eigh", "lapack_sgeev_ffi", "mine")
    assert find_releases_for(portable.module, calls) == ()
    assert find_unhandled_calls(portable.module, calls) == ("lapack_sgeev_ffi", "mine")
    checks = tuple(map(DisabledSafetyCheck.custom_call, calls[1:]))
    vouched = changed(portable, disabled_checks=checks)
    assert find_releases_for(vouched.module, calls) == ALL
    assert find_unhandled_calls(vouched.module, calls) == ()


def test_custom_calls_of_the_tpu_need_the_tpu() -> None:
    portable = changed(simple(), stablehlo_version=(1, 9, 1), platforms=("cpu",))
    assert find_releases_for(portable.module, ["LuDecomposition"]) == ()
    on_tpu = changed(portable, platforms=("cpu", "tpu"))
    assert find_releases_for(on_tpu.module, ["LuDecomposition"]) == ALL[ALL.index("2.19") :]
