"""Platforms and targets: what is chosen, what is dropped and why, and what is refused."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas
from jax.extend.core import Primitive
from jax.interpreters import mlir

import jax2tf_bridge as bridge
from jax2tf_bridge import DisabledSafetyCheck, Target
from jax2tf_bridge.errors import PlatformError, TargetError, UnsupportedByTargetError
from jax2tf_bridge.from_jax.stablehlo import StableHloModule, retarget_module
from tests.from_jax.inferring import module_text

x32 = np.ones((3, 3), np.float32)


def my_kernel(x: Any) -> Any:
    return jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def accurate_exp(x: Any) -> Any:
    return lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST)


def test_widest_is_the_oldest_version_that_loses_nothing() -> None:
    portable = bridge.export(lambda x: lax.top_k(jax.nn.gelu(x), 2))(x32)
    assert portable.module.stablehlo_version == (0, 14, 24)
    assert portable.module.calling_convention_version == 8
    assert portable.tensorflow_releases[0] == "2.15"
    narrow = bridge.export(lambda x: x.astype(jnp.float8_e3m4).astype(jnp.float32))(x32)
    assert narrow.module.stablehlo_version == (1, 7, 3)
    assert narrow.tensorflow_releases[0] == "2.18"


def test_a_targets_own_version_is_used() -> None:
    portable = bridge.export(jnp.sin, target=Target.tensorflow("2.17.1"))(x32)
    assert portable.module.stablehlo_version == (1, 1, 1)
    assert portable.target.name == "TensorFlow 2.17"


def test_what_the_target_cannot_express_is_named_with_its_line() -> None:
    def accurate_tanh(x: Any) -> Any:
        return lax.tanh(x, accuracy=lax.Tolerance(1e-3, 1e-3, 3))

    with pytest.raises(
        UnsupportedByTargetError,
        match=r"accurate_tanh cannot run on TensorFlow 2\.17: stablehlo\.\w+ \(at .*test_lowering"
        r"\.py:\d+\), as it is used here, cannot be expressed in StableHLO 1\.1\.1.*"
        r"The first TensorFlow that can run it is 2\.20: .*Target\.tensorflow\('2\.20'\)",
    ) as info:
        bridge.export(accurate_tanh, platforms=["tpu"], target=Target.tensorflow("2.17"))(x32)
    assert info.value.operation == "stablehlo.tanh"
    assert "test_lowering.py" in str(info.value.source)


def test_a_calling_convention_that_the_target_lacks_is_refused() -> None:
    module = StableHloModule.read(jax.export.export(jax.jit(jnp.sin))(x32).mlir_module_serialized)
    oldest = Target.tensorflow("2.15")
    message = (
        "sin cannot run on TensorFlow 2.15: it holds ordered effects, which need calling "
        "convention 9, and the target reads 8"
    )
    with pytest.raises(UnsupportedByTargetError, match=f"^{message}"):
        retarget_module(module, oldest, function_name="sin", has_effects=True)
    made = retarget_module(module, oldest, function_name="sin", has_effects=False)
    assert made.calling_convention_version == 8


def test_dtypes_that_no_tensorflow_reads() -> None:
    with pytest.raises(UnsupportedByTargetError, match=r"cannot be expressed in StableHLO 1\.1\.1"):
        bridge.export(lambda x: x.astype(jnp.float8_e8m0fnu), target=Target.tensorflow("2.17"))(x32)


def test_custom_calls_are_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedByTargetError,
        match=r"(?s)my_kernel cannot be exported for cpu, cuda, rocm, tpu:\n  - cpu, cuda, rocm, "
        r"tpu: TensorFlow has no handler for the custom call 'my_kernel' from ffi_call at "
        r".*test_lowering\.py:\d+.*DisabledSafetyCheck\.custom_call\('my_kernel'\)",
    ) as info:
        bridge.export(my_kernel)(x32)
    assert info.value.operation == "my_kernel"
    allowed = DisabledSafetyCheck.custom_call("my_kernel")
    portable = bridge.export(my_kernel, disabled_checks=[allowed])(x32)
    assert portable.module.disabled_checks == (allowed,)
    jax_check = jax.export.DisabledSafetyCheck.custom_call("my_kernel")
    assert bridge.export(my_kernel, disabled_checks=[jax_check])(x32).module.disabled_checks == (
        allowed,
    )


@pytest.mark.parametrize("platforms", [["cpu"], ["cuda", "rocm"], ["tpu"], None])
def test_approximate_top_k_is_exported_for_every_platform(platforms: list[str] | None) -> None:
    def extremes(x: jax.Array) -> Any:
        return lax.approx_max_k(x, 2), lax.approx_min_k(x, 2)

    portable = bridge.export(
        extremes,
        polymorphic_shapes="(b, n)",
        polymorphic_constraints=["n >= 2"],
        platforms=platforms,
    )(np.zeros((2, 8), np.float32))
    assert portable.tensorflow_releases[0] == "2.15"
    if "cpu" in portable.platforms:
        (largest, at), (smallest, _) = bridge.to_tf(portable)(
            np.array([[3, 1, 5], [2, 4, 0]], np.float32)
        )
        np.testing.assert_array_equal(largest, [[5, 3], [4, 2]])
        np.testing.assert_array_equal(at, [[2, 0], [1, 0]])
        np.testing.assert_array_equal(smallest, [[1, 3], [0, 2]])


def test_a_platform_without_a_rule_is_dropped_with_its_reason() -> None:
    def f(x: Any) -> Any:
        return lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.cos)

    portable = bridge.export(f)(x32)
    assert portable.platforms == ("cpu", "tpu")
    assert [p for p, _ in portable.dropped_platforms] == ["cuda", "rocm"]
    assert all(reason for _, reason in portable.dropped_platforms)
    assert "not for cuda: " in repr(portable)
    with pytest.raises(PlatformError, match="f cannot be lowered for cuda: ") as info:
        bridge.export(f, platforms=["cpu", "cuda"])(x32)
    assert set(info.value.reasons) == {"cuda"}


def _raising(error: Exception) -> Any:
    """Makes a function whose lowering raises on cuda only."""
    primitive = Primitive("raising")
    primitive.def_abstract_eval(lambda aval: aval)

    def fail(ctx: Any, x: Any) -> Any:
        raise error

    mlir.register_lowering(primitive, lambda ctx, x: [x])
    mlir.register_lowering(primitive, fail, platform="cuda")
    return primitive.bind


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no layout\nof iota"), "no layout"),
        (RuntimeError(), "RuntimeError"),
    ],
    ids=["with a text", "without"],
)
def test_a_platform_whose_lowering_raises_a_runtime_error_is_dropped(
    error: Exception, reason: str
) -> None:
    function = _raising(error)

    def f(x: Any) -> Any:
        return function(x) * 2

    portable = bridge.export(f)(x32)
    assert portable.platforms == ("cpu", "rocm", "tpu")
    assert portable.dropped_platforms == (("cuda", reason),)
    with pytest.raises(PlatformError) as info:
        bridge.export(f, platforms=["cuda"])(x32)
    assert str(info.value) == f"f cannot be lowered for cuda: {reason}"
    assert info.value.__cause__ is error


def _doubled(x: Any, *, interpret: bool = False) -> Any:
    def double(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * 2

    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas.pallas_call(double, out_shape=out, interpret=interpret)(x)


# JAX warns of its own way to lower kernels for CUDA, which is tried with the other platforms.
@pytest.mark.costly
@pytest.mark.filterwarnings("ignore:.*(pl.pallas_call|Pallas Triton):DeprecationWarning")
def test_pallas_kernels_are_for_the_tpu_and_no_release_is_said_to_run_them() -> None:
    x = np.ones((8, 128), np.float32)
    portable = bridge.export(_doubled)(x)
    assert portable.platforms == ("tpu",)
    assert [platform for platform, _ in portable.dropped_platforms] == ["cpu", "cuda", "rocm"]
    assert "interpret mode" in dict(portable.dropped_platforms)["cpu"]
    unknown = (
        "runs on only those TPUs whose runtime supports the Pallas kernels of its JAX; no known "
        "TensorFlow release has one"
    )
    exported = jax.export.export(jax.jit(_doubled), platforms=["tpu"])(x)
    for found in (
        portable,
        bridge.deserialize(bridge.serialize(portable)),
        bridge.from_exported(exported),
    ):
        assert found.tensorflow_releases == ()
        assert str(found).endswith(unknown)
    allowed = DisabledSafetyCheck.custom_call("tpu_custom_call")
    vouched = bridge.export(_doubled, platforms=["tpu"], disabled_checks=[allowed])(x)
    assert vouched.tensorflow_releases[-1] == "2.22"


def test_pallas_kernels_that_are_interpreted_run_everywhere() -> None:
    x = np.ones((8, 128), np.float32)
    portable = bridge.export(functools.partial(_doubled, interpret=True))(x)
    assert portable.platforms == ("cpu", "cuda", "rocm", "tpu")
    np.testing.assert_allclose(bridge.to_tf(portable, with_gradient=False)(x), 2 * x)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["gpu"], ("cuda", "rocm")),
        (("TPU", "cpu", "tpu"), ("tpu", "cpu")),
    ],
)
def test_platform_names(given: list[str], expected: tuple[str, ...]) -> None:
    assert bridge.export(jnp.sin, platforms=given)(x32).platforms == expected


def test_platforms_that_do_not_exist() -> None:
    with pytest.raises(
        TargetError, match=r"platforms: unknown platform 'cdua'\. Did you mean cuda"
    ):
        bridge.export(jnp.sin, platforms=["cdua"])
    mistakes: list[Any] = ["cpu", [], 3]
    for wrong in mistakes:
        with pytest.raises(TargetError, match="must be a sequence of platform names"):
            bridge.export(jnp.sin, platforms=wrong)


def test_targets_that_are_none() -> None:
    with pytest.raises(TargetError, match=r"must be a Target, as Target.tensorflow\('2.17'\)"):
        bridge.export(jnp.sin, target="2.17")  # type: ignore[arg-type]
    with pytest.raises(TargetError, match=r"a release as text, as '2\.17'\. Got: 2\.2"):
        Target.tensorflow(2.20)  # type: ignore[arg-type]


def test_source_lines_are_the_users() -> None:
    with pytest.raises(UnsupportedByTargetError) as info:
        bridge.export(lambda x: my_kernel(x))(x32)
    assert "test_lowering.py" in str(info.value.source)


def test_composites_and_chlo_are_inlined() -> None:
    def f(x: Any) -> tuple[Any, ...]:
        return lax.top_k(x, 2)[0], lax.erf(x), jnp.arccos(x), lax.erfc(x), jnp.sinh(x)

    portable = bridge.export(f, polymorphic_shapes="b, 3")(x32)
    module = StableHloModule.read(portable.module.data)
    assert {call.name for call in module.describe_custom_calls()} <= {"shape_assertion"}
    assert "stablehlo.composite" not in module_text(portable)
    assert portable.module.stablehlo_version == (0, 14, 24)


ACCURATE = ["exp", "exp2", "expm1", "log", "log1p", "logistic", "rsqrt", "sin", "sqrt", "tanh"]


def test_the_cpu_ignores_a_requested_accuracy() -> None:
    """The widest target leaves it out for the CPU, which must not change a bit."""
    x = np.abs(np.random.default_rng(0).standard_normal(100_000)).astype(np.float32) * 10
    plain = jax.jit(lambda x: {name: getattr(lax, name)(x) for name in ACCURATE})
    highest = lax.AccuracyMode.HIGHEST
    accurate = jax.jit(lambda x: {n: getattr(lax, n)(x, accuracy=highest) for n in ACCURATE})
    with_it = accurate(x)
    for name, without in plain(x).items():
        np.testing.assert_array_equal(without, with_it[name], err_msg=name)
    portable = bridge.export(accurate, platforms=["cpu"])(x)
    assert portable.module.stablehlo_version == (0, 14, 24)


def test_elsewhere_a_requested_accuracy_is_kept() -> None:
    for platforms in (None, ["cuda"], ["tpu"]):
        portable = bridge.export(accurate_exp, platforms=platforms)(x32)
        assert portable.module.stablehlo_version == (1, 9, 1)
        assert portable.tensorflow_releases[0] == "2.19"
