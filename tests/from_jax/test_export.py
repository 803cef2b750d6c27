"""export(): what the portable function says, how often the function is traced, and the errors."""

import pickle
from collections import namedtuple
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jax2tf_bridge as bridge
from jax2tf_bridge.errors import FunctionError, GradientError, NotExportableError, PlatformError
from shape_poly import parse_dimension

x32 = np.ones((3, 4), np.float32)


def test_function_says_what_it_is() -> None:
    def f(p: dict[str, Any], x: Any, *, scale: Any) -> dict[str, Any]:
        return {"sum": (x @ p["w"]).sum(), "out": scale * x}

    portable = bridge.export(f, polymorphic_shapes=[None, "(2*b, 4)"], platforms=["cpu"])(
        {"w": np.ones((4, 5), np.float32)}, x32, scale=2.0
    )
    assert portable.name == "f"
    assert portable.in_paths() == ("p['w']", "x", "scale")
    assert [str(a) for a in portable.in_avals] == ["float32[4,5]", "float32[2*b,4]", "float32[]"]
    assert portable.out_avals[0].shape == (parse_dimension("2*b"), 4)
    assert str(portable.out_tree) == "{'out': *, 'sum': *}"
    assert portable.platforms == ("cpu",)
    assert portable.dropped_platforms == ()
    assert portable.module.nr_devices == 1
    assert portable.module.uses_shape_polymorphism
    assert portable.producer == f"JAX {jax.__version__}"
    text = repr(portable)
    assert "PortableFunction f(p['w']: float32[4,5], x: float32[2*b,4], scale: float32[])" in text
    assert "runs on TensorFlow: 2.15 to 2.22" in text
    assert "b'" not in text
    assert len(text) < 600


def test_default_platforms_are_all_four() -> None:
    portable = bridge.export(jnp.sin)(x32)
    assert portable.platforms == ("cpu", "cuda", "rocm", "tpu")


def test_unused_arguments_are_dropped_from_the_module_only() -> None:
    portable = bridge.export(lambda x, unused, y: x + y)(x32, x32, x32)
    assert portable.module.kept_arguments == (0, 2)
    assert len(portable.in_avals) == 3
    vjp = portable.vjp()
    assert len(vjp.in_avals) == 4
    assert len(vjp.out_avals) == 3


def test_vjp_layout() -> None:
    def f(x: Any, n: Any, *, y: Any) -> tuple[Any, Any]:
        return x * y * n, n + 1

    portable = bridge.export(f)(x32, np.int32(3), y=x32)
    vjp = portable.vjp()
    assert [a.dtype for a in vjp.in_avals] == ["float32", "int32", "float32", "float32", "float0"]
    assert [a.dtype for a in vjp.out_avals] == ["float32", "float0", "float32"]
    assert [a.op_dtype for a in vjp.out_avals] == ["float32", "bool", "float32"]
    assert vjp.in_paths()[3] == "cotangent_0"
    second = vjp.vjp()
    assert len(second.in_avals) == 5 + 3
    assert portable.vjp() is vjp


def test_one_trace_for_function_and_gradients() -> None:
    traces = []

    @jax.custom_vjp
    def g(x: Any) -> Any:
        return jnp.sin(x)

    g.defvjp(lambda x: (g(x), x), lambda x, ct: (ct * jnp.cos(x) * 10,))

    def f(x: Any) -> Any:
        traces.append(x.shape)
        return g(x).sum()

    portable = bridge.export(f, polymorphic_shapes="b, 4")(x32)
    portable.vjp().vjp().vjp()
    assert len(traces) == 1
    # A platform that fails costs lowerings, but no trace.
    bridge.export(lambda x: (f(x), jax.lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.cos)))(x32)
    assert len(traces) == 2


def test_pickling_keeps_the_materialised_orders() -> None:
    portable = bridge.export(lambda x: x**3)(x32)
    stored = pickle.loads(pickle.dumps(portable.with_vjp(1)))
    assert stored.module.data == portable.module.data
    assert stored.vjp().module.data == portable.vjp().module.data
    assert not stored.vjp().has_vjp
    with pytest.raises(GradientError, match="only VJPs of lower orders were made"):
        stored.vjp().vjp()
    bare = pickle.loads(pickle.dumps(bridge.export(lambda x: x**3)(x32)))
    with pytest.raises(GradientError, match=r"stored without the VJP.*with_vjp\(order\)"):
        bare.vjp()
    with pytest.raises(ValueError, match=r"order must be an integer, at least 0\. Got: -1"):
        portable.with_vjp(-1)
    order: Any = 1.5
    with pytest.raises(ValueError, match=r"order must be an integer, at least 0\. Got: 1.5"):
        portable.with_vjp(order)


Point = namedtuple("Point", ["x", "y"])


def test_callables_of_any_kind() -> None:
    class Model:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: Any) -> Any:
            return x + 1

    def two(x: Any, y: Any) -> Any:
        return x + y

    assert bridge.export(Model())(x32).name == "Model"
    assert bridge.export(partial(two, y=x32))(x32).name == "two"
    assert bridge.export(jax.jit(two, donate_argnums=0))(x32, x32).in_paths() == ("x", "y")
    static = bridge.export(jax.jit(lambda x, n: x * n, static_argnums=1))(x32, 3)
    assert len(static.in_avals) == 1
    named = bridge.export(jax.jit(lambda x, *, n: x * n, static_argnames="n"))(x32, n=3)
    assert named.in_paths() == ("x",)
    variadic = bridge.export(lambda *xs: sum(xs))(x32, x32)
    assert variadic.in_paths() == ("xs[0]", "xs[1]")


def test_pytrees() -> None:
    @partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["n"])
    class Layer:
        def __init__(self, w: Any, n: int) -> None:
            self.w, self.n = w, n

    portable = bridge.export(lambda p, q, r: (Point(q.y, p.w), None, (), {}))(
        Layer(x32, 2), Point(x32, x32), {"k": [x32, None]}
    )
    assert portable.in_paths() == ("p.w", "q.x", "q.y", "r['k'][0]")
    assert str(portable.out_tree) == "(Point(*, *), None, (), {})"
    leaves = portable.in_tree.flatten(
        ((Layer(1, 2), Point(2, 3), {"k": [4, None]}), {}),
        "f",
    )
    assert leaves == [1, 2, 3, 4]
    rebuilt = portable.in_tree.unflatten(iter(leaves))
    assert isinstance(rebuilt[0][0], Layer)
    assert rebuilt[0][1] == Point(2, 3)


def test_narrow_integers_cross_as_bytes() -> None:
    portable = bridge.export(lambda x: (x + x, x.astype(jnp.float32)))(x32.astype(jnp.int4))
    assert portable.in_avals[0].dtype == "int4"
    assert portable.in_avals[0].op_dtype == "int8"
    assert [a.dtype for a in portable.out_avals] == ["int4", "float32"]


def test_typed_keys_cross_as_words() -> None:
    portable = bridge.export(lambda k: (jax.random.split(k), jax.random.normal(k)))(
        jax.random.key(0)
    )
    assert portable.in_avals[0].dtype == "key<fry>"
    assert portable.in_avals[0].op_shape == (2,)
    assert portable.out_avals[0].op_shape == (2, 2)


def test_what_is_no_function() -> None:
    with pytest.raises(FunctionError, match="export expected a JAX function, got 3 of type"):
        bridge.export(3)  # type: ignore[arg-type]
    assert issubclass(FunctionError, TypeError)
    portable = bridge.export(jnp.sin)(1.0)
    with pytest.raises(FunctionError, match=r"exported already: to_tf\(portable\) makes a Te"):
        bridge.export(portable)  # type: ignore[arg-type]
    exported = jax.export.export(jax.jit(jnp.sin))(1.0)
    with pytest.raises(FunctionError, match=r"already: from_exported\(exported\) makes a p"):
        bridge.convert(exported)  # type: ignore[arg-type]

    def generator(x: Any) -> Any:
        yield x

    with pytest.raises(FunctionError, match="Return a list instead of yielding"):
        bridge.export(generator)


@pytest.mark.parametrize("call", ["debug", "pure", "io"])
def test_host_callbacks_are_named_with_their_line(call: str) -> None:
    def f(x: Any) -> Any:
        if call == "debug":
            jax.debug.print("{}", x)
            return x
        if call == "pure":
            return jax.lax.cond(x.sum() > 0, lambda: jax.pure_callback(np.sin, x, x), lambda: x)
        return jax.experimental.io_callback(np.sin, x, x)

    with pytest.raises(
        NotExportableError,
        match=r"(?s)f calls back to Python by jax\..* at .*test_export\.py:\d+.*Remove the call",
    ):
        bridge.export(f)(x32)


def test_no_gradient_is_said_when_it_is_asked_for() -> None:
    def f(x: Any) -> Any:
        return jax.lax.while_loop(lambda y: y.sum() < 100, lambda y: y * 2, x)

    portable = bridge.export(f)(x32)
    with pytest.raises(GradientError, match=r"f has no gradient: Reverse-mode.*while_loop"):
        portable.vjp()


def test_inner_exported_narrows_the_platforms() -> None:
    inner = jax_export.export(jax.jit(jnp.sin), platforms=["cpu", "tpu"])(x32)

    def f(x: Any) -> Any:
        return inner.call(x) * 2

    portable = bridge.export(f)(x32)
    assert portable.platforms == ("cpu", "tpu")
    dropped = dict(portable.dropped_platforms)
    assert "cuda" in dropped["cuda"]
    assert "cpu" in dropped["cuda"]
    with pytest.raises(PlatformError, match=r"f cannot be lowered for cuda: .*'cpu', 'tpu'.*cuda"):
        bridge.export(f, platforms=["cuda"])(x32)
