"""call_tf_graph=True: the TensorFlow graph is embedded, and compiled where the model runs."""

from __future__ import annotations

import concurrent.futures
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import (
    AUTO,
    Target,
    convert,
    deserialize,
    export,
    retarget,
    serialize,
    to_exported,
    to_tf,
)
from jax2tf_bridge.bytecode import read_summary
from jax2tf_bridge.calling_tf import call_tf

# Private: TensorFlow writes nodes in the order of their creation, other tools need not.
from jax2tf_bridge.calling_tf._graphs import _replace_variables
from jax2tf_bridge.errors import (
    CallTfError,
    GradientError,
    ModuleError,
    NotExportableError,
    SerializationError,
    ShapeError,
    UnsupportedByTargetError,
)
from jax2tf_bridge.portable import GraphFunction
from shape_poly import shape_text
from tests.calling_tf.graph_models import KERNEL, Layers, X, layers
from tests.sampling import sampled

ROWS = "(b, 2)"


def as_graph(f: Callable[..., Any], **options: Any) -> Any:
    return call_tf(f, call_tf_graph=True, **options)


def agrees(f: Callable[..., Any], g: Callable[..., Any], x: Any) -> None:
    """Fails unless the TensorFlow function f has the values and gradients of g."""
    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        y = f(tensor)
        total = tf.reduce_sum(y**2)
    gradient = jax.grad(lambda x: (g(x) ** 2).sum())
    values, slopes = jax.jit(lambda x: (g(x), gradient(x)))(x)
    np.testing.assert_allclose(y, values, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tape.gradient(total, tensor), slopes, rtol=1e-5, atol=1e-6)


def expected(x: Any) -> Any:
    return jnp.cos(layers(x, jnp))


@pytest.mark.costly
@pytest.mark.parametrize(
    ("shapes", "way"),
    [
        (ROWS, "eager"),
        pytest.param(ROWS, "graph", marks=pytest.mark.slow),
        pytest.param(None, "eager", marks=pytest.mark.complete),
        pytest.param(None, "graph", marks=pytest.mark.complete),
    ],
)
def test_values_and_gradients_are_those_of_the_function(shapes: str | None, way: str) -> None:
    f = as_graph(Layers())
    converted = convert(
        lambda x: jnp.cos(f(x)), polymorphic_shapes=shapes, native_serialization_platforms=["cpu"]
    )
    agrees(tf.function(converted) if way == "graph" else converted, expected, X)
    if shapes is not None:
        agrees(converted, expected, np.concatenate([X, X]))


def test_the_module_calls_the_graph_and_runs_on_every_platform() -> None:
    portable = export(as_graph(tf.sin), polymorphic_shapes=ROWS)(X)
    assert portable.platforms == ("cpu", "cuda", "rocm", "tpu")
    assert [function.name for function in portable.graph_functions] == ["sin"]
    assert "tf.call_tf_function" in read_summary(portable.module.data).custom_calls
    assert portable.tensorflow_releases[0] == "2.15"
    assert "sine" not in str(read_summary(portable.module.data))


def test_a_session_does_not_take_loops_apart() -> None:
    """Sessions, as in TF Serving, would lower loops to operations that XLA cannot compile."""
    (function,) = export(as_graph(Layers()))(X).graph_functions
    assert b"While" in function.graph
    assert b"_lower_using_switch_merge" not in function.graph


def test_a_graph_that_is_called_twice_is_in_the_list_once() -> None:
    f, g = as_graph(tf.sin), as_graph(tf.cos)

    def program(x: Any) -> Any:
        x = jax.jit(lambda x: f(f(x)) + g(x))(x)
        return jax.lax.scan(lambda c, _: (g(f(c)), None), x, None, length=2)[0]

    portable = export(program)(X)
    assert len(portable.graph_functions) == 2
    x = np.sin(np.sin(X)) + np.cos(X)
    for _ in range(2):
        x = np.cos(np.sin(x))
    np.testing.assert_allclose(to_tf(portable)(X), x, rtol=1e-5)


def test_branches_take_their_own_graphs() -> None:
    f, g = as_graph(tf.sin), as_graph(tf.cos)
    converted = convert(lambda x: jax.lax.cond(x.sum() > 0, f, g, x))
    np.testing.assert_allclose(converted(X + 1), np.sin(X + 1), rtol=1e-5)
    np.testing.assert_allclose(converted(X - 1), np.cos(X - 1), rtol=1e-5)


@pytest.mark.slow
def test_gradients_of_second_order_are_graphs_too() -> None:
    portable = export(as_graph(lambda x: x**3), polymorphic_shapes=ROWS)(X).with_vjp(2)
    assert all(r.graph_functions for r in (portable, portable.vjp(), portable.vjp().vjp()))
    f, x = to_tf(portable), tf.constant(X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        first = tape.gradient(y, x)
    np.testing.assert_allclose(outer.gradient(first, x), 6 * X, rtol=1e-5)


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (tf.sin, "(b, 2)"),
        (lambda x: tf.concat([x, x[:1]], 0), "(b + 1, 2)"),
        (lambda x: tf.reshape(x, [-1]), "(2*b,)"),
        (lambda x: x[::2], "(floordiv(b + 1, 2), 2)"),
        (lambda x: tf.matmul(x, x, transpose_b=True), "(b, b)"),
        (tf.reduce_sum, "()"),
        (Layers(loop=False), "(b, 2)"),
    ],
    ids=["same", "longer", "flat", "strided", "square", "scalar", "signature"],
)
def test_symbolic_sizes_of_results_are_found(f: Callable[..., Any], shape: str) -> None:
    portable = export(as_graph(f), polymorphic_shapes=ROWS, platforms=["cpu"])(X)
    assert shape_text(portable.out_avals[0].shape) == shape
    x = np.concatenate([X, X[:2]])
    np.testing.assert_allclose(to_tf(portable)(x), f(tf.constant(x)), rtol=1e-5)


def test_sizes_are_found_for_arguments_that_have_a_minimum_size() -> None:
    shorter = convert(
        lambda x: as_graph(lambda y: tf.concat([y, y], 0))(x[4:]),
        polymorphic_shapes=ROWS,
        polymorphic_constraints=["b >= 4"],
    )
    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    np.testing.assert_array_equal(shorter(x), np.concatenate([x[4:], x[4:]]))


def test_symbolic_sizes_of_results_can_be_declared() -> None:
    def program(x: Any) -> Any:
        last = jax.ShapeDtypeStruct((x.shape[0] // 5, 2), x.dtype)
        return as_graph(lambda x: x[4::5], output_shape_dtype=last)(x) + 1

    x = np.arange(22, dtype=np.float32).reshape(11, 2)
    converted = convert(program, polymorphic_shapes=ROWS)
    np.testing.assert_allclose(converted(x), x[4::5] + 1)


@pytest.mark.parametrize("way", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_a_wrong_declaration_is_an_error_when_it_runs(way: Callable[..., Any]) -> None:
    def program(x: Any) -> Any:
        twice = jax.ShapeDtypeStruct((2 * x.shape[0], 2), x.dtype)
        return as_graph(tf.sin, output_shape_dtype=twice)(x)

    converted = way(convert(program, polymorphic_shapes=ROWS, with_gradient=False))
    with pytest.raises(tf.errors.InvalidArgumentError, match="3 values, but the requested shape"):
        converted(X)


def test_a_size_that_nothing_determines_has_to_be_declared() -> None:
    with pytest.raises(ShapeError, match=r"boolean_mask.*Declare the results") as caught:
        export(as_graph(_boolean_mask), polymorphic_shapes=ROWS)(X)
    assert isinstance(caught.value.__cause__, UnsupportedByTargetError)


def _boolean_mask(x: tf.Tensor) -> tf.Tensor:
    return tf.boolean_mask(x, x > 0)


def test_a_declared_size_has_to_follow_from_the_arguments() -> None:
    def program(x: Any, y: Any) -> Any:
        other = jax.ShapeDtypeStruct((y.shape[0], 2), x.dtype)
        return as_graph(tf.sin, output_shape_dtype=other)(x)

    with pytest.raises(ShapeError, match="size c, which does not follow from the sizes of its arg"):
        export(program, polymorphic_shapes=["(b, 2)", "(c, 2)"])(X, X)


def test_without_the_graph_symbolic_declarations_and_sizes_are_refused() -> None:
    def program(x: Any) -> Any:
        return call_tf(tf.sin, output_shape_dtype=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(ShapeError, match="Symbolic sizes need call_tf_graph=True"):
        export(program, polymorphic_shapes=ROWS)(X)
    with pytest.raises(ShapeError, match=r"takes any size: call_tf\(\.\.\., call_tf_graph=True\)"):
        export(call_tf(tf.sin), polymorphic_shapes=ROWS)(X)


def test_vmap_over_a_symbolic_batch() -> None:
    f = as_graph(lambda x: tf.reduce_sum(x**3))
    converted = convert(jax.vmap(jax.value_and_grad(f)), polymorphic_shapes=ROWS)
    values, gradients = converted(X)
    np.testing.assert_allclose(values, (X**3).sum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients, 3 * X**2, rtol=1e-5)


def test_shapes_can_be_found_too() -> None:
    portable = export(as_graph(tf.sin), polymorphic_shapes=AUTO)(X)
    (shape,) = portable.polymorphic_shapes.values()
    assert shape == "(b, d1)"
    np.testing.assert_allclose(
        to_tf(portable)(np.ones((4, 5), np.float32)), np.sin(np.ones((4, 5)))
    )


def test_eager_calls_are_as_before() -> None:
    f = as_graph(Layers(loop=False))
    np.testing.assert_allclose(f(X), layers(X), rtol=1e-5)
    g = jax.grad(lambda x: (f(x) ** 2).sum())(X)
    np.testing.assert_allclose(
        g, jax.grad(lambda x: (layers(x, jnp) ** 2).sum())(X), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "run",
    [
        lambda f: jax.jit(f)(X),
        lambda f: jax.lax.cond(True, f, lambda x: x, X),
        lambda f: jax.export.export(jax.jit(f))(X),
    ],
    ids=["jit", "cond", "jax.export"],
)
def test_jax_alone_cannot_run_it(run: Callable[..., Any]) -> None:
    with pytest.raises(NotExportableError, match=r"function sin as a graph.*convert or"):
        run(as_graph(tf.sin))


def test_without_results_it_is_refused_in_jax_alone_too() -> None:
    f = as_graph(lambda x: None)
    assert f(X) is None
    with pytest.raises(NotExportableError, match=r"cannot run .* as a graph.*convert or"):
        jax.jit(f)(X)
    np.testing.assert_array_equal(convert(lambda x: (f(x), x)[1])(X), X)


def test_variables_have_the_values_of_the_time_of_export_and_are_shared() -> None:
    variable = tf.Variable(np.eye(40, dtype=np.float32) * 40)
    f = as_graph(lambda x: x @ variable)
    x = np.ones((2, 40), np.float32)
    portable = export(f, polymorphic_shapes="(b, 40)")(x).with_vjp(1)
    variable.assign(variable * 7)
    np.testing.assert_allclose(to_tf(portable)(x), 40)
    (forward,), (backward,) = portable.lifted_constants, portable.vjp().lifted_constants
    assert forward.digest == backward.digest
    assert forward.aval.shape == (40, 40)
    np.testing.assert_allclose(to_tf(export(f)(x))(x), 280)


def test_handles_are_replaced_for_nodes_in_any_order() -> None:
    """A file may have the user of a handle before the node that passes it on."""
    variables = [tf.Variable(2.0), tf.Variable(3.0)]

    @tf.function(autograph=False)
    def add(*handles: tf.Tensor) -> Any:
        return sum(tf.raw_ops.ReadVariableOp(resource=h, dtype=tf.float32) for h in handles)

    @tf.function(autograph=False)
    def total() -> Any:
        first, second = (variable.handle for variable in variables)
        return add(first, tf.raw_ops.Identity(input=second))

    concrete = total.get_concrete_function()
    graph_def = concrete.graph.as_graph_def()
    nodes = list(graph_def.node)
    del graph_def.node[:]
    graph_def.node.extend(reversed(nodes))
    places = [tensor.op.name for tensor in concrete.inputs]
    _replace_variables(graph_def, dict.fromkeys(places, tf.TensorSpec([])))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = {f"{place}:0": tf.constant(v) for place, v in zip(places, (2.0, 3.0), strict=True)}
        (result,) = tf.graph_util.import_graph_def(
            graph_def, values, [concrete.outputs[0].name], name=""
        )
        assert session.run(result) == 5


def test_captured_tensors_stay_what_xla_may_know_when_it_compiles() -> None:
    shape = tf.constant([-1, 1])
    converted = convert(as_graph(lambda x: tf.reshape(x, shape)))
    assert converted(X).shape == (6, 1)


def _assigns() -> Callable[..., Any]:
    variable = tf.Variable(1.0)
    return lambda x: variable.assign_add(1.0) + x


def _looks_up() -> Callable[..., Any]:
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, 0.0, 0, -1)
    return lambda x: tf.reshape(table.lookup(tf.cast(x, tf.int64)), x.shape)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (_assigns, "changes a tf.Variable"),
        (_looks_up, "a resource that is not a tf.Variable"),
    ],
)
def test_what_cannot_be_carried_along(make: Callable[..., Any], text: str) -> None:
    with pytest.raises(UnsupportedByTargetError, match=text):
        export(as_graph(make()), platforms=["cpu"])(X)


def test_what_xla_cannot_compile_fails_in_tensorflow() -> None:
    converted = convert(as_graph(lambda x: tf.strings.length(tf.strings.as_string(x))))
    with pytest.raises(tf.errors.InvalidArgumentError, match="AsString"):
        converted(X)


def test_what_the_function_raises_names_it() -> None:
    def fails(x: tf.Tensor) -> tf.Tensor:
        raise RuntimeError("not today")

    with pytest.raises(CallTfError, match="The TensorFlow function fails raised RuntimeError"):
        export(as_graph(fails), polymorphic_shapes=ROWS)(X)


def test_calls_with_side_effects_are_kept() -> None:
    def program(x: Any) -> Any:
        as_graph(lambda x: x + tf.random.uniform([2]), ordered=True)(x)
        as_graph(tf.sin)(x)
        return x

    portable = export(program)(X)
    assert [f.name for f in portable.graph_functions] == ["<lambda>"]
    assert portable.ordered_effects == portable.unordered_effects == ()
    np.testing.assert_array_equal(to_tf(portable)(X), X)


@pytest.mark.slow
def test_functions_are_pickled_written_and_retargeted_with_their_graphs() -> None:
    f = as_graph(Layers())
    portable = export(lambda x: jnp.cos(f(x)), polymorphic_shapes=ROWS)(X).with_vjp(1)
    data = serialize(portable)
    for other in (
        pickle.loads(pickle.dumps(portable)),
        deserialize(data),
        retarget(deserialize(data), Target.tensorflow("2.19")),
    ):
        assert other.graph_functions == portable.graph_functions
        agrees(to_tf(other), expected, X)
        agrees(tf.function(to_tf(other), autograph=False), expected, X)


def test_jax_takes_no_function_with_graphs() -> None:
    portable = export(as_graph(tf.sin))(X)
    with pytest.raises(SerializationError, match=r"calls TensorFlow graphs \(sin\), which JAX can"):
        to_exported(portable)


def test_a_function_without_its_graphs_is_refused() -> None:
    portable = pickle.loads(pickle.dumps(export(as_graph(tf.sin))(X)))
    with pytest.raises(ModuleError, match=r"calls TensorFlow functions \(tf.call_tf_function\)"):
        to_tf(replace(portable, graph_functions=()))
    damaged = GraphFunction("sin", portable.graph_functions[0].graph[:-9])
    with pytest.raises(ModuleError, match=r"sin that sin calls cannot be read by the installed"):
        to_tf(replace(portable, graph_functions=(damaged,)))


@pytest.mark.slow
def test_conversions_within_each_other_keep_their_graphs_apart() -> None:
    inner = convert(lambda x: as_graph(tf.sin)(x) * 2, polymorphic_shapes=ROWS)
    outer = convert(lambda x: as_graph(tf.cos)(as_graph(inner)(x)), polymorphic_shapes=ROWS)
    agrees(outer, lambda x: jnp.cos(2 * jnp.sin(x)), X)
    compiled = call_tf(convert(as_graph(tf.sin)))
    np.testing.assert_allclose(jax.jit(compiled)(X), np.sin(X), rtol=1e-5)


@pytest.mark.slow
def test_threads_convert_at_the_same_time() -> None:
    def one(i: int) -> Any:
        f = as_graph(lambda x: x * float(i) + KERNEL[0])
        return convert(lambda x: f(f(x)), polymorphic_shapes=ROWS)(X)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for i, found in enumerate(pool.map(one, range(6))):
            np.testing.assert_allclose(found, (X * i + KERNEL[0]) * i + KERNEL[0], rtol=1e-5)


def test_a_graph_with_fewer_results_than_its_call_ends_in_an_error() -> None:
    """TensorFlow would read stray memory."""
    portable = export(as_graph(lambda x: (x + 1, x * 2)), platforms=["cpu"])(X)
    (made,) = portable.graph_functions
    graph = tf.compat.v1.GraphDef.FromString(made.graph)
    kept = [node for node in graph.node if node.name != "y1"]
    fewer = tf.compat.v1.GraphDef(node=kept, library=graph.library, versions=graph.versions)
    forged = replace(portable, graph_functions=(GraphFunction("f", fewer.SerializeToString()),))
    read = deserialize(serialize(forged))
    with pytest.raises(ModuleError, match=r"takes 2 results from a .* have at most 1"):
        to_tf(read)


@pytest.mark.parametrize("crop", sampled([16, 1000], every=2))
def test_sizes_that_are_cut_or_padded_are_not_guessed(crop: int) -> None:
    for f in (
        lambda x: x[:, : tf.minimum(tf.shape(x)[1], crop)],
        lambda x: tf.pad(x, [[0, 0], [0, tf.maximum(0, crop - tf.shape(x)[1])]]),
    ):
        with pytest.raises(ShapeError, match="Declare the results"):
            export(as_graph(f), polymorphic_shapes="b, n")(np.ones((2, 5), np.float32))


@pytest.mark.parametrize("carried", [True, False])
def test_gradients_of_random_numbers_are_refused(carried: bool) -> None:
    """The gradient would draw other numbers."""
    f = call_tf(lambda x: x * tf.random.uniform([2]), call_tf_graph=carried)
    portable = export(lambda x: f(x))(X)
    with pytest.raises(GradientError, match=r"draws random numbers \(RandomUniform\).*stateless"):
        portable.vjp()
    with pytest.raises(GradientError, match="draws random numbers"):
        jax.grad(lambda x: f(x).sum())(X)

    def seeded(x: Any, seed: Any) -> Any:
        return x * tf.random.stateless_uniform([2], seed)

    g = call_tf(seeded, call_tf_graph=carried)
    found = jax.grad(lambda x: g(x, np.array([1, 2], np.int32)).sum())(X)
    np.testing.assert_allclose(found, g(np.ones_like(X), np.array([1, 2], np.int32)), rtol=1e-6)
