"""Attributes of portable functions, and objects that are not portable functions."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import (
    DisabledSafetyCheck,
    Target,
    export,
    read_function,
    retarget,
    serialize,
    serialize_exported,
    to_exported,
    to_tf,
    write_function,
)
from jax2tf_bridge.errors import FunctionError, TargetError
from jax2tf_bridge.portable import are_types_checked, as_portable_function
from tests.house.imports import ROOT
from tests.serialization.records import changed

LAPACK = ROOT / "saved_models" / "archives" / "2026-11-21-jax-0.4.30-eigh.exported"
CALLS: dict[str, Callable[[Any], Any]] = {
    "to_tf": to_tf,
    "retarget": retarget,
    "serialize_exported": serialize_exported,
    "serialize (or write_function)": serialize,
}


@pytest.mark.parametrize("caller", CALLS)
@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (jnp.sin, "of type PjitFunction. Call what export returns with the function's arguments: "),
        (export(jnp.sin), "of type function. Call what export returns with the function's argum"),
        (
            jax.export.export(jax.jit(jnp.sin))(np.float32(1)),
            "Got: 'sin' of type Exported. It is JAX's own: from_exported(exported) converts it to "
            "a portable function",
        ),
        ("sine.jaxfn", "Got: 'sine.jaxfn' of type str. Read it first: read_function('sine.jaxfn')"),
        (Path("sine.jaxfn"), "Path. Read it first: read_function(path)."),
        (bytes(10_000), "... of type bytes. Read it first: deserialize(data)."),
        (None, "Got: None of type NoneType. Get one from export(f, ...)(x), or from read_func"),
    ],
    ids=["function", "export", "Exported", "str", "Path", "bytes", "None"],
)
def test_what_is_no_function(caller: str, value: Any, hint: str) -> None:
    with pytest.raises(FunctionError) as error:
        CALLS[caller](value)
    assert str(error.value).startswith(f"{caller} expected a PortableFunction. Got: ")
    assert hint in str(error.value)
    assert len(str(error.value)) < 500
    assert isinstance(error.value, TypeError)


def test_nothing_is_written_of_what_is_no_function(tmp_path: Path) -> None:
    file: Any = tmp_path / "f.jaxfn"
    portable: Any = export(jnp.sin, platforms=["cpu"])(np.float32(1))
    with pytest.raises(FunctionError, match="write_function"):
        write_function(file, jnp.sin)  # type: ignore[arg-type]
    with pytest.raises(FunctionError, match="write_function"):
        write_function(portable, file)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["2.17", "tensorflow", 2.17])
def test_what_is_no_target(target: Any) -> None:
    portable = export(jnp.sin, platforms=["cpu"])(np.float32(1))
    message = r"target must be a Target, as Target.tensorflow\('2.17'\)"
    with pytest.raises(TargetError, match=message):
        retarget(portable, target)
    with pytest.raises(TargetError, match=message):
        export(jnp.sin, target=target)


def test_a_function_is_one() -> None:
    portable = export(jnp.sin, platforms=["cpu"])(np.float32(1))
    assert as_portable_function(portable, "to_tf") is portable


def test_what_jax_has_of_it_is_named() -> None:
    function: Any = export(jnp.sin, platforms=["cpu"])(np.float32(1))
    with pytest.raises(
        AttributeError,
        match=r"^'PortableFunction' object has no attribute 'call'\. JAX's form of the function "
        r"has it: to_exported\(function\)\.call$",
    ):
        function.call(np.float32(1))
    with pytest.raises(AttributeError, match=r"has no attribute 'unknown'$"):
        _ = function.unknown


def test_a_function_says_which_releases_run_it() -> None:
    portable = export(jnp.sin, target=Target.tensorflow("2.17"))(np.float32(1))
    for same in (portable, pickle.loads(pickle.dumps(portable))):
        assert repr(same).endswith("\n  runs on TensorFlow: 2.17 to 2.22")
        assert same.tensorflow_releases == ("2.17", "2.18", "2.19", "2.20", "2.21", "2.22")
    newer = changed(portable, stablehlo_version=(9, 0, 0))
    assert repr(newer).endswith("\n  runs on TensorFlow: no release known to this version")


def test_a_function_that_calls_lapack_runs_on_no_release() -> None:
    portable = read_function(LAPACK)
    assert portable.tensorflow_releases == ()
    assert repr(portable).endswith(
        "\n  runs on no TensorFlow: TensorFlow has no handler for the custom call lapack_ssyevd; "
        "see retarget"
    )
    # JAX writes such checks into its files; jaxlib has dropped the call, so that nobody has it.
    vouched = (DisabledSafetyCheck.custom_call("lapack_ssyevd"),)
    assert changed(portable, disabled_checks=vouched).tensorflow_releases == ()
    assert repr(retarget(portable)).endswith("\n  runs on TensorFlow: 2.15 to 2.22")


@pytest.mark.costly
def test_a_portable_function_is_let_go_with_what_is_noted_of_it() -> None:
    function = export(jnp.sin, platforms=["cpu"])(np.float32(1))
    assert are_types_checked(function)
    assert np.isclose(to_exported(function).call(np.float32(1)), np.sin(1))
    assert function.tensorflow_releases
    alive: list[weakref.ref[Any]] = [weakref.ref(function), weakref.ref(function.module)]
    del function
    gc.collect()
    assert [kept() for kept in alive] == [None, None]


def test_a_copy_is_checked_again_unless_only_its_gradient_changed() -> None:
    function = export(jnp.sin, platforms=["cpu"])(np.float32(1))
    assert are_types_checked(function.with_vjp(1))
    assert are_types_checked(function.with_vjp(0))
    assert not are_types_checked(replace(function, name="g"))
    assert not are_types_checked(pickle.loads(pickle.dumps(function)))


def test_gradients_that_are_not_made_are_left_behind_by_pickles_alone() -> None:
    function = export(jnp.sin, platforms=["cpu"])(np.float32(1))
    assert copy.deepcopy(function).gradient is function.gradient
    again = pickle.loads(pickle.dumps(function))
    assert not again.has_vjp
    assert "stored without the VJP of this order" in str(again.gradient_problem())
    made = pickle.loads(pickle.dumps(function.with_vjp(1)))
    assert made.vjp().out_avals == function.vjp().out_avals


def test_a_module_prints_without_its_bytes() -> None:
    module = export(jnp.sin, platforms=["cpu"])(np.float32(1)).module
    assert len(repr(module)) < 300
    assert hash(module) == hash(replace(module))
