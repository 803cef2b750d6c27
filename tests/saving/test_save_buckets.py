"""save() with buckets: what is compiled, padded, split, masked and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Padding, Signature, save
from jax2tf_bridge.errors import SavingError, ShapeError, UnsoundBucketsError
from jax2tf_bridge.saved_model import read_sidecar

# Private: TensorFlow has no public name for the message.
from jax2tf_bridge.to_tensorflow import _tf_compat
from tests.saving.warm_up_files import read_warm_up_requests

W = np.linspace(-1, 1, 6).astype(np.float32).reshape(3, 2)
X = np.ones((2, 3), np.float32)


def dense(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def inputs(rows: int) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, 3), np.float32)


DENSE = Signature(dense, args=[X], polymorphic_shapes="(b, 3)")


@pytest.mark.costly
@pytest.mark.parametrize("oversize", ["split", "as is"])
def test_every_size_gives_what_jax_gives(oversize: Any, tmp_path: Path) -> None:
    saved = save(tmp_path / "m", DENSE, params=W, buckets={"b": [2, 8]}, oversize=oversize)
    loaded = tf.saved_model.load(tmp_path / "m")
    serve = loaded.signatures["serving_default"]
    for rows in (0, 1, 2, 3, 8, 9, 20):
        x = inputs(rows)
        for result in (loaded.serving_default(x), serve(x=tf.constant(x))["output_0"]):
            np.testing.assert_allclose(result, np.tanh(x @ W), rtol=1e-5, atol=1e-6)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded.serving_default(inputs(3)))
    slope = 1 - np.tanh(inputs(3) @ W) ** 2
    by_w = tape.gradient(loss, loaded.params["params"])
    np.testing.assert_allclose(by_w, inputs(3).T @ slope, rtol=1e-4, atol=1e-5)
    requests = list(read_warm_up_requests(tmp_path / "m"))
    assert [str(r) for r in requests] == [
        "serving_default(x: float32[2,3])",
        "serving_default(x: float32[8,3])",
    ]
    found = read_sidecar(tmp_path / "m")
    assert found is not None
    assert found[0].signatures["serving_default"].buckets == {"b": (2, 8)}
    assert "allowed_batch_sizes: 8" in str(saved.serving)
    assert "--xla_cpu_compilation_enabled=true" in str(saved.serving)


def test_buckets_chosen_from_expected_sizes(tmp_path: Path) -> None:
    save(
        tmp_path / "m",
        DENSE,
        params=W,
        expected_sizes=[1] * 50 + [7, 30],
        vjp_order=0,
    )
    found = read_sidecar(tmp_path / "m")
    assert found is not None
    assert found[0].signatures["serving_default"].buckets == {"b": (1, 7, 30)}


def test_signatures_without_the_variable_are_left_as_they_are(tmp_path: Path) -> None:
    one = Signature(dense, args=[X])
    save(tmp_path / "m", {"a": DENSE, "b": one}, params=W, buckets={"b": [4]}, vjp_order=0)
    loaded = tf.saved_model.load(tmp_path / "m")
    assert loaded.a(inputs(3)).shape == (3, 2)
    assert [str(r) for r in read_warm_up_requests(tmp_path / "m")] == [
        "a(x: float32[4,3])",
        "b(x: float32[2,3])",
    ]


def test_a_mask_is_filled(tmp_path: Path) -> None:
    def centred(w: Any, x: Any, mask: Any) -> Any:
        mean = (x * mask[:, None]).sum(0) / mask.sum()
        return (x - mean) @ w

    masked = Signature(
        centred,
        args=[X, np.ones(2, np.float32)],
        polymorphic_shapes=["(b, 3)", "(b,)"],
        padding=Padding(mask="mask"),
    )
    options: Any = {"buckets": {"b": [4, 8]}, "oversize": "as is", "vjp_order": 0}
    saved = save(tmp_path / "m", masked, params=W, **options)
    text = str(saved.signatures["serving_default"])
    assert text == "(x: float32[b,3]) -> (output_0: float32[b,2])"
    loaded = tf.saved_model.load(tmp_path / "m")
    x = inputs(3)
    np.testing.assert_allclose(loaded.serving_default(x), (x - x.mean(0)) @ W, rtol=1e-4, atol=1e-6)


def test_rows_that_see_each_other_are_refused(tmp_path: Path) -> None:
    centred = Signature(lambda w, x: (x - x.mean(0)) @ w, [X], polymorphic_shapes="(b, 3)")
    with pytest.raises(UnsoundBucketsError, match="output_0"):
        save(tmp_path / "m", centred, params=W, buckets={"b": [4]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"buckets": {"c": [4]}}, ShapeError, "'c'"),
        ({"buckets": {"b": [4, 2]}}, ShapeError, "increas"),
        (
            {"buckets": "auto"},
            ShapeError,
            r"^buckets='auto': expected a mapping, as \{'b': \[1, 8, 32\]\}\. To have buckets "
            r"chosen, pass expected_sizes=\[\.\.\.\], the sizes of requests, and no buckets\.$",
        ),
        (
            {"buckets": {"b": [1]}, "expected_sizes": [1]},
            SavingError,
            r"^save got both buckets and expected_sizes, .*\. Leave out one of them\.$",
        ),
    ],
)
def test_buckets_that_make_no_sense(options: Any, error: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        save(tmp_path / "m", DENSE, params=W, **options)
    assert list(tmp_path.iterdir()) == []


def test_masks_without_buckets(tmp_path: Path) -> None:
    masked = Signature(
        lambda w, x, mask: x @ w, [X, np.ones(2, np.bool_)], padding=Padding(mask="mask")
    )
    with pytest.raises(
        SavingError,
        match=r"^The signature serving_default has mask='mask' but no buckets; the option is",
    ):
        save(tmp_path / "m", masked, params=W)


@pytest.mark.slow
def test_tapes_within_each_other_around_pieces(tmp_path: Path) -> None:
    scale = np.array([0.5, -2], np.float32)

    def f(w: Any, x: Any, scale: Any, ids: Any) -> Any:
        y = jnp.tanh(x @ w) * scale + ids[:, None]
        return {"y": y.T, "z": y[:, 0] ** 2, "w": (w * scale).sum()}

    signature = Signature(
        f,
        args=[np.ones((2, 3), np.float32), scale, np.ones(2, np.int32)],
        polymorphic_shapes=("(b, 3)", "(2,)", "(b,)"),
    )
    save(tmp_path / "m", signature, params=W, buckets={"b": [2, 4]}, vjp_order=2)
    model = tf.saved_model.load(str(tmp_path / "m"))
    w = model.params["params"]

    def total(w: Any, x: Any, scale: Any, ids: Any) -> Any:
        y = f(w, x, scale, ids)
        return jnp.sin(y["y"]).sum() + y["z"].sum() + y["w"] ** 2

    def square(*args: Any) -> Any:
        return sum((g**2).sum() for g in jax.grad(total, (0, 1, 2))(*args))

    for rows in (1, 9):
        x, ids = inputs(rows), np.arange(rows, dtype=np.int32)
        given, scaled = tf.constant(x), tf.constant(scale)
        with tf.GradientTape() as outer:
            outer.watch([given, scaled])
            with tf.GradientTape() as tape:
                tape.watch([given, scaled])
                y = model.serving_default(given, scaled, tf.constant(ids))
                loss = tf.reduce_sum(tf.sin(y["y"])) + tf.reduce_sum(y["z"]) + y["w"] ** 2
            first = tape.gradient(loss, [w, given, scaled])
            again = tf.add_n([tf.reduce_sum(g**2) for g in first])
        second = outer.gradient(again, [w, given, scaled])
        found = [g.numpy() for g in (*first, *second)]
        expected = [g for of in (total, square) for g in jax.grad(of, (0, 1, 2))(W, x, scale, ids)]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.costly
def test_gradients_of_pieces_with_sizes_that_have_no_buckets(tmp_path: Path) -> None:
    def f(w: Any, x: Any, y: Any) -> Any:
        return (x[:, :, None] * y * w).reshape(x.shape[0], -1)

    x, y = np.ones((3, 2), np.float32), np.arange(1, 4, dtype=np.float32)
    signature = Signature(f, args=[x, y], polymorphic_shapes=("(b, s)", "(t,)"))
    options: Any = {"buckets": {"b": [2], "s": [2, 4]}, "oversize": {"b": "split"}}
    save(tmp_path / "m", signature, params=np.float32(2), **options)
    model = tf.saved_model.load(tmp_path / "m")
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        result = model.serving_default(given, tf.constant(y))
    np.testing.assert_allclose(result, f(np.float32(2), x, y))
    np.testing.assert_allclose(tape.gradient(result, given), np.full((3, 2), 12.0))


@pytest.mark.slow
def test_modules_are_in_the_graph_once(tmp_path: Path) -> None:
    def f(w: Any, x: Any, scale: Any) -> Any:
        y = jnp.tanh(x @ w) * scale
        return {"y": y, "best": jnp.argmax(y, 1), "c": (y + 1j * x[:, :2]).T, "twice": w * scale}

    given = Signature(f, [X, np.float32(2)], polymorphic_shapes=("(b, 3)", None))
    save(tmp_path / "m", given, params=W, buckets={"b": [4]})
    message = _tf_compat.saved_model_message()()
    message.ParseFromString((tmp_path / "m" / "saved_model.pb").read_bytes())
    functions = {f.signature.name: f for f in message.meta_graphs[0].graph_def.library.function}

    def called_by(name: str) -> set[str]:
        used = {v.func.name for node in functions[name].node_def for v in node.attr.values()} - {""}
        return {name}.union(*map(called_by, used))

    def modules(names: Any) -> list[str]:
        return [n for n in names for node in functions[n].node_def if node.op == "XlaCallModule"]

    assert len(modules(functions)) == 2
    (pieces,) = (name for name in functions if "piecewise_vjp" in name)
    # The gradient of the pieces does not run the function itself.
    (vjp,) = modules(called_by(pieces))
    assert "vjp" in vjp

    model = tf.saved_model.load(str(tmp_path / "m"))
    for rows in (0, 3, 9):
        x, scale = tf.constant(inputs(rows)), tf.constant(3.0)
        with tf.GradientTape() as tape:
            tape.watch([x, scale])
            y = model.serving_default(x, scale)
            total = tf.reduce_sum(y["y"] ** 2) + tf.reduce_sum(y["twice"] ** 3)
            total += tf.reduce_sum(tf.math.real(y["c"] * (1 + 2j)))
        found = tape.gradient(total, [model.params["params"], x, scale])

        def of_jax(w: Any, x: Any, scale: Any) -> Any:
            y = f(w, x, scale)
            total = (y["y"] ** 2).sum() + (y["twice"] ** 3).sum()
            return total + (y["c"] * (1 + 2j)).real.sum()

        expected = jax.grad(of_jax, (0, 1, 2))(W, x.numpy(), scale.numpy())
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.costly
def test_a_gradient_of_pieces_that_was_not_saved(tmp_path: Path) -> None:
    save(tmp_path / "m", DENSE, params=W, buckets={"b": [4]}, vjp_order=1)
    model = tf.saved_model.load(str(tmp_path / "m"))
    x = tf.constant(inputs(5))
    message = "were saved up to order 1. For more, save it with vjp_order=2"
    with tf.GradientTape(), tf.GradientTape(), pytest.raises(LookupError, match=message):
        model.serving_default(x)


def test_what_padding_may_do_to_gradients_is_noted(tmp_path: Path) -> None:
    inverse = Signature(lambda w, x: (1 / x) @ w, [X], polymorphic_shapes="(b, 3)")
    saved = save(tmp_path / "m", inverse, params=W, buckets={"b": [4]})
    assert any("is not finite where b is padded (0 in x)" in n for n in saved.notes), saved.notes


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_weights_that_hide_what_rows_do(value: float, tmp_path: Path) -> None:
    def centred(params: Any, x: Any) -> Any:
        return (x - x.mean(0)) @ params["w"] + params["b"]

    params = {"w": np.full_like(W, value), "b": np.zeros(2, np.float32)}
    signature = Signature(centred, [X], polymorphic_shapes="(b, 3)")
    with pytest.raises(UnsoundBucketsError):
        save(tmp_path / "m", signature, params=params, buckets={"b": [4]})
    plain = Signature(lambda p, x: x @ p["w"] + p["b"], [X], polymorphic_shapes="(b, 3)")
    save(tmp_path / "m", plain, params=params, buckets={"b": [4]}, vjp_order=0)
    kept = tf.saved_model.load(tmp_path / "m").params
    np.testing.assert_array_equal(kept["w"], params["w"])
    np.testing.assert_array_equal(kept["b"], params["b"])


@pytest.mark.parametrize("buckets", [None, {"b": [1, 4]}])
def test_a_session_refuses_wrong_sizes(
    buckets: dict[str, list[int]] | None, tmp_path: Path
) -> None:
    """A session, such as TensorFlow Serving's, compares no shape with the signature's."""
    signature = Signature(
        lambda x: x + 1, args=[np.ones((1, 3), np.float32)], polymorphic_shapes="(b, 3)"
    )
    save(tmp_path / "m", signature, buckets=buckets)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        # Python compares shapes with those of the model's own placeholder, which this replaces.
        anything = tf.compat.v1.placeholder(tf.float32)
        model = tf.compat.v1.saved_model.load(
            session, ["serve"], str(tmp_path / "m"), input_map={"serving_default_x:0": anything}
        )
        output = model.signature_def["serving_default"].outputs["output_0"].name
        run = session.make_callable(output, feed_list=[anything])
        assert run(np.ones((2, 3), np.float32)).tolist() == [[2, 2, 2]] * 2
        for shape in ((2, 2), (2, 1), (2, 0), (2, 4), (3,), (1, 2, 3)):
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=r"Shape of tensor .* not compatible .* \[\?,3\]",
            ):
                run(np.ones(shape, np.float32))
