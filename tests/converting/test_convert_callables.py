"""convert() of callables of every kind."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax import linen

from jax2tf_bridge import AUTO, convert, export
from jax2tf_bridge.errors import ExportError, FunctionError, PlatformError

X = np.array([1.0, 2.0, 3.0], np.float32)


def scale(x: Any, factor: Any) -> Any:
    return x * factor


class Scaler:
    """A callable object that is not hashable."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaler) and other.factor == self.factor

    def __call__(self, x: Any) -> Any:
        return x * self.factor

    def method(self, x: Any) -> Any:
        return x * self.factor


def without_a_name(x: Any) -> Any:
    return x * 2


CALLABLES = {
    "partial": functools.partial(scale, factor=2),
    "partial of jit": functools.partial(jax.jit(scale), factor=2),
    "partial of static jit": functools.partial(jax.jit(scale, static_argnames="factor"), factor=2),
    "jit of partial": jax.jit(functools.partial(scale, factor=2)),
    "object": Scaler(2),
    "method": Scaler(2).method,
    "jitted method": jax.jit(Scaler(2).method),
    "lambda": lambda x: x * 2,
    "ufunc": jnp.vectorize(lambda x: x * 2),
    "vmap": jax.vmap(lambda x: x * 2),
    "remat": jax.checkpoint(lambda x: x * 2),
    "builtin": functools.partial(jax.lax.mul, np.float32(2)),
}


@pytest.mark.parametrize("function", CALLABLES.values(), ids=CALLABLES.keys())
def test_callable(function: Any) -> None:
    f = convert(function)
    assert isinstance(f.__name__, str)
    np.testing.assert_allclose(f(X), 2 * X)
    np.testing.assert_allclose(tf.function(f, autograph=False)(X), 2 * X)


def test_callable_without_name_or_signature() -> None:
    class Nameless:
        __signature__ = "none"

        def __call__(self, *values: Any) -> Any:
            return values[0] * 2

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    np.testing.assert_allclose(convert(Nameless())(X), 2 * X)


def counting(traces: list[Any], **jit_options: Any) -> Any:
    def power(x: Any, n: int = 2, *, how: str = "mul") -> Any:
        traces.append((n, how))
        return x**n if how == "pow" else x * n

    return jax.jit(power, **jit_options)


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": (1,), "static_argnames": ("n", "how")},
        {"static_argnames": ("n", "how")},
        {"static_argnames": ["how", "n"], "donate_argnums": 0},
    ],
)
def test_static_arguments(options: dict[str, Any]) -> None:
    traces: list[Any] = []
    f = convert(counting(traces, **options))
    np.testing.assert_allclose(f(X, 3), X * 3)
    np.testing.assert_allclose(f(X, n=3), X * 3)
    np.testing.assert_allclose(f(X, 3, how="pow"), X**3)
    np.testing.assert_allclose(f(X, how="pow"), X**2)
    np.testing.assert_allclose(tf.function(lambda x: f(x, 3, how="pow"))(X), X**3)
    np.testing.assert_allclose(tf.function(f)(X, 3, how="pow"), X**3)
    assert set(traces) == {(3, "mul"), (3, "pow"), (2, "pow")}
    assert len(traces) <= 4  # By position and by name count as two signatures.


def test_negative_static_argument() -> None:
    f = convert(jax.jit(lambda x, n: x * n, static_argnums=-1))
    np.testing.assert_allclose(f(X, 3), X * 3)


@pytest.mark.parametrize("numbers", [-1, (np.int64(-1),), [2]])
def test_static_arguments_of_a_function_with_any_number(numbers: Any) -> None:
    """Negative numbers count from the last argument of each call."""
    f = jax.jit(lambda x, *rest: x * rest[-1] + len(rest), static_argnums=numbers)
    converted = convert(f)
    np.testing.assert_allclose(converted(X, X, 3), X * 3 + 2)
    assert export(f)(X, X, 3).in_paths() == ("x", "rest[0]")
    if numbers != [2]:
        np.testing.assert_allclose(converted(X, 4), X * 4 + 1)


def test_static_argument_before_the_arrays() -> None:
    f = convert(
        jax.jit(lambda n, x, p: x * n + p["a"], static_argnums=0),
        polymorphic_shapes=[None, "b", None],
    )
    np.testing.assert_allclose(f(2, X, {"a": 1.0}), 2 * X + 1)
    np.testing.assert_allclose(f(2, X[:2], {"a": 1.0}), 2 * X[:2] + 1)
    with pytest.raises(TypeError, match=r"The argument p\['a'\] of a converted"):
        f(2, X, {"a": "no array"})


def test_equal_static_values_of_different_types() -> None:
    f = convert(jax.jit(lambda x, n: x * 0 + len(str(n)), static_argnums=1))
    assert [float(f(1.0, n)) for n in (1, True, 1.0)] == [1.0, 4.0, 3.0]


@pytest.mark.parametrize("call", [lambda f: f(X, [3]), lambda f: f(X, n=[3])])
def test_static_value_that_is_not_hashable(call: Any) -> None:
    f = convert(jax.jit(lambda x, n: x * n[0], static_argnames="n"))
    with pytest.raises(
        ExportError, match=r"The argument n of <lambda> is static .* must be hashable. Got: \[3\]"
    ):
        call(f)


def test_donated_argument() -> None:
    f = convert(jax.jit(lambda x, y: (x + y, y), donate_argnums=0))
    x = tf.constant(X)
    np.testing.assert_allclose(f(x, x)[0], 2 * X)
    np.testing.assert_allclose(x, X)


def exported_double(platforms: Any) -> Any:
    spec = jax.ShapeDtypeStruct((3,), np.float32)
    return jax.export.export(jax.jit(lambda x: x * 2), platforms=platforms)(spec)


def test_exported_function_inside() -> None:
    exported = exported_double(["cpu", "cuda", "rocm", "tpu"])
    f = convert(lambda x: exported.call(x) + 1)
    np.testing.assert_allclose(f(X), 2 * X + 1)


def test_exported_function_inside_has_a_gradient() -> None:
    spec = jax.ShapeDtypeStruct((3,), np.float32)
    exported = jax.export.export(jax.jit(jnp.sin), platforms=["cpu"])(spec)
    restored = jax.export.deserialize(exported.serialize(vjp_order=1))
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = convert(restored.call, native_serialization_platforms=["cpu"])(x)
    np.testing.assert_allclose(tape.gradient(y, x), np.cos(X), rtol=1e-5)


def test_platforms_of_an_exported_function_inside_narrow_ours() -> None:
    from jax2tf_bridge import export

    exported = exported_double(["cpu", "tpu"])
    portable = export(lambda x: exported.call(x) + 1)(X)
    assert portable.platforms == ("cpu", "tpu")
    assert [p for p, _ in portable.dropped_platforms] == ["cuda", "rocm"]
    for _, reason in portable.dropped_platforms:
        assert "cpu" in reason
        assert "tpu" in reason


def test_platforms_of_an_exported_function_inside_and_asked_for() -> None:
    exported = exported_double(["tpu"])
    f = convert(exported.call, native_serialization_platforms=["cpu"])
    with pytest.raises(PlatformError, match="cpu") as error:
        f(X)
    assert "tpu" in str(error.value)


@jax.tree_util.register_pytree_node_class
class ByIdentity:
    """A pytree with a part that is no leaf, equal to itself alone."""

    def __init__(self, a: float, k: float) -> None:
        self.a, self.k = a, k

    def tree_flatten(self) -> tuple[tuple[float], None]:
        return (self.a,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[float]) -> "ByIdentity":
        return cls(children[0], 0.0)


def test_static_pytrees_differ_in_more_than_their_leaves() -> None:
    f = convert(jax.jit(lambda x, s: x * s.k, static_argnums=1))
    x = np.ones(2, np.float32)
    assert [float(f(x, ByIdentity(1.0, k))[0]) for k in (2.0, 3.0)] == [2.0, 3.0]


def test_modules_of_flax_are_answered_with_their_apply() -> None:
    model = linen.Dense(2)
    message = (
        r"^Dense is a module of Flax without parameters, which cannot be called \(\w+\)\. Pass its "
        r"apply, as model\.apply, which takes the parameters as its first argument\.$"
    )
    calls: list[tuple[Any, ...]] = [(X,), ({}, X)]
    for args in calls:
        with pytest.raises(FunctionError, match=message):
            convert(model)(*args)
    bound = model.bind({"params": {"kernel": np.ones((3, 2), np.float32), "bias": np.zeros(2)}})
    np.testing.assert_allclose(convert(bound)(X), [6, 6])

    class Transformed:
        def apply(self, params: Any, x: Any) -> Any:
            return x

    with pytest.raises(FunctionError, match=r"callable\. It has a method apply: pass that, as mod"):
        convert(Transformed())  # type: ignore[arg-type]


def test_modules_of_flax_without_parameters_are_asked_about_sizes() -> None:
    class Shorter(linen.Module):
        def __call__(self, x: Any) -> Any:
            return x[1:] if x.shape[0] >= 3 else x

    exporting = export(Shorter(), polymorphic_shapes="(b,)", polymorphic_constraints=AUTO)
    assert exporting(np.ones(4, np.float32)).requirements == ("b >= 3",)
