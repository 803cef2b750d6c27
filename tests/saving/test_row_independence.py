"""Padding that would change results is found before a function with buckets is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.errors import ShapeError, UnsoundBucketsError

# Private: its limit is lowered.
from jax2tf_bridge.saving.buckets import _trial, check_rows
from tests.sampling import sampled
from tests.saving.bucketed_functions import named

Function = Callable[..., Any]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


X = normal(4, 6)
W, V = normal(6, 64), normal(64, 6)


def mlp(x: Any) -> Any:
    return jax.nn.softmax(jnp.tanh(x @ W) @ V)


def in_bfloat16(x: Any) -> Any:
    y = jnp.tanh(x.astype(jnp.bfloat16) @ W.astype(jnp.bfloat16))
    return (y @ V.astype(jnp.bfloat16)).astype(jnp.float32)


def conv(x: Any) -> Any:
    image = x.reshape(-1, 1, 6, 1)
    kernel = jnp.ones((1, 3, 1, 4)) * 0.1
    y = jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(y).mean((1, 2))


def attention(x: Any) -> Any:
    tokens = x.reshape(-1, 3, 2)
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", tokens, tokens))
    return jnp.einsum("bqk,bkd->bqd", weights, tokens)


def layer_norm(x: Any) -> Any:
    return (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5)


def newton(x: Any) -> Any:
    def step(y: Any) -> Any:
        return 0.5 * (y + jnp.abs(x) / y)

    return jax.lax.while_loop(
        lambda y: jnp.abs(y * y - jnp.abs(x)).max() > 1e-6, step, jnp.ones_like(x)
    )


SOUND: list[Function] = [
    mlp,
    in_bfloat16,
    conv,
    attention,
    layer_norm,
    newton,
    lambda x: x.sum(1),
    lambda x: jnp.argmax(x, 1),
    lambda x: jnp.log(x),
    lambda x: jax.lax.top_k(x, 2),
    lambda x: {"rows": x * 2, "constant": jnp.arange(3)},
    lambda x: jnp.sort(x, 1),
    lambda x: x > 0,
    lambda x: x.astype(jnp.float16) * 3,
    lambda x: jax.lax.complex(x, x) * 2,
]


@pytest.mark.parametrize("f", sampled(SOUND, every=3, keep=[in_bfloat16]))
def test_rows_that_are_independent(f: Function) -> None:
    function = named(f, X, shapes="(b, 6)")
    for oversize in ("split", "as is"):
        check_rows(function, function.bucketing({"b": (1, 8, 32)}, oversize=oversize))


UNSOUND: list[Function] = [
    lambda x: x - x.mean(0),
    lambda x: x.mean(),
    lambda x: {"rows": x * 2, "total": x.sum()},
    lambda x: x.max(0),
    lambda x: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5),
    lambda x: jax.nn.softmax(x, 0),
    lambda x: jnp.sort(x, 0),
    lambda x: jnp.argmax(x, 0),
    lambda x: jnp.cumsum(x[::-1], 0)[::-1],
    lambda x: jnp.cumsum(x[::-1], 0),
    lambda x: x[::-1],
    lambda x: x / x.shape[0],
    lambda x: x[:, 0].astype(jnp.int32) * 0 + x.shape[0],
    lambda x: x.T @ x,
    lambda x: jax.nn.softmax(x @ x.T) @ x,
    lambda x: x * (x > 0).any(0),
    lambda x: jnp.where(jnp.isnan(jnp.log(x)).any(), 0.0, x),
    lambda x: x.astype(jnp.bfloat16) - x.astype(jnp.bfloat16).mean(0),
]


@pytest.mark.parametrize("f", sampled(UNSOUND, every=3, keep=UNSOUND[-1:]))
def test_rows_that_influence_each_other(f: Function) -> None:
    function = named(f, X, shapes="(b, 6)")
    for oversize in ("split", "as is"):
        with pytest.raises(UnsoundBucketsError, match="or give b no buckets"):
            check_rows(function, function.bucketing({"b": (1, 8, 32)}, oversize=oversize))


def test_a_masked_scalar_is_not_computed_in_pieces() -> None:
    x = np.ones(5, np.float32)
    function = named(lambda x, mask: (x * mask).sum(), x, x, shapes="(b,)")
    with pytest.raises(UnsoundBucketsError, match=r"^f: running b = .* in pieces, as .* changes"):
        check_rows(function, function.bucketing({"b": (4,)}, mask="mask"))
    check_rows(function, function.bucketing({"b": (4,)}, mask="mask", oversize="as is"))


def test_the_error_says_what_where_and_how_to_mend_it() -> None:
    function = named(lambda x: {"scaled": x / x.shape[0]}, X, shapes="(b, 6)")
    with pytest.raises(UnsoundBucketsError) as caught:
        check_rows(function, function.bucketing({"b": (1, 8)}))
    error = caught.value
    assert error.output == "scaled"
    assert (error.sizes, error.bucket) == ({"b": 5}, {"b": 8})
    text = str(error)
    assert text.startswith(
        "f: padding b = 5 to the bucket b = 8 changes the output 'scaled' by up to 0."
    )
    assert f"by up to {error.difference:.3g} (scaled[" in text
    assert text.endswith(
        "The function mixes positions along b, and padding (0 in x) affects the result. Any of "
        "these fixes it:\n"
        "  - take an argument that is 1 for real elements and 0 for padding, use it in the "
        "function, and name it: Signature(..., padding=Padding(mask='...'))\n"
        "  - if it is sound for all your requests, vouch for it: unchecked_padding=['b']\n"
        "  - or give b no buckets\n"
        "Tried with x (random numbers); Signature(..., example={...}) tries your values."
    )


def test_what_comes_before_may_be_looked_at_unless_it_is_cut_off() -> None:
    function = named(lambda x: jnp.cumsum(x, 0), X, shapes="(b, 6)")
    check_rows(function, function.bucketing({"b": (2, 8)}, oversize="as is"))
    with pytest.raises(UnsoundBucketsError) as caught:
        check_rows(function, function.bucketing({"b": (3, 8)}))
    assert str(caught.value).startswith(
        "f: running b = 3 in pieces, as 2 and 1, changes the output 'output_0' by up to "
    )
    assert str(caught.value).endswith(
        "Pass oversize={'b': 'as is'}, so that sizes above the largest bucket of b run whole."
    )
    with pytest.raises(UnsoundBucketsError, match="running b = 2 in pieces, as 1 and 1"):
        check_rows(function, function.bucketing({"b": (1,)}))
    check_rows(function, function.bucketing({"b": (1,)}, oversize="as is"))


def masked_mean(x: Any, mask: Any) -> Any:
    return x - (x * mask[:, None]).sum(0) / jnp.maximum(mask.sum(), 1)


def test_a_mask_keeps_padding_out() -> None:
    function = named(masked_mean, X, normal(4), shapes=["(b, 6)", "(b,)"])
    check_rows(function, function.bucketing({"b": (2, 8)}, mask="mask", oversize="as is"))
    with pytest.raises(UnsoundBucketsError, match="running b = 2 in pieces"):
        check_rows(function, function.bucketing({"b": (2, 8)}, mask="mask"))


def test_a_mask_that_does_not_help() -> None:
    function = named(lambda x, mask: x.mean(0) + mask.sum(), X, normal(4), shapes=["(b, 6)", "b"])
    with pytest.raises(UnsoundBucketsError) as caught:
        check_rows(function, function.bucketing({"b": (2, 8)}, mask="mask", oversize="as is"))
    assert (
        "The mask 'mask' does not keep padding out of the results. Any of these fixes it:\n"
        "  - apply the mask where the function mixes positions\n"
        "  - if it is sound for all your requests, vouch for it: unchecked_padding=['b']\n"
    ) in str(caught.value)


@pytest.mark.costly
def test_one_of_two_variables_is_unsound() -> None:
    tokens = normal(2, 5, 3)

    def attend(x: Any) -> Any:
        return jax.nn.softmax(x @ jnp.swapaxes(x, 1, 2)) @ x

    function = named(attend, tokens, shapes="(b, l, 3)")
    check_rows(function, function.bucketing({"b": (2, 8)}))
    with pytest.raises(UnsoundBucketsError, match="padding l = 5 to the bucket l = 8 changes"):
        check_rows(function, function.bucketing({"b": (2, 8), "l": (8, 16)}, oversize="as is"))

    def masked(x: Any, mask: Any) -> Any:
        scores = jnp.where(mask[:, None, :], x @ jnp.swapaxes(x, 1, 2), -1e9)
        return jax.nn.softmax(scores) @ x

    function = named(masked, tokens, np.ones((2, 5), np.bool_), shapes=["(b, l, 3)", "(b, l)"])
    oversize: Any = {"b": "split", "l": "as is"}
    buckets = {"b": (2, 8), "l": (8, 16)}
    check_rows(function, function.bucketing(buckets, mask="mask", oversize=oversize))


def test_constraints_are_respected() -> None:
    function = named(
        lambda x: x.reshape(-1, 8, 6).mean(1),
        normal(8, 6),
        shapes="(b, 6)",
        polymorphic_constraints=["mod(b, 8) == 0"],
    )
    bucketing = function.bucketing({"b": (8, 16)}, oversize="as is")
    # Groups of eight rows: 8 in a bucket of 16 is sound, and what fills no group is not.
    with pytest.raises(UnsoundBucketsError, match="the content beyond b = 10 in the bucket 16"):
        check_rows(function, bucketing)
    function = named(lambda x: x[3:] * 2, X, shapes="(b, 6)", polymorphic_constraints=["b >= 4"])
    check_rows(function, function.bucketing({"b": (4, 8)}, oversize="as is"))


def test_sizes_of_the_other_variables() -> None:
    function = named(
        lambda x: x * 2, normal(4, 6), shapes="(b, l)", polymorphic_constraints=["l >= 100"]
    )
    check_rows(function, function.bucketing({"b": (2, 8)}))
    function = named(
        lambda x: x * 2, normal(4, 6), shapes="(b, l)", polymorphic_constraints=["l >= 100000"]
    )
    with pytest.raises(ShapeError, match="no sizes of l were found that satisfy l >= 100000"):
        check_rows(function, function.bucketing({"b": (2, 8)}))


def test_padding_that_is_not_finite_is_noted() -> None:
    function = named(lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True), X, shapes="(b, 6)")
    (note,) = check_rows(function, function.bucketing({"b": (2, 8)})).notes
    assert note == (
        "f: the output 'output_0' is not finite where b is padded (0 in x). No result changes, "
        "but gradients with respect to weights are NaN for sizes that are no bucket. To "
        "train the saved model, divide by jnp.maximum(count, 1) there, or pad with other numbers "
        "(pad_values)."
    )
    function = named(mlp, X, shapes="(b, 6)")
    assert check_rows(function, function.bucketing({"b": (2, 8)})).notes == ()


OTHER_DTYPES: list[Any] = [np.bool_, np.uint8, np.int32, jnp.bfloat16, np.complex64]


@pytest.mark.parametrize("dtype", sampled(OTHER_DTYPES, every=2))
def test_inputs_of_other_dtypes(dtype: Any) -> None:
    x = np.ones((4, 6), dtype)
    function = named(lambda x: x[:, ::-1], x, shapes="(b, 6)")
    check_rows(function, function.bucketing({"b": (2, 8)}))
    function = named(lambda x: x[::-1], x, shapes="(b, 6)")
    with pytest.raises(UnsoundBucketsError):
        check_rows(function, function.bucketing({"b": (8,)}))


def test_no_run_is_done_twice_while_results_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    bucketing = named(jnp.tanh, X, shapes="(b, 6)").bucketing({"b": (1, 8)})
    runs = []

    def call(tensors: Any) -> Any:
        runs.append((tensors["x"].shape[0], tensors["x"].numpy().tobytes()))
        return {"output_0": tf.tanh(tensors["x"])}

    check_rows(call, bucketing)
    assert {size for size, _ in runs} == {5, 8}
    assert len(set(runs)) == len(runs)
    once = set(runs)
    runs.clear()
    monkeypatch.setattr(_trial, "_MAX_CACHED_BYTES", 0)
    check_rows(call, bucketing)
    assert set(runs) == once
    assert len(runs) > len(once)


def test_a_scalar_beside_rows() -> None:
    function = named(lambda x, s: x * s, X, np.float32(2), shapes=("(b, 6)", None))
    check_rows(function, function.bucketing({"b": (1, 8)}))
