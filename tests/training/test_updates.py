"""Signatures that change weights, in one process with JAX."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorflow as tf

from jax2tf_bridge import (
    Batching,
    KerasLayer,
    RowScorer,
    Signature,
    Target,
    assign_weights,
    export,
    inspect,
    load,
    publish,
    save,
    save_litert,
    verify,
)
from jax2tf_bridge.errors import BridgeError, DTypeError, SavingError, ShapeError, StructureError

# Private: compares a model with answers that it does not give.
from jax2tf_bridge.litert._checks import ask_tensorflow, check_answers
from jax2tf_bridge.saving import WeightSignature
from jax2tf_bridge.signatures import ServedArray
from tests.litert.running import interpreter
from tests.training.steps import TRAININGS

TRAINING = TRAININGS[1]
NAMES: list[WeightSignature] = ["get_weights", "set_weights", "reset_weights"]
X = np.ones((4, 3), np.float32)
PARAMS = {"w": np.ones((3, 2), np.float32), "calls": np.int32(0)}


def save_step(path: Path, step: Callable[..., Any], **options: Any) -> Any:
    """Saves a step of PARAMS and X."""
    options = {"params": PARAMS, **options}
    signature = Signature(step, args=[X], polymorphic_shapes="(b, 3)", updates_params=True)
    return save(path, {"step": signature}, **options)


def count(params: Any, x: Any) -> Any:
    """Returns a product, and the number of calls so far as the only new value."""
    return x @ params["w"], {"calls": params["calls"] + 1}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root") / "model"
    publish(
        root,
        TRAINING.signatures(),
        params=TRAINING.state,
        trainable=["params"],
        weight_signatures=NAMES,
    )
    return root


def train_in_jax(steps: int) -> Any:
    state, step = TRAINING.state, jax.jit(TRAINING.train)
    for _ in range(steps):
        _, state = step(state, TRAINING.x, TRAINING.y)
    return state


def assert_predicts_like(model: Any, state: Any) -> None:
    np.testing.assert_allclose(
        model.signatures["predict"](x=tf.constant(TRAINING.x))["output_0"],
        TRAINING.predict(state, TRAINING.x),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.costly
def test_signatures_share_what_a_step_changes(root: Path) -> None:
    model = tf.saved_model.load(str(root / "1"))
    assert_predicts_like(model, TRAINING.state)
    model.signatures["train"](x=tf.constant(TRAINING.x), y=tf.constant(TRAINING.y))
    model.train(TRAINING.x, TRAINING.y)  # the method does the same
    assert_predicts_like(model, train_in_jax(2))
    assert len(model.trainable_variables) == 3
    checkpoint = tf.train.Checkpoint(model=model).save(root.parent / "checkpoint")
    other = tf.saved_model.load(str(root / "1"))
    assert_predicts_like(other, TRAINING.state)
    tf.train.Checkpoint(model=other).restore(checkpoint).assert_consumed()
    assert_predicts_like(other, train_in_jax(2))


def test_weights_are_read_replaced_and_reset(root: Path) -> None:
    model = tf.saved_model.load(str(root / "1"))
    before = model.signatures["get_weights"]()
    model.train(TRAINING.x, TRAINING.y)
    after = model.signatures["get_weights"]()
    assert len(before) == len(jax.tree_util.tree_leaves(TRAINING.state))
    assert model.signatures["set_weights"](**before)["count"] == len(before)
    assert_predicts_like(model, TRAINING.state)
    model.signatures["set_weights"](**after)
    assert_predicts_like(model, train_in_jax(1))
    model.signatures["reset_weights"]()
    assert_predicts_like(model, TRAINING.state)


def test_new_weights_are_published_and_are_those_of_a_reset(root: Path) -> None:
    state = train_in_jax(3)
    version = publish(root, params=state)
    model = tf.saved_model.load(str(version.path))
    assert_predicts_like(model, state)
    model.train(TRAINING.x, TRAINING.y)
    model.signatures["reset_weights"]()
    assert_predicts_like(model, state)


@pytest.mark.costly
def test_in_jax_the_function_stays_pure(root: Path) -> None:
    model = load(root / "1")
    outputs, state = model.functions["train"](model.params, TRAINING.x, TRAINING.y)
    expected, new = TRAINING.train(TRAINING.state, TRAINING.x, TRAINING.y)
    np.testing.assert_allclose(outputs["loss"], expected["loss"], rtol=1e-6)
    for actual, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
    named = model.signatures["train"](x=TRAINING.x, y=TRAINING.y)
    assert list(named) == ["loss"]


@pytest.mark.costly
def test_equinox_modules_are_the_params(tmp_path: Path) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    optimizer = optax.sgd(0.1, momentum=0.9)
    arrays, rest = eqx.partition(eqx.nn.MLP(4, 1, 8, 1, key=jax.random.key(0)), eqx.is_array)

    def train(state: Any, x: Any, y: Any) -> Any:
        def compute_loss(arrays: Any) -> Any:
            return jnp.mean((jax.vmap(eqx.combine(arrays, rest))(x) - y) ** 2)

        loss, gradients = jax.value_and_grad(compute_loss)(state["model"])
        updates, optimizer_state = optimizer.update(gradients, state["optimizer"])
        return {"loss": loss}, {
            "model": eqx.apply_updates(state["model"], updates),
            "optimizer": optimizer_state,
        }

    state = {"model": arrays, "optimizer": optimizer.init(arrays)}
    x, y = TRAINING.x, TRAINING.y
    save(tmp_path / "m", Signature(train, args=[x, y], updates_params=True), params=state)
    model = tf.saved_model.load(str(tmp_path / "m"))
    for _ in range(3):
        outputs, state = train(state, x, y)
        np.testing.assert_allclose(model(x, y)["loss"], outputs["loss"], rtol=1e-5)
    assert "model/layers/0/weight" in {v.name.partition(":")[0] for v in model.variables}


@pytest.mark.costly
def test_verify_compares_the_new_weights(root: Path) -> None:
    report = verify(
        root / "1", TRAINING.train, signature="train", params_like=TRAINING.state, samples=2
    )
    assert report.ok, report
    names = [difference.name for difference in report.differences]
    assert "new params['params']['out']" in names

    def wrong(state: Any, x: Any, y: Any) -> Any:
        outputs, new = TRAINING.train(state, x, y)
        return outputs, {**new, "params": jax.tree.map(lambda w: w * 1.01, new["params"])}

    assert not verify(
        root / "1", wrong, signature="train", params_like=TRAINING.state, samples=1
    ).ok


def test_what_is_said_of_such_a_model(root: Path, tmp_path: Path) -> None:
    text = str(inspect(root / "1"))
    assert (
        "signature train(x: float32[b,4], y: float32[b,1]) -> (loss: float32[]); changes 11" in text
    )
    assert "no gradient" not in text
    saved = save_step(tmp_path / "m", count, buckets={"b": [2, 4]})
    assert "    changes weights: calls\n" in str(saved)
    assert "because of step: each request changes weights" in str(saved.serving)
    assert "Requests for step change the weights of the server that answers them" in str(
        saved.serving
    )
    assert not (tmp_path / "m" / "assets.extra" / "tf_serving_warmup_requests").exists()
    with pytest.raises(BridgeError, match="a Keras layer's are changed by Keras's optimizer"):
        KerasLayer(tmp_path / "m", signature="step")


@pytest.mark.parametrize("target", [None, Target.widest(xla=False)], ids=["XLA", "operations"])
def test_concurrent_calls_do_not_interleave(tmp_path: Path, target: Target | None) -> None:
    def add(params: Any, x: Any) -> Any:
        return x.sum() * 0 + params["calls"], {"calls": params["calls"] + 1}

    save_step(tmp_path / "m", add, target=target)
    model = tf.saved_model.load(str(tmp_path / "m"))
    results: list[int] = []

    def call() -> None:
        for _ in range(25):
            results.append(int(model.signatures["step"](x=tf.constant(X))["output_0"]))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(200))
    assert model.params["calls"].numpy() == 200


@pytest.mark.parametrize("target", [None, Target.widest(xla=False)], ids=["XLA", "operations"])
def test_a_failed_call_changes_nothing(tmp_path: Path, target: Target | None) -> None:
    def step(params: Any, x: Any) -> Any:
        return x, {"w": params["w"] + x.sum(), "calls": params["calls"] + 1}

    signature = Signature(
        step,
        args=[X],
        polymorphic_shapes="(b, 3)",
        polymorphic_constraints=["b >= 2"],
        updates_params=True,
    )
    save(tmp_path / "m", signature, params=PARAMS, target=target)
    model = tf.saved_model.load(str(tmp_path / "m"))
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.signatures["serving_default"](x=tf.ones((1, 3)))
    np.testing.assert_array_equal(model.params["w"], PARAMS["w"])
    model(tf.ones((2, 3)))  # the lock is free again
    assert model.params["calls"].numpy() == 1


@pytest.mark.costly
def test_padded_calls_and_gradients(tmp_path: Path) -> None:
    saved = save_step(tmp_path / "m", count, buckets={"b": [2, 4]}, vjp_order=1)
    assert saved.signatures["step"].updates == ("calls",)
    model = tf.saved_model.load(str(tmp_path / "m"))
    for rows in (1, 2, 3, 5):
        assert model.step(tf.ones((rows, 3))).shape == (rows, 2)
    assert model.params["calls"].numpy() == 4
    with tf.GradientTape() as tape:
        result = model.step(tf.ones((2, 3)))
    np.testing.assert_array_equal(tape.gradient(result, model.params["w"]), np.full((3, 2), 2.0))


@pytest.mark.slow
def test_litert_keeps_keys_and_half_floats(tmp_path: Path) -> None:
    def draw(params: Any, x: Any) -> Any:
        key, own = jax.random.split(params["key"])
        total = params["unused"] + x.sum().astype(jnp.bfloat16)
        return jax.random.uniform(own, (3,)), {"key": key, "unused": total}

    params = {"key": jax.random.key(0), "unused": jnp.bfloat16(0)}
    signature = Signature(draw, args=[X], polymorphic_shapes="(b, 3)", updates_params=True)
    written = save_litert(tmp_path / "m.tflite", signature, params=params)
    assert list(written.signatures) == ["serving_default", "get_weights", "set_weights"]
    runner = interpreter(written.path)
    state: Any = params
    for _ in range(3):
        expected, state = draw(state, X)
        (actual,) = runner.get_signature_runner("serving_default")(x=X).values()
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    weights = runner.get_signature_runner("get_weights")()
    np.testing.assert_array_equal(weights["key"].view(np.uint32), jax.random.key_data(state["key"]))
    assert weights["unused"] == np.float32(state["unused"])
    # get_weights has an unused input of this name while it is converted.
    assert runner.get_signature_runner("set_weights")(**weights)["count"] == 2
    save(tmp_path / "m", signature, params=params, target=Target.widest(xla=False))
    with pytest.raises(
        SavingError, match=r"LiteRT has no variables of uint32, such as params.'key"
    ):
        save_litert(tmp_path / "n.tflite", tmp_path / "m")


def test_keys_are_assigned_and_checkpointed(tmp_path: Path) -> None:
    def draw(params: Any, x: Any) -> Any:
        key, own = jax.random.split(params["key"])
        return x + jax.random.uniform(own, (3,)), {"key": key}

    save_step(tmp_path / "m", draw, params={"key": jax.random.key(0)})
    model = tf.saved_model.load(str(tmp_path / "m"))
    model.step(X)
    state: Any = {"key": jax.random.key(7)}
    assert assign_weights(model, state).assigned == {"key": "key"}
    for number in range(3):
        expected, state = draw(state, X)
        np.testing.assert_allclose(model.step(X), expected, rtol=1e-6)
        if number == 0:
            checkpoint = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
            expected_next, _ = draw(state, X)
    tf.train.Checkpoint(model=model).restore(checkpoint).assert_consumed()
    np.testing.assert_allclose(model.step(X), expected_next, rtol=1e-6)


@pytest.mark.slow
def test_litert_runs_the_steps_of_a_saved_model(tmp_path: Path) -> None:
    save_step(tmp_path / "m", count)  # with a lock, which LiteRT does not have
    written = save_litert(tmp_path / "m.tflite", tmp_path / "m")
    assert list(written.signatures) == ["step"]
    with pytest.raises(SavingError, match="weight_signatures are for functions"):
        save_litert(tmp_path / "n.tflite", tmp_path / "m", weight_signatures=["get_weights"])
    step = interpreter(written.path).get_signature_runner("step")
    for _ in range(2):
        np.testing.assert_array_equal(step(x=X)["output_0"], np.full((4, 2), 3.0))


ERRORS: dict[str, tuple[Callable[..., Any], dict[str, Any], type[Exception], str]] = {
    "no pair": (
        lambda p, x: x,
        {},
        SavingError,
        "must return the tuple (outputs, params) with the new weights. <lambda> returns *, where",
    ),
    "unknown weight": (
        lambda p, x: (x, {"v": p["w"]}),
        {},
        StructureError,
        "params['v'] is not a weight: did you mean params['w']",
    ),
    "no outputs": (
        lambda p, x: (None, p),
        {},
        SavingError,
        "The signature step has no outputs, so TensorFlow Serving and LiteRT would not run it",
    ),
    "no weight": (lambda p, x: (x, {}), {}, StructureError, "<lambda>: it returns none."),
    "shape": (
        lambda p, x: (x, {"w": p["w"][:2]}),
        {},
        ShapeError,
        "params['w'] is float32[3,2], and its new value float32[2,2]",
    ),
    "dtype": (
        lambda p, x: (x, {"w": p["w"].astype(jnp.bfloat16)}),
        {},
        DTypeError,
        "params['w'] is float32[3,2], and its new value bfloat16[3,2]",
    ),
    "words of a key": (
        lambda p, x: (x, {"key": jax.random.key_data(p["key"])}),
        {"params": {"key": jax.random.key(0)}},
        DTypeError,
        "params['key'] is key<fry>[], and its new value uint32[2]: return the key itself, without "
        "jax.random.key_data",
    ),
    "key for words": (
        lambda p, x: (x, {"key": jax.random.wrap_key_data(p["key"])}),
        {"params": {"key": jax.random.PRNGKey(0)}},
        DTypeError,
        "params['key'] is uint32[2], and its new value key<fry>[]: return its words, "
        "jax.random.key_data(key), or make the weight a key (jax.random.key)",
    ),
    "converters": (
        count,
        {"target": Target.converters()},
        SavingError,
        "its target is that of ONNX and OpenVINO, whose models cannot change their weights",
    ),
    "no params": (lambda x: (x, x), {"params": None}, SavingError, "its function takes no params"),
    "batching": (
        count,
        {"buckets": {"b": [2]}, "batching": Batching()},
        SavingError,
        "step: each request changes weights",
    ),
    "precompile": (
        count,
        {"buckets": {"b": [2]}, "precompile": True},
        SavingError,
        "running a signature that changes weights would change them",
    ),
    "unknown signature": (
        count,
        {"weight_signatures": ["get_weight"]},
        SavingError,
        "weight_signatures has 'get_weight': did you mean 'get_weights'",
    ),
    "one name": (
        count,
        {"weight_signatures": "get_weights"},
        SavingError,
        "weight_signatures must be a list of get_weights, set_weights, reset_weights",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(tmp_path: Path, case: str) -> None:
    step, options, error, text = ERRORS[case]
    with pytest.raises(error) as caught:
        save_step(tmp_path / "m", step, **options)
    assert text in str(caught.value)


def test_other_containers_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    class Weights(NamedTuple):
        w: Any

    update = export(lambda p, x: (x @ p.w, Weights(p.w * 2)))(Weights(PARAMS["w"]), X)
    read = export(lambda p, x: x @ p["w"])({"w": PARAMS["w"]}, X)
    with pytest.raises(SavingError, match="Export all of them with the same"):
        save(
            tmp_path / "m",
            {"read": read, "update": Signature(update, updates_params=True)},
            params={"w": PARAMS["w"]},
        )


def list_locks(signature: Any) -> set[str]:
    """Lists the locks that a signature takes, without the parts of this model and this load."""
    definition = signature.graph.as_graph_def()
    bodies = [definition.node, *(f.node_def for f in definition.library.function)]
    names = [n.attr["shared_name"].s.decode() for b in bodies for n in b if n.op == "MutexV2"]
    return {name.rpartition("/")[2].partition("_")[0] for name in names}


def test_readers_do_not_wait_for_a_step(root: Path) -> None:
    model = tf.saved_model.load(str(root / "1"))
    assert list_locks(model.signatures["predict"]) == {"weights"}
    assert list_locks(model.signatures["get_weights"]) == {"weights"}
    for name in ("train", "set_weights", "reset_weights"):
        assert list_locks(model.signatures[name]) == {"updates", "weights"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint64", "float16"])
def test_litert_changes_weights_of_dtypes_that_it_lacks(tmp_path: Path, dtype: str) -> None:
    params = {"w": np.array([1, 2, 3], dtype)}
    step = Signature(
        lambda p, x: (x.sum(), {"w": p["w"] + 1}),
        args=[np.ones(2, np.float32)],
        updates_params=True,
    )
    written = save_litert(tmp_path / "m.tflite", step, params=params)
    runner = interpreter(written.path)
    for _ in range(2):
        runner.get_signature_runner("serving_default")(x=np.ones(2, np.float32))
    weights = runner.get_signature_runner("get_weights")()["w"]
    np.testing.assert_array_equal(weights.astype(dtype), params["w"] + 2)


@pytest.mark.slow
def test_many_weights_are_counted(root: Path, tmp_path: Path) -> None:
    written = save_litert(
        tmp_path / "m.tflite", TRAINING.signatures(), params=TRAINING.state, verify=False
    )
    saved = save(
        tmp_path / "m", TRAINING.signatures(), params=TRAINING.state, weight_signatures=NAMES
    )
    leaves = jax.tree.leaves(TRAINING.state)
    weights = f"{len(leaves)} weights, {sum(np.asarray(leaf).nbytes for leaf in leaves)} bytes"
    for text in (str(written), str(saved)):
        assert f"  get_weights() -> ({weights})\n" in text
        assert f"  set_weights({weights}) -> (count: int32[])\n" in text
    assert "  reset_weights() -> (count: int32[])\n" in str(saved)


def test_names_of_weights_that_are_names_stay(tmp_path: Path) -> None:
    params = {"a": {"b": np.float32(1)}, "a_b": np.float32(2)}
    step = Signature(lambda p, x: (x, p), args=[X], updates_params=True)
    saved = save(tmp_path / "m", step, params=params, weight_signatures=["get_weights"])
    assert list(saved.signatures["get_weights"].outputs) == ["a_b_1", "a_b"]
    model = tf.saved_model.load(str(tmp_path / "m"))
    weights = {n: float(v) for n, v in model.signatures["get_weights"]().items()}
    assert weights == {"a_b": 2, "a_b_1": 1}


@pytest.mark.costly
def test_verify_compares_the_gradients_of_a_step(tmp_path: Path) -> None:
    def step(params: Any, x: Any) -> Any:
        return (x @ params["w"]).sum(), {"w": params["w"] - x.mean()}

    save_step(tmp_path / "m", step, params={"w": PARAMS["w"]}, vjp_order=1)
    report = verify(tmp_path / "m", step, signature="step", samples=2, rounds=1)
    assert report.ok, report
    assert report.has_gradients


def test_rows_are_not_scored_by_a_step(tmp_path: Path) -> None:
    save_step(tmp_path / "m", count)
    with pytest.raises(BridgeError, match=r"step of .* changes weights, so scores would depend"):
        RowScorer(tmp_path / "m", signature="step")


def test_weight_signatures_need_a_step(tmp_path: Path) -> None:
    with pytest.raises(SavingError, match=r"no signature changes weights\. Leave it out"):
        save(
            tmp_path / "m",
            Signature(lambda p, x: x @ p["w"], args=[X]),
            params=PARAMS,
            weight_signatures=["get_weights"],
        )


@pytest.mark.slow
def test_litert_takes_steps_that_divide_noise(tmp_path: Path) -> None:
    """Without a gradient, Adam divides rounding noise by itself: any sign is right."""
    training = TRAININGS[2]
    optimizer = optax.adam(0.1)

    def train(state: Any, x: Any, y: Any) -> Any:
        def compute_loss(bias: Any) -> Any:
            z = x.reshape(x.shape[0], -1) + bias
            z = (z - z.mean(0)) / jnp.sqrt(z.var(0) + 1e-3)
            return jnp.mean(z**3) + 0 * y.sum()

        loss, gradient = jax.value_and_grad(compute_loss)(state["bias"])
        updates, new = optimizer.update(gradient, state["optimizer"])
        return {"loss": loss}, {"bias": state["bias"] + updates, "optimizer": new}

    bias = np.zeros(36, np.float32)
    step = Signature(train, args=[training.x, training.y], updates_params=True)
    params = {"bias": bias, "optimizer": optimizer.init(bias)}
    written = save_litert(tmp_path / "m.tflite", {"train": step}, params=params)
    assert list(written.signatures) == ["train", "get_weights", "set_weights"]


@pytest.mark.slow
def test_what_a_model_learned_is_published(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "served"
    publish(place, TRAINING.signatures(), params=TRAINING.state, weight_signatures=["get_weights"])
    model = tf.saved_model.load(str(place / "1"))
    model.train(TRAINING.x, TRAINING.y)
    learned = model.signatures["get_weights"]()
    assert publish(place, params=learned).version == 2
    assert_predicts_like(tf.saved_model.load(str(place / "2")), train_in_jax(1))
    written = save_litert(tmp_path / "m.tflite", TRAINING.signatures(), params=TRAINING.state)
    runner = interpreter(written.path)
    for _ in range(2):
        runner.get_signature_runner("train")(x=TRAINING.x, y=TRAINING.y)
    publish(place, params=runner.get_signature_runner("get_weights")())
    assert_predicts_like(tf.saved_model.load(str(place / "3")), train_in_jax(2))


def test_a_forgotten_option_is_noted(tmp_path: Path) -> None:
    saved = save(
        tmp_path / "m",
        Signature(lambda p, x: (x @ p["w"], p), args=[X], takes_params=True),
        params=PARAMS,
    )
    assert "serving_default returns values in the structure of the weights, as outputs" in str(
        saved
    )


@pytest.mark.slow
def test_litert_quantizes_what_a_step_does_not_compute(tmp_path: Path) -> None:
    x, y = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 2, 32)
    params = {"w": np.linspace(-1, 1, 1024, dtype=np.float32).reshape(32, 32)}

    def train(params: Any, x: Any, y: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] - y) ** 2))(params)
        return {"loss": loss}, {"w": params["w"] - 1e-3 * gradient["w"]}

    signatures = {
        "predict": Signature(lambda p, x: x @ p["w"], args=[x]),
        "train": Signature(train, args=[x, y], updates_params=True),
    }

    def write(signatures: Any, **options: Any) -> Any:
        path = tmp_path / "m.tflite"
        return save_litert(path, signatures, quantize="int8", overwrite=True, **options)

    written = write(signatures, params=params, representative_data=[x, -x])
    assert [str(written.signatures[name]) for name in ("predict", "get_weights")] == [
        "(x: float32[2,32]) -> (output_0: float32[2,32])",
        "() -> (w: float32[32,32])",
    ]
    runner = interpreter(written.path)
    (before,) = runner.get_signature_runner("predict")(x=x).values()
    assert 0 < np.abs(before - x @ params["w"]).max() < 0.3
    assert len(np.unique(before)) < 64  # integers of 8 bits
    runner.get_signature_runner("train")(x=x, y=y)
    _, expected = train(params, x, y)
    weights = runner.get_signature_runner("get_weights")()
    np.testing.assert_allclose(weights["w"], expected["w"], rtol=1e-6)
    assert runner.get_signature_runner("set_weights")(w=-params["w"])["count"] == 1
    (after,) = runner.get_signature_runner("predict")(x=x).values()
    np.testing.assert_allclose(after, -x @ params["w"], atol=0.5)

    data: Any
    for data, text in (
        ({"predict": [x], "train": [(x, y)]}, "signature train, which changes weights and so"),
        ({"predict": [x], "set_weights": [params]}, "set_weights, which reads or replaces"),
    ):
        with pytest.raises(SavingError, match=text):
            write(signatures, params=params, representative_data=data)
    with pytest.raises(SavingError, match="All signatures of the model change weights or read"):
        write({"train": signatures["train"]}, params=params, representative_data=[(x, y)])
    save(tmp_path / "m", signatures, params=params, weight_signatures=["get_weights"])
    with pytest.raises(SavingError, match="get_weights has no inputs, and TensorFlow's converter"):
        write(tmp_path / "m", representative_data=[x])


@pytest.mark.slow
def test_litert_compares_the_weights_after_a_step(tmp_path: Path) -> None:
    """An update that only LiteRT leaves out is found, though it is small beside the weight."""
    rate = np.float32(1e-4)
    step = Signature(
        lambda p, x: (x.sum(), {"w": p["w"] + rate * x.mean()}), args=[X], updates_params=True
    )
    save(
        tmp_path / "m",
        {"step": step},
        params=PARAMS,
        weight_signatures=["get_weights"],
        target=Target.widest(xla=False),
    )
    steps = ["step"]
    signatures = {
        name: (Signature(None), {"x": ServedArray("float32", (4, 3))} if name == "step" else {})
        for name in ("step", "get_weights")
    }
    answers = ask_tensorflow(tmp_path / "m", signatures, steps)
    data = Path(save_litert(tmp_path / "m.tflite", tmp_path / "m").path).read_bytes()
    check_answers(data, answers, steps, lambda *_: (), is_quantized=False)
    before = {"w": np.ones((3, 2), np.float32)}
    wrong = {**answers, "get_weights": replace(answers["get_weights"], outputs=before)}
    with pytest.raises(SavingError, match=r"get_weights does not compute .*\n  - w differs by"):
        check_answers(data, wrong, steps, lambda *_: (), is_quantized=False)
