"""Models that join the requests of concurrent callers themselves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import (
    Batching,
    Padding,
    Processing,
    Signature,
    Target,
    inspect,
    load,
    publish,
    save,
    verify,
)
from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.saved_model import SIDECAR, read_saved_model

# Private: the calls of serve-check, which needs an environment of its own to run them.
from jax2tf_bridge.serve_checking._calls import list_calls

W = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
X = np.ones((2, 3), np.float32)
CALLERS = 8
LONG = 60_000_000
"""Microseconds that a request waits for others; no test takes as long."""


def dense(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


DENSE = Signature(dense, args=[X], polymorphic_shapes="(b, 3)")


def draw(seed: int, rows: int) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)


def call_at_once(call: Callable[[int], None], callers: int = CALLERS) -> float:
    """Calls a function in several threads; returns the seconds, or raises the first error."""
    barrier, errors = threading.Barrier(callers), list[BaseException]()

    def run(caller: int) -> None:
        barrier.wait()
        try:
            call(caller)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(caller,)) for caller in range(callers)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.monotonic() - start


def check_answer(signature: Any, x: Any, w: Any = W) -> None:
    answer = signature(x=tf.constant(x))["output_0"].numpy()
    np.testing.assert_allclose(answer, np.tanh(x @ w), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose requests wait a minute, unless they fill a batch."""
    path = tmp_path_factory.mktemp("batching") / "1"
    batching = Batching(batch_timeout_micros=LONG)
    save(path, DENSE, params=W, buckets={"b": [CALLERS]}, batching=batching)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return tf.saved_model.load(str(folder))


@pytest.mark.costly
def test_each_caller_gets_its_own_rows(model: Any) -> None:
    signature = model.signatures["serving_default"]

    def call(caller: int) -> None:
        for turn in range(5):
            check_answer(signature, draw(100 * caller + turn, 1))

    # A request that is not joined waits for a minute.
    assert call_at_once(call) < LONG / 1e6


def test_requests_that_run_alone(model: Any) -> None:
    signature = model.signatures["serving_default"]
    start = time.monotonic()
    for rows in (0, CALLERS, CALLERS + 1, 3 * CALLERS):
        check_answer(signature, draw(rows, rows))
    np.testing.assert_allclose(model(X), np.tanh(X @ W), rtol=1e-4)
    assert time.monotonic() - start < LONG / 1e6


def test_a_signature_has_no_gradient_and_its_method_has_one(model: Any) -> None:
    x = tf.ones((CALLERS, 3))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model.serving_default(x)
    assert tape.gradient(y, x) is not None
    message = (
        "The signature serving_default joins the requests of several callers, so it has no "
        "gradient. Call the method serving_default of the loaded model, which has a gradient."
    )
    signature = model.signatures["serving_default"]
    with tf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(LookupError, match=message):
            signature(x=x)


def two(w: Any, x: Any, scale: Any) -> Any:
    return {"sum": (x @ w) * scale[:, None], "ids": scale.astype(jnp.int32)}


@pytest.mark.costly
def test_an_error_of_one_caller_is_not_an_error_of_others(tmp_path: Path) -> None:
    save(
        tmp_path / "m",
        Signature(two, args=[X, X[:, 0]], polymorphic_shapes=["(b, 3)", "(b,)"]),
        params=W,
        buckets={"b": [4, 32]},
        batching=Batching(num_batch_threads=2, batch_timeout_micros=2000),
        target=Target.widest(xla=False),
    )
    signature = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
    x = tf.ones((2, 3))
    signature(x=x, scale=tf.ones(2))
    wrong = [
        (
            {"x": tf.ones((2, 4)), "scale": tf.ones(2)},
            r"not compatible with expected shape \[\?,3\]",
        ),
        ({"x": x, "scale": tf.ones(3)}, r"scale: expected shape \(b,\), got\] \[3\]"),
        ({"x": x, "scale": tf.ones((2, 1))}, r"not compatible with expected shape \[\?\]"),
    ]

    def call(caller: int) -> None:
        for turn in range(3):
            if caller % 3 == 0:
                inputs, message = wrong[turn % 3]
                with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                    signature(**inputs)
                continue
            rows = draw(100 * caller + turn, 1 + caller % 5)
            scale = np.arange(len(rows), dtype=np.float32) + caller
            results = signature(x=tf.constant(rows), scale=tf.constant(scale))
            expected = (rows @ W) * scale[:, None]
            np.testing.assert_allclose(results["sum"], expected, rtol=1e-3, atol=1e-4)
            np.testing.assert_array_equal(results["ids"], scale.astype(np.int32))

    call_at_once(call)


@pytest.mark.costly
def test_two_versions_in_one_process_keep_apart(tmp_path: Path) -> None:
    other = W + 1
    batching = Batching(batch_timeout_micros=2000)
    publish(tmp_path, DENSE, params=W, buckets={"b": [8]}, batching=batching, vjp_order=0)
    publish(tmp_path, params=other)
    # The second version has the graph of the first.
    models = [tf.saved_model.load(str(tmp_path / version)) for version in ("1", "2", "1")]
    models[2].params["params"].assign(2 * W)
    weights = (W, other, 2 * W)
    # Callers that come first at once would instantiate each signature once a caller.
    for each, w in zip(models, weights, strict=True):
        check_answer(each.signatures["serving_default"], X, w)

    def call(caller: int) -> None:
        for turn in range(3):
            for each, w in zip(models, weights, strict=True):
                check_answer(each.signatures["serving_default"], draw(caller + turn, 2), w)

    call_at_once(call)


@pytest.mark.costly
def test_strings_go_in_and_labels_come_out(tmp_path: Path) -> None:
    kinds = tf.constant(["no", "yes"])
    save(
        tmp_path / "m",
        Signature(
            lambda x: {"score": x.sum(1)},
            args=[X],
            polymorphic_shapes="(b, 3)",
            processing=Processing(
                preprocess=lambda text: tf.reshape(
                    tf.strings.to_number(tf.strings.split(text, ",").to_tensor()), (-1, 3)
                ),
                inputs={"text": tf.TensorSpec([None], tf.string)},
                postprocess=lambda score: {"kind": tf.gather(kinds, tf.cast(score > 0, tf.int32))},
            ),
            example={"text": ["1,2,3"]},
        ),
        buckets={"b": [CALLERS]},
        batching=Batching(batch_timeout_micros=LONG),
    )
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    loaded.signatures["serving_default"](text=tf.constant(["1,2,3"] * CALLERS))

    def call(caller: int) -> None:
        sign = "-" if caller % 2 else ""
        if caller == 0:
            # Its own preprocess fails, before its request is joined.
            with pytest.raises(tf.errors.InvalidArgumentError, match="StringToNumberOp"):
                loaded.signatures["serving_default"](text=tf.constant(["one,2,3"]))
            sign = ""
        results = loaded.signatures["serving_default"](text=tf.constant([f"{sign}1,{sign}2,0"]))
        assert results["kind"].numpy().tolist() == [b"no" if sign else b"yes"]

    assert call_at_once(call) < LONG / 1e6
    assert loaded.serving_default(text=tf.constant(["1,1,1"]))["kind"].numpy().tolist() == [b"yes"]


def test_dtypes_that_batch_function_lacks(tmp_path: Path) -> None:
    x = np.array([[1.5], [-3], [0.25]], ml_dtypes.float8_e4m3fn)
    signature = Signature(lambda x: x + x, args=[x], polymorphic_shapes="(b, 1)")
    save(tmp_path / "m", signature, buckets={"b": [4]}, batching=Batching(), vjp_order=0)
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    results = loaded.signatures["serving_default"](x=tf.constant(x))["output_0"]
    np.testing.assert_array_equal(tf.cast(results, tf.float32), 2 * x.astype(np.float32))


def test_other_tools_ask_for_no_gradient(folder: Path) -> None:
    described = str(inspect(folder))
    assert "no gradient; buckets b 8; joins concurrent requests\n" in described
    assert "note: " not in described
    calls = list_calls(read_saved_model(folder))
    assert calls
    assert not any(call.gradients for call in calls)


@pytest.mark.costly
def test_what_is_said_of_the_model(tmp_path: Path) -> None:
    saved = save(
        tmp_path / "m",
        DENSE,
        params=W,
        buckets={"b": [1, 4]},
        batching=Batching(np.int64(2), 500, 64),  # type: ignore[arg-type]
        target=Target.widest(xla=False),
    )
    assert "    buckets b 1, 4; joins concurrent requests\n" in str(saved)
    assert saved.serving.batching is None
    assert not any("batching" in word for word in saved.serving.command)
    assert (
        "The model joins requests itself, so --enable_batching is left out: with it, requests "
        "would wait in two queues." in saved.serving.notes
    )
    stored = json.loads((tmp_path / "m" / SIDECAR).read_text())
    assert stored["signatures"]["serving_default"]["batching"] == {
        "num_batch_threads": 2,
        "batch_timeout_micros": 500,
        "max_enqueued_batches": 64,
    }
    described = str(inspect(tmp_path / "m"))
    assert "no gradient; buckets b 1, 4; joins concurrent requests\n" in described
    loaded = load(tmp_path / "m")
    np.testing.assert_allclose(loaded.serving_default(X), np.tanh(X @ W), rtol=1e-5)
    assert verify(tmp_path / "m", dense).ok


TEXT = Signature(
    lambda table, ids: (table[ids] * (ids > 0)[..., None]).sum(1),
    args=[np.ones((2, 5), np.int32)],
    polymorphic_shapes="(b, n)",
)


@pytest.mark.parametrize(
    ("signature", "options", "reason"),
    [
        (DENSE, {"buckets": None}, "it has no buckets. Give save buckets={...}, or leave out"),
        (
            {"a": DENSE, "b": Signature(dense, args=[X])},
            {},
            "of the signature b: it has no buckets. Give save buckets={...}, or leave out",
        ),
        (
            TEXT,
            {"buckets": {"b": [4], "n": [8]}},
            "requests choose the size n beside their rows, and TensorFlow fails where it joins "
            "different ones.",
        ),
        (
            Signature(
                lambda w, x, mask: x @ w - (x * mask[:, None]).sum(),
                args=[X, X[:, 0]],
                polymorphic_shapes=["(b, 3)", "(b,)"],
                padding=Padding(mask="mask"),
            ),
            {"oversize": "as is"},
            "a mask says which rows are real, so rows may influence each other.",
        ),
        (
            Signature(
                dense,
                args=[X],
                polymorphic_shapes="(b, 3)",
                padding=Padding(unchecked_padding=["b"]),
            ),
            {},
            "unchecked_padding names b, so the independence of rows was not checked.",
        ),
        (
            Signature(
                lambda w, x, t: x @ w / t,
                args=[X, np.float32(1)],
                polymorphic_shapes=["(b, 3)", None],
            ),
            {},
            "t: float32[] does not begin with a bucketed size.",
        ),
        (
            Signature(lambda w, x: x * 2, args=[X[:, :2]], polymorphic_shapes="(b, b)"),
            {"oversize": "as is"},
            "x: float32[b,b] has the number of rows twice.",
        ),
        (
            DENSE,
            {"target": Target.converters()},
            "converters do not know TensorFlow's BatchFunction.",
        ),
    ],
)
def test_requests_that_cannot_be_joined(
    tmp_path: Path, signature: Any, options: dict[str, Any], reason: str
) -> None:
    options = {"buckets": {"b": [4]}, "vjp_order": 0, **options}
    with pytest.raises(SavingError) as raised:
        save(tmp_path / "m", signature, params=W, batching=Batching(), **options)
    assert str(raised.value).startswith("batching cannot join the requests of the signature ")
    assert reason in str(raised.value)
    assert str(raised.value).endswith(" out batching.")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("batching", "message"),
    [
        (True, "batching must be a Batching or None. Got: True"),
        (
            Batching(num_batch_threads=0),
            "batching: num_batch_threads must be an integer from 1 to 2147483647. Got: 0",
        ),
        (
            Batching(batch_timeout_micros=0.5),  # type: ignore[arg-type]
            "batching: batch_timeout_micros must be an integer from 0 to 2147483647. Got: 0.5",
        ),
        (
            Batching(max_enqueued_batches=0),
            "batching: max_enqueued_batches must be an integer from 1 to 2147483647. Got: 0",
        ),
    ],
)
def test_settings_that_are_none(tmp_path: Path, batching: Any, message: str) -> None:
    with pytest.raises(SavingError) as raised:
        save(tmp_path / "m", DENSE, params=W, buckets={"b": [4]}, batching=batching)
    assert str(raised.value) == message


@pytest.mark.costly
def test_a_full_queue_refuses(tmp_path: Path) -> None:
    save(
        tmp_path / "m",
        DENSE,
        params=W,
        buckets={"b": [1]},
        batching=Batching(max_enqueued_batches=1),
        vjp_order=0,
    )
    signature = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
    check_answer(signature, X)
    refused = []

    def call(caller: int) -> None:
        for turn in range(5):
            try:
                check_answer(signature, draw(caller + turn, 1))
            except tf.errors.UnavailableError as e:
                refused.append(e.message)

    call_at_once(call)
    assert any("queue" in message for message in refused)
