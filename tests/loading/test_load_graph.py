"""SavedModels of other tools come back as JAX functions, from saved_model.pb alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert, export, load
from jax2tf_bridge.errors import (
    DTypeError,
    FileFormatError,
    GradientError,
    ShapeError,
    StructureError,
)
from jax2tf_bridge.loading import LoadedModel

# Private: shapes and casts that TensorFlow takes long to write, or never writes.
from jax2tf_bridge.loading._arrays import make_jax_array
from jax2tf_bridge.loading._graph_models import SavedGraphFunction
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saved_model import (
    Cast,
    GraphSignature,
    Input,
    MetaGraph,
    ProtoMessage,
    SignaturePort,
    TensorSpec,
    Value,
    bytes_field,
    read_strings,
    varint_field,
)
from tests.saved_model import by_hand

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)


def dense(params: Any, x: Any, unused: Any, n: Any) -> Any:
    return {"y": jnp.tanh(x @ params["w"]), "n": n + x.shape[0]}


def save_as_others_do(
    folder: Path,
    function: Callable[..., Any],
    *specs: tf.TensorSpec,
    around: Callable[..., Any] | None = None,
) -> Path:
    """Saves a TF function of (params, *inputs), with the variable params/w, without a sidecar."""
    module = tf.Module()
    module.params = {"w": tf.Variable(W)}

    def call(*inputs: Any) -> Any:
        return function(module.params, *inputs)

    module.f = tf.function(around(call) if around else call, input_signature=specs, autograph=False)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, str(folder), options=options)
    return folder


SPECS = (
    tf.TensorSpec([None, 3], tf.float32, "x"),
    tf.TensorSpec([None], tf.float32, "unused"),
    tf.TensorSpec([], tf.int32, "n"),
)
SHAPES = [None, "(b, 3)", "(b,)", ""]
UNUSED = np.zeros(4, np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("others") / "1"
    function = convert(dense, polymorphic_shapes=SHAPES)
    return load(save_as_others_do(folder, function, *SPECS))


def test_values_at_several_sizes(model: LoadedModel) -> None:
    for size in (1, 4, 2):
        found = model.serving_default(x=X[:size], unused=UNUSED[:size], n=7)
        np.testing.assert_allclose(found["y"], np.tanh(X[:size] @ W), rtol=1e-6)
        assert found["n"] == 7 + size


def test_says_what_it_holds(model: LoadedModel) -> None:
    assert list(model.params) == ["params/w"]
    np.testing.assert_array_equal(model.params["params/w"], W)
    (signature,) = model.signatures.values()
    assert signature.inputs == {"x": "float32[?,3]", "unused": "float32[?]", "n": "int32[]"}
    assert signature.outputs == {"n": "int32[]", "y": "float32[?,2]"}


def test_is_differentiated_with_respect_to_weights_and_inputs(model: LoadedModel) -> None:
    function = model.functions["serving_default"]

    def loaded(params: Any, x: Any, unused: Any) -> Any:
        return (function(params, x=x, unused=unused, n=jnp.int32(0))["y"] ** 2).sum()

    def original(w: Any, x: Any) -> Any:
        return (jnp.tanh(x @ w) ** 2).sum()

    by_weights, by_x, by_unused = jax.jit(jax.grad(loaded, (0, 1, 2)))(model.params, X, UNUSED)
    expected = jax.grad(original, (0, 1))(W, X)
    np.testing.assert_allclose(by_weights["params/w"], expected[0], rtol=1e-5)
    np.testing.assert_allclose(by_x, expected[1], rtol=1e-5)
    np.testing.assert_array_equal(by_unused, UNUSED)


def test_gradients_end_where_they_were_saved(model: LoadedModel) -> None:
    function = model.functions["serving_default"]

    def loss(x: Any) -> Any:
        return function(model.params, x=x, unused=UNUSED, n=jnp.int32(0))["y"].sum()

    with pytest.raises(GradientError, match="gradients up to order 1"):
        jax.grad(lambda x: jax.grad(loss)(x).sum())(X)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"x": X[:, :2]}, ShapeError, r"x: expected shape \(\?, 3\), got \(4, 2\)"),
        ({"x": X.astype(np.int32)}, DTypeError, "x: expected float32, got int32"),
        (
            {"x": "text"},
            DTypeError,
            r"^The input x must be an array or numbers for float32\[\?,3\]\. Got: 'text' of type",
        ),
        ({"n": 2**40}, DTypeError, r"for int32\[\]\. Got: 1099511627776 of type int\.$"),
        ({"n": 2.5}, DTypeError, r"for int32\[\]\. Got: 2\.5 of type float\.$"),
        ({"x": np.array(["text"])}, DTypeError, r"Got: array\(\['text'\], dtype='<U4'\) of type"),
        ({"y": X}, StructureError, "there is no input y"),
        ({"unused": UNUSED[:2]}, ShapeError, r"size args\[2\]\.shape\[0\] \(= 2\)"),
    ],
)
def test_wrong_arguments_are_named(
    model: LoadedModel, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    inputs = {"x": X, "unused": UNUSED, "n": np.int32(0), **changes}
    with pytest.raises(error, match=text):
        model.serving_default(**inputs)


def test_weights_that_do_not_fit_are_named(model: LoadedModel) -> None:
    function = model.functions["serving_default"]
    with pytest.raises(StructureError, match=r"params\['params/w'\] is missing"):
        function({}, x=X, unused=UNUSED, n=0)
    with pytest.raises(StructureError, match="params must be a dict of weights, not a NoneType"):
        function(None, x=X, unused=UNUSED, n=0)
    with pytest.raises(DTypeError, match=r"params/w'\]: expected float32, got \[\[.* of type list"):
        function({"params/w": W.tolist()}, x=X, unused=UNUSED, n=0)


def test_inputs_by_position_are_told(model: LoadedModel) -> None:
    text = r"pass the inputs by name \(n, unused, x\), not by position"
    for call in (model.serving_default, model.signatures["serving_default"]):
        with pytest.raises(StructureError, match=text):
            call(X)


def test_two_functions_one_after_the_other(tmp_path: Path) -> None:
    first = convert(lambda params, x: x @ params["w"], polymorphic_shapes=[None, "(b, 3)"])
    second = convert(lambda h: jnp.exp(-h) * np.arange(2, dtype=np.float32))

    def both(params: Any, x: Any) -> Any:
        return second(tf.cast(first(params, x), tf.float32))

    save_as_others_do(tmp_path / "1", both, tf.TensorSpec([4, 3], tf.float32, "x"))
    model = load(tmp_path / "1")
    (found,) = model.serving_default(x=X).values()
    np.testing.assert_allclose(found, np.exp(-X @ W) * np.arange(2), rtol=1e-5)


def test_names_of_variables_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[bytes, ...]] = []

    def counted(tensor: ProtoMessage) -> tuple[bytes, ...]:
        read.append(read_strings(tensor))
        return read[-1]

    monkeypatch.setattr("jax2tf_bridge.loading._graph_models.read_strings", counted)
    module = tf.Module()
    module.weights = [tf.Variable(float(i)) for i in range(3)]
    call = convert(lambda params, x: x * sum(params))
    spec = tf.TensorSpec([], tf.float32, "x")
    module.f = tf.function(lambda x: call(module.weights, x), [spec], autograph=False)
    tf.saved_model.save(module, str(tmp_path / "1"))
    assert sorted(map(float, load(tmp_path / "1").params.values())) == [0, 1, 2]
    assert len(read) == 1


def test_casts_and_constants_of_tensorflow(tmp_path: Path) -> None:
    function = convert(lambda params, x, s: x @ params["w"] * s)

    def scaled(params: Any, x: Any) -> Any:
        return tf.cast(function(params, tf.cast(x, tf.float32), tf.constant(2.5)), tf.float16)

    save_as_others_do(tmp_path / "1", scaled, tf.TensorSpec([4, 3], tf.float16, "x"))
    (found,) = load(tmp_path / "1").serving_default(x=X.astype(np.float16)).values()
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, X.astype(np.float16) @ W * 2.5, rtol=1e-2, atol=1e-2)


def test_many_casts_one_after_the_other() -> None:
    y: Value = Input("x")
    for _ in range(1500):
        y = Cast(y, "float32")
    ports = {name: SignaturePort(name, TensorSpec("int32", (3,)), "") for name in "xy"}
    signature = GraphSignature({"x": ports["x"]}, {"y": ports["y"]})
    function = SavedGraphFunction("f", signature, {"y": y}, [], {}, {})
    assert function({}, x=[1, 2, 3])["y"].tolist() == [1.0, 2.0, 3.0]


def write_graph(folder: Path, *nodes: bytes, output: str, functions: bytes = b"") -> None:
    """Writes a SavedModel with the signature f, whose output y is a tensor of these nodes."""
    signature = bytes_field(1, by_hand.map_entry("x", bytes_field(1, "x:0")))
    signature += bytes_field(2, by_hand.map_entry("y", bytes_field(1, output)))
    graph = b"".join(bytes_field(1, node) for node in nodes) + bytes_field(2, functions)
    whole = bytes_field(2, graph) + bytes_field(5, by_hand.map_entry("f", signature))
    (folder / "saved_model.pb").write_bytes(bytes_field(2, whole))


@pytest.mark.parametrize("dtype", [99, 20])
def test_casts_that_jax_cannot_do_are_told(tmp_path: Path, dtype: int) -> None:
    cast = by_hand.node("cast", "Cast", ["x"], {"DstT": varint_field(6, dtype)})
    write_graph(tmp_path, cast, by_hand.Call(b"", name="unused").node(), output="cast:0")
    with pytest.raises(FileFormatError, match="f: it needs a cast, whose dtype is"):
        load(tmp_path)


def test_functions_that_call_each_other_twice(tmp_path: Path) -> None:
    module = export(lambda x: jnp.sin(x) + 1, platforms=["cpu"])(X).module.data
    body = by_hand.Call(module, name="module").node()

    def save(count: int) -> None:
        functions = by_hand.doubling(count, body, returned="module:output:0")
        write_graph(
            tmp_path, by_hand.node("n", f"f{count}", ["x"]), output="n:0", functions=functions
        )

    save(2)
    expected = X
    for _ in range(4):
        expected = np.sin(expected) + 1
    np.testing.assert_allclose(load(tmp_path).f(x=X)["y"], expected, rtol=1e-5)
    save(40)
    with pytest.raises(FileFormatError, match="f: it calls more than 2,000 modules"):
        load(tmp_path)


def test_constants_are_read_once_and_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = export(jnp.add, platforms=["cpu"])(X, X).module.data
    call = by_hand.Call(module, name="sum", inputs=["k", "k"]).node()
    write_graph(tmp_path, call, by_hand.constant("k", X.shape), output="sum:0")
    monkeypatch.setattr("jax2tf_bridge.loading._graph_models._MAX_CONSTANT_BYTES", X.nbytes)
    assert list(load(tmp_path).functions) == ["f"]
    monkeypatch.setattr("jax2tf_bridge.loading._graph_models._MAX_CONSTANT_BYTES", X.nbytes - 1)
    with pytest.raises(FileFormatError, match="k and other constants take more than 47 bytes"):
        load(tmp_path)


def test_a_module_that_takes_its_own_result(tmp_path: Path) -> None:
    module = export(jnp.sin, platforms=["cpu"])(X).module.data
    write_graph(tmp_path, by_hand.Call(module, name="n", inputs=["n"]).node(), output="n:0")
    with pytest.raises(FileFormatError, match="operations depend on themselves"):
        load(tmp_path)


def test_without_saved_gradients_the_error_says_how_to_save_them(tmp_path: Path) -> None:
    module = tf.Module()
    module.f = tf.function(
        convert(jnp.sin), input_signature=[tf.TensorSpec([3], tf.float32, "x")], autograph=False
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(tmp_path / "1"), options=options)
    model = load(tmp_path / "1")
    with pytest.raises(GradientError, match="experimental_custom_gradients=True"):
        jax.grad(lambda x: model.serving_default(x=x)["output_0"].sum())(X[0])


def test_what_tensorflow_does_beside_it_is_named(tmp_path: Path) -> None:
    def with_log(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: {"y": tf.math.log(call(*args)["y"])}

    function = convert(dense, polymorphic_shapes=SHAPES)
    save_as_others_do(tmp_path / "1", function, *SPECS, around=with_log)
    with pytest.raises(FileFormatError, match=r"needs the operation Log \(Log in the function"):
        load(tmp_path / "1")


def test_other_signatures_still_work(tmp_path: Path) -> None:
    module = tf.Module()
    module.f = tf.function(convert(jnp.sin), autograph=False)
    spec = tf.TensorSpec([3], tf.float32, "x")
    after = tf.function(lambda x: tf.sort(module.f(x)), autograph=False)
    labelled = tf.function(
        lambda x: {"y": module.f(x), "labels": tf.constant(["a", "b"])}, autograph=False
    )
    signatures = {
        "sine": module.f.get_concrete_function(spec),
        "sorted": after.get_concrete_function(spec),
        "labelled": labelled.get_concrete_function(spec),
    }
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=signatures)
    model = load(tmp_path / "1")
    np.testing.assert_allclose(model.sine(x=X[0])["output_0"], np.sin(X[0]), rtol=1e-6)
    assert sorted(model.problems) == ["labelled", "sorted"]
    text = "needs the constant Const, whose dtype is string, and JAX has no such arrays"
    assert text in model.problems["labelled"]
    with pytest.raises(AttributeError, match="sorted cannot run in JAX alone: it needs the op"):
        _ = model.sorted
    assert all(f"not in JAX: {name}: it needs" in repr(model) for name in model.problems)


def test_a_model_of_tensorflow_alone_holds_no_jax_function(tmp_path: Path) -> None:
    module = tf.Module()
    module.f = tf.function(tf.sin, input_signature=[tf.TensorSpec([3], tf.float32)])
    tf.saved_model.save(module, str(tmp_path / "1"))
    with pytest.raises(FileFormatError, match="holds no JAX function: none of its"):
        load(tmp_path / "1")


def test_a_model_without_signatures_says_so(tmp_path: Path) -> None:
    module = tf.Module()
    module.f = tf.function(convert(jnp.sin), autograph=False)
    module.f.get_concrete_function(tf.TensorSpec([3], tf.float32))
    module.g = tf.function(convert(jnp.cos), autograph=False)
    module.g.get_concrete_function(tf.TensorSpec([3], tf.float32))
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={})
    with pytest.raises(FileFormatError, match="has no signatures"):
        load(tmp_path / "1")


@pytest.mark.parametrize("shape", [(1,) * 100, (2**62, 2**62, 0)])
def test_a_variable_of_a_shape_that_numpy_lacks_is_told(shape: tuple[int, ...]) -> None:
    data = b"" if 0 in shape else bytes(4)
    with pytest.raises(FileFormatError, match=r"The variable w is float32\[.*NumPy has no"):
        make_jax_array(data, Aval(shape, "float32"), "The variable w")


def test_a_missing_file_of_variables_is_told(tmp_path: Path) -> None:
    function = convert(lambda params, x: x @ params["w"])
    folder = save_as_others_do(tmp_path / "1", function, tf.TensorSpec([4, 3], tf.float32, "x"))
    (folder / "variables" / "variables.index").unlink()
    with pytest.raises(FileFormatError, match="the variable 'params/w/"):
        load(folder)


def test_what_is_no_saved_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        load(tmp_path / "1")
    assert refused.value.filename == str(tmp_path / "1")
    assert refused.value.strerror == "does not exist; name the folder that holds saved_model.pb"
    with pytest.raises(FileFormatError, match=r"is not a SavedModel: it has no saved_model\.pb\."):
        load(tmp_path)


def test_damage_is_one_error(tmp_path: Path) -> None:
    function = convert(lambda params, x: x @ params["w"])
    folder = save_as_others_do(tmp_path / "1", function, tf.TensorSpec([4, 3], tf.float32, "x"))
    file = folder / "saved_model.pb"
    whole = file.read_bytes()
    generator = np.random.default_rng(0)
    told = 0
    for _ in range(150):
        data = bytearray(whole)
        for position in generator.integers(0, len(data), 3):
            data[position] = generator.integers(256)
        file.write_bytes(data[: generator.integers(len(data))] if told % 2 else data)
        try:
            load(folder)
        except FileFormatError:
            told += 1
    assert told > 50
    file.write_bytes(whole)
    assert load(folder).serving_default(x=X)


def test_models_that_jax2tf_saved(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax2tf is deprecated
        jax2tf = pytest.importorskip("jax.experimental.jax2tf")
        function = jax2tf.convert(lambda params, x: jnp.sin(x @ params["w"]))
        try:
            folder = save_as_others_do(
                tmp_path / "1", function, tf.TensorSpec([4, 3], tf.float32, "x")
            )
        except Exception as e:
            pytest.skip(f"jax2tf fails on this pair of releases: {e}")
    model = load(folder)
    function = model.functions["serving_default"]
    (found,) = function(model.params, x=X).values()
    np.testing.assert_allclose(found, np.sin(X @ W), rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda p: function(p, x=X)["output_0"].sum())(model.params)
    expected = jax.grad(lambda w: jnp.sin(X @ w).sum())(W)
    np.testing.assert_allclose(gradient["params/w"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("index", [-1, 1])
def test_a_captured_object_that_is_not_there(index: int) -> None:
    concrete = bytes_field(1, "f") + bytes_field(2, varint_field(2, index))
    objects = bytes_field(1, b"") + bytes_field(2, concrete)
    graph = MetaGraph(ProtoMessage(bytes_field(7, objects), "a graph", "saved_model.pb"))
    with pytest.raises(
        FileFormatError,
        match=rf"saved_model\.pb .* in a concrete function, at byte 11, it names the object {index}"
        " of 1",
    ):
        graph.captures("f")
