"""to_tf() compares the functions of files with their modules, and refuses what TF cannot run."""

import pickle
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

from jax2tf_bridge import DisabledSafetyCheck, PortableFunction, export
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax.stablehlo import StableHloModule
from jax2tf_bridge.portable import Aval, StoredGradient, are_types_checked

# Private: another release of TensorFlow is installed.
from jax2tf_bridge.to_tensorflow import _op, to_tf
from tests.serialization.records import changed
from tests.to_tensorflow.dense_function import PARAMS, X, dense


def stored(portable: PortableFunction, **changes: Any) -> PortableFunction:
    """The portable function as it comes out of a file that someone has changed."""
    copy: PortableFunction = pickle.loads(pickle.dumps(changed(portable, **changes)))
    return copy


TAMPERED: dict[str, Any] = {
    "dtype": (
        (Aval((), "int32"), Aval((2, 4), "float64")),
        "result 1: the portable function says float64",
    ),
    "narrower": (
        (Aval((), "int8"), Aval((2, 4), "float32")),
        "result 0: the portable function says int8",
    ),
    "shape": ((Aval((), "int32"), Aval((2, 5), "float32")), r"result 1: .*float32\[2,5\]"),
    "rank": ((Aval((), "int32"), Aval((8,), "float32")), r"result 1: .*float32\[8\]"),
    "fewer": ((Aval((), "int32"),), "the portable function has 1 results, the module 2"),
    "more": ((Aval((), "int32"),) * 3, "the portable function has 3 results, the module 2"),
}


@pytest.mark.parametrize(("avals", "message"), TAMPERED.values(), ids=TAMPERED.keys())
def test_results_that_are_not_the_modules(avals: Any, message: str) -> None:
    portable = export(dense)(PARAMS, X, scale=np.float32(1))
    with pytest.raises(ModuleError, match=f"(?s)module of dense does not match.*{message}"):
        to_tf(stored(portable, out_avals=avals))


def test_arguments_that_are_not_the_modules() -> None:
    portable = export(dense)(PARAMS, X, scale=np.float32(1))
    avals = (*portable.in_avals[:3], Aval((), "float64"))
    with pytest.raises(ModuleError, match="argument 3: the portable function says float64"):
        to_tf(stored(portable, in_avals=avals))


def test_module_that_is_none(portable: PortableFunction) -> None:
    for module in (b"", b"nonsense", portable.module.data[: len(portable.module.data) // 2]):
        with pytest.raises(
            ModuleError, match=r"module of dense cannot be read: The StableHLO module"
        ):
            to_tf(stored(portable, module=module))


def test_platform_index_is_there_for_several_platforms_alone() -> None:
    one = export(lambda x: x + 1, platforms=["cpu"])(X)
    index = export(lambda n, x: x + n, platforms=["cpu"])(np.int32(1), X)
    with pytest.raises(ModuleError, match="the portable function has 1 arguments, the module 2"):
        to_tf(stored(one, module=index.module.data))
    with pytest.raises(
        ModuleError,
        match=r"several platforms.* index, a scalar integer. Got: tensor<2x3xf32>",
    ):
        to_tf(stored(one, platforms=("cpu", "tpu")))
    several = export(lambda x: x + 1, platforms=["cpu", "tpu"])(X)
    np.testing.assert_allclose(to_tf(stored(several))(X), X + 1)
    with pytest.raises(ModuleError, match="the portable function has 1 arguments, the module 2"):
        to_tf(stored(several, platforms=("cpu",)))


def kernel(name: str) -> Any:
    return lambda x: jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_custom_calls_that_tensorflow_has_no_handler_for() -> None:
    allowed = DisabledSafetyCheck.custom_call("my_kernel")
    portable = export(kernel("my_kernel"), platforms=["cpu"], disabled_checks=[allowed])(X)
    assert callable(to_tf(stored(portable)))
    unchecked = stored(portable, disabled_checks=())
    message = (
        r"<lambda> cannot run in TensorFlow on cpu: TensorFlow has no handler for the custom call "
        r"'my_kernel'\. Retarget the portable function .*retarget.*"
        r"disabled_checks=\[DisabledSafetyCheck\.custom_call\('my_kernel'\)\]\."
    )
    with pytest.raises(ModuleError, match=message + "$"):
        to_tf(unchecked)
    primal = export(jnp.sin)(X)
    with pytest.raises(
        ModuleError, match=message + r" .* gradient of sin: portable\.with_vjp\(0\)"
    ):
        to_tf(replace(primal, gradient=StoredGradient(unchecked)))


def test_custom_calls_of_another_platforms_branch() -> None:
    def f(x: Any) -> Any:
        return jax.lax.platform_dependent(x, tpu=kernel("tpu_custom_call"), default=jnp.sin)

    portable = stored(export(f, platforms=["cpu", "tpu"])(X))
    np.testing.assert_allclose(to_tf(portable)(X), np.sin(X), rtol=1e-6)
    with pytest.raises(ModuleError, match=r"on cpu, cuda: .* the custom call 'tpu_custom_call'"):
        to_tf(changed(portable, platforms=("cpu", "cuda")))


@pytest.mark.parametrize(
    ("release", "version", "expanded"),
    [
        ("2.15.1", (0, 14, 24), set()),
        ("2.17.1", (1, 1, 1), {"topk", "erf"}),
        ("2.20.0", (1, 12, 1), {"topk", "erf"}),
        ("2.21.0", (1, 13, 7), {"topk", "erf", "acos", "sinh"}),
    ],
)
def test_operations_of_archives_by_what_the_release_expands(
    monkeypatch: pytest.MonkeyPatch, release: str, version: Any, expanded: set[str]
) -> None:
    monkeypatch.setattr(_op, "installed_versions", lambda: (release, version, 8))
    for name in ("topk", "erf", "acos", "sinh", "no_such"):
        call = f"mhlo.{name}"
        allowed = jax_export.DisabledSafetyCheck.custom_call(call)
        exported = jax_export.export(
            jax.jit(kernel(call)), platforms=["cpu"], disabled_checks=[allowed]
        )(X)
        portable = changed(
            export(jnp.sin, platforms=["cpu"])(X),
            module=StableHloModule.read(exported.mlir_module_serialized).serialize((0, 14, 24)),
        )
        if name in expanded:
            assert callable(to_tf(stored(portable)))
        else:
            with pytest.raises(ModuleError, match=f"no handler for the custom call '{call}'"):
                to_tf(stored(portable))


@pytest.mark.parametrize("kind", ["ordered_effects", "unordered_effects"])
def test_effects_are_of_jax_alone(portable: PortableFunction, kind: str) -> None:
    with pytest.raises(
        ModuleError, match=r"dense has the effects printing\.Print, which exist only in"
    ):
        to_tf(stored(portable, **{kind: ("printing.Print",)}))


def test_stored_function_is_checked_and_runs(portable: PortableFunction) -> None:
    copy = stored(portable)
    assert not are_types_checked(copy)
    np.testing.assert_allclose(to_tf(copy)(PARAMS, X, scale=1.0)["y"], np.full((2, 4), 3.0))
