"""Models of text with buckets: what real padding leaves alone is saved, and all else is refused."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Padding, Processing, Signature, inspect, load, save
from jax2tf_bridge.errors import SavingError, UnsoundBucketsError
from jax2tf_bridge.inspecting import describe_saved_model, read_saved_model
from jax2tf_bridge.loading import LoadedFunction
from jax2tf_bridge.saved_model import read_sidecar
from jax2tf_bridge.saving.buckets import check_rows

# Private: draws inputs for a signature without comparing results.
from jax2tf_bridge.verifying._comparison import ComparedPair
from jax2tf_bridge.verifying._containers import KnownTypes
from tests.saving.bucketed_functions import NamedFunction, named
from tests.saving.flat_signatures import flat_signature

RNG = np.random.default_rng(0)
TABLE = jnp.asarray(RNG.normal(size=(8, 4)), jnp.float32)
TYPES = jnp.asarray(RNG.normal(size=(2, 4)), jnp.float32)
IDS, LENGTHS = np.ones((2, 5), np.int32), np.array([5, 3], np.int32)
BUCKETS = {"b": (1, 4), "n": (8, 128)}


def attend(x: Any, mask: Any) -> Any:
    """Attention of each position to what is real; the mask is of a shape as (b, 1, n)."""
    scores = jnp.where(mask, x @ jnp.swapaxes(x, 1, 2), -1e9)
    return jax.nn.softmax(scores) @ x


def with_lengths(ids: Any, lengths: Any) -> Any:
    real = jnp.arange(ids.shape[1]) < lengths[:, None]
    x = attend(TABLE[ids], real[:, None, :])
    return (x * real[..., None]).sum(1) / lengths[:, None]


def by_pad_id(pad: int) -> Callable[..., Any]:
    def pooled(ids: Any) -> Any:
        real = (ids != pad)[..., None]
        return (TABLE[ids] * real).sum(1) / jnp.maximum(real.sum(1), 1)

    return pooled


def bert(input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
    # jnp.take gives NaN beyond a table, as Flax's Embed does.
    x = jnp.take(TABLE, input_ids, axis=0) + jnp.take(TYPES, token_type_ids, axis=0)
    x = attend(x, attention_mask[:, None, :] > 0)
    return {"tokens": x, "pooled": jnp.tanh(x[:, 0])}


def additive(x: Any, mask: Any) -> Any:
    """A mask of numbers that are added to scores: 0 for what is real, -1e9 for padding."""
    return jax.nn.softmax(x @ jnp.swapaxes(x, 1, 2) + mask[:, None, :]) @ x


def inverted(x: Any, padding_mask: Any) -> Any:
    return attend(x, ~padding_mask[:, None, :])


def flagged(ids: Any) -> Any:
    """Rows of integers, each with a flag, without which it is another model."""
    return jnp.where((ids == 7).any(1, keepdims=True), ids.sum(1, keepdims=True), ids.shape[1])


X = np.zeros((2, 5, 4), np.float32)
ARGUMENTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "lengths": (with_lengths, (IDS, LENGTHS), ["(b, n)", "(b,)"]),
    "bert": (bert, (IDS, IDS, IDS), "(b, n)"),
    "additive": (additive, (X, X[..., 0]), ["(b, n, 4)", "(b, n)"]),
    "inverted": (inverted, (X, IDS > 0), ["(b, n, 4)", "(b, n)"]),
    "pad 0": (by_pad_id(0), (IDS,), "(b, n)"),
    "pad 1": (by_pad_id(1), (IDS,), "(b, n)"),
    "flagged": (flagged, (IDS,), "(b, n)"),
}


@functools.cache
def function_of(name: str) -> NamedFunction:
    f, args, shapes = ARGUMENTS[name]
    function: NamedFunction = named(f, *args, shapes=shapes)
    return function


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lengths", {}),
        ("pad 0", {}),
        ("pad 1", {"pad_values": {"ids": 1}}),
        ("bert", {}),
        ("bert", {"mask": "attention_mask"}),
        ("additive", {"pad_values": {"mask": -1e9}}),
        ("inverted", {"pad_values": {"padding_mask": True}}),
        ("flagged", {"unchecked": ["n"]}),
    ],
)
def test_padding_is_judged_by_what_really_stands_there(name: str, options: Any) -> None:
    function = function_of(name)
    bucketing = function.bucketing(BUCKETS, **options)
    assert bucketing.oversize == {"b": "split", "n": "as is"}
    trial = check_rows(function, bucketing)
    # TensorFlow Serving pads with whatever is first in an input.
    assert trial.any_padding == (name == "lengths")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pad 1", {}),
        ("pad 0", {"pad_values": {"ids": 2}}),
        ("bert", {"pad_values": {"attention_mask": 1}}),
        ("additive", {}),
        ("inverted", {}),
        ("flagged", {}),
    ],
)
def test_padding_that_counts_is_refused(name: str, options: Any) -> None:
    function = function_of(name)
    with pytest.raises(UnsoundBucketsError, match="padding n = 5 to the bucket n = 8 changes"):
        check_rows(function, function.bucketing(BUCKETS, **options))


def test_an_example_stands_for_requests() -> None:
    flags, lengths = function_of("flagged"), function_of("lengths")
    check_rows(flags, flags.bucketing(BUCKETS), example={"ids": np.full((1, 5), 7, np.int32)})
    # Lengths among examples stay within the sizes that are tried.
    example = {
        "lengths": np.array([40], np.int32),
        "ids": RNG.integers(1, 8, (1, 40)).astype(np.int32),
    }
    check_rows(lengths, lengths.bucketing(BUCKETS), example=example)


def test_the_error_says_what_was_tried_and_which_fixes_there_are() -> None:
    function = function_of("pad 1")
    with pytest.raises(UnsoundBucketsError) as caught:
        check_rows(function, function.bucketing(BUCKETS))
    assert str(caught.value).endswith(
        "The function mixes positions along n, and padding (0 in ids) affects the result. Any of "
        "these fixes it:\n"
        "  - take an argument that is 1 for real elements and 0 for padding, use it in the "
        "function, and name it: Signature(..., padding=Padding(mask='...'))\n"
        "  - if the function uses a special number for padding, pad with that: "
        "Signature(..., padding=Padding(pad_values={'ids': 1}))\n"
        "  - if it is sound for all your requests, vouch for it: unchecked_padding=['n']\n"
        "  - or give n no buckets\n"
        "Tried with ids (integers from 0 to 3); Signature(..., example={...}) tries your values."
    )


def test_rows_beside_others_are_tried_though_zeros_hide_them() -> None:
    summed = named(lambda ids, x: x - x.sum(0), IDS, X, shapes=["(b, n)", "(b, n, 4)"])
    with pytest.raises(UnsoundBucketsError) as caught:
        check_rows(summed, summed.bucketing(BUCKETS))
    assert "the content beyond b = 2 in the bucket 4 changes" in str(caught.value)
    assert (
        "The function mixes rows along b, and a batch has rows of other requests there. Any of "
        "these fixes it:\n  - compute each row by itself\n"
    ) in str(caught.value)


@pytest.mark.costly
def test_a_trial_compiles_two_small_programs_and_one_for_each_larger_bucket() -> None:
    function, shapes = function_of("bert"), set()

    def call(tensors: Any) -> Any:
        shapes.add(tuple(tuple(x.shape) for x in tensors.values()))
        return function(tensors)

    check_rows(call, function.bucketing({"b": (1, 32), "n": (128, 512)}))
    small, buckets = {((8, 8),) * 3, ((5, 5),) * 3}, {((1, 128),) * 3, ((32, 512),) * 3}
    assert shapes == small | buckets


def serve(f: Callable[..., Any], **options: Any) -> Signature:
    return flat_signature(f, args=[IDS] * 3, polymorphic_shapes="(b, n)", **options)


@pytest.mark.costly
def test_a_mask_that_buckets_fill_is_no_input_anywhere(tmp_path: Path) -> None:
    folder = tmp_path / "m"

    def weighted(w: Any, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        return bert(input_ids, attention_mask, token_type_ids)["tokens"] * w

    w = np.array([1, 2, 3, 4], np.float32)
    signature = serve(weighted, mask="attention_mask")
    save(folder, signature, params=w, buckets={"b": [4], "n": [8]})
    ids = RNG.integers(1, 8, (3, 6)).astype(np.int32)
    types = ids % 2
    expected = jax.jit(weighted)(w, ids, np.ones_like(ids), types)

    served = tf.saved_model.load(folder)
    np.testing.assert_allclose(served.serving_default(ids, types), expected, rtol=1e-3, atol=1e-4)
    model = load(folder)
    one = model.functions["serving_default"]
    for result in (
        model.serving_default(ids, types),
        one(model.params, ids, types),
        jax.jit(one)(model.params, ids, types),
        model.signatures["serving_default"](input_ids=ids, token_type_ids=types)["output_0"],
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert repr(model.signatures["serving_default"]) == (
        "<LoadedSignature serving_default(input_ids: int32[b,n], token_type_ids: int32[b,n]) -> "
        "(output_0: float32[b,n,4])>"
    )
    assert "attention_mask" not in repr(one)
    gradient = jax.grad(lambda w: one(w, ids, types).sum())(w)
    np.testing.assert_allclose(gradient, (expected / w).sum((0, 1)), rtol=1e-3, atol=1e-4)

    found = read_sidecar(folder)
    assert found is not None
    entry = found[0].signatures["serving_default"]
    assert [mask.path for mask in entry.masks.values()] == ["attention_mask"]
    assert isinstance(one, LoadedFunction)
    containers = KnownTypes(weighted, f"{__name__}:weighted")
    pair = ComparedPair(folder, model.params, one, entry, weighted, ["params"], 0, containers)
    samples = pair.sampler.draw_sizes(2)
    differences = pair.compare(samples, None, with_gradients=samples[:1])
    assert {d.name for d in differences} == {"output_0", "w"}
    assert all(d.within for d in differences), differences


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lengths", {}),
        pytest.param("inverted", {"pad_values": {"padding_mask": True}}, marks=pytest.mark.slow),
    ],
)
def test_verifying_asks_for_nothing_that_no_request_has(
    name: str, options: Any, tmp_path: Path
) -> None:
    f, args, shapes = ARGUMENTS[name]
    signature = flat_signature(f, args=args, polymorphic_shapes=shapes, **options)
    save(tmp_path / "m", signature, buckets={"b": [4], "n": [8]}, vjp_order=0)
    model, found = load(tmp_path / "m"), read_sidecar(tmp_path / "m")
    assert found is not None
    loaded: Any = model.functions["serving_default"]
    entry = found[0].signatures["serving_default"]
    assert entry.any_padding == (name == "lengths")
    types = KnownTypes(f, f"{__name__}:f")
    pair = ComparedPair(tmp_path / "m", None, loaded, entry, f, [], 0, types)
    differences = pair.compare(pair.sampler.draw_sizes(3), None, with_gradients=[])
    assert all(d.within for d in differences), differences


def test_what_the_user_vouches_for_is_recorded(tmp_path: Path) -> None:
    signature = Signature(
        lambda ids, x, keep, real: TABLE[ids].mean(1) + (x * keep * real).mean(1, keepdims=True),
        [IDS, IDS * 1.0, IDS > 0, IDS > 0],
        polymorphic_shapes="(b, n)",
        padding=Padding(
            unchecked_padding=["n"],
            mask="real",
            pad_values={"ids": np.int8(1), "x": -np.inf, "keep": np.True_},
        ),
    )
    saved = save(tmp_path / "m", signature, buckets={"b": [1, 4], "n": [8]}, vjp_order=0)
    assert (
        "\n    buckets b 1, 4; n 8; ids padded with 1; x padded with -inf; keep padded with 1; "
        "real filled by the buckets; not checked: padding of n\n"
    ) in str(saved)
    found = read_sidecar(tmp_path / "m")
    assert found is not None
    entry = found[0].signatures["serving_default"]
    assert entry.unchecked_padding == ("n",)
    assert entry.pad_values == {"ids": "1", "x": "-inf", "keep": "1"}
    facts = describe_saved_model(read_saved_model(tmp_path / "m"))
    (described,) = facts["signatures"]
    assert described["unchecked_padding"] == ["n"]
    assert described["masks"] == ["real"]
    assert described["pad_values"] == entry.pad_values
    assert (
        "; buckets b 1, 4; n 8; ids padded with 1; keep padded with 1; x padded with -inf; "
        "real filled by the buckets; not checked: padding of n\n"
    ) in str(inspect(tmp_path / "m"))


@pytest.mark.parametrize("option", [{"pad_values": {"ids": 1}}, {"unchecked_padding": ["n"]}])
def test_options_for_padding_need_buckets(option: Any, tmp_path: Path) -> None:
    signature = flat_signature(by_pad_id(1), [IDS], polymorphic_shapes="(b, n)", **option)
    (name,) = option
    with pytest.raises(SavingError, match=f"^The signature serving_default has {name}=.*no bucket"):
        save(tmp_path / "m", signature)


def test_progress_is_shown_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = Signature(by_pad_id(0), [IDS], polymorphic_shapes="(b, n)")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    save(tmp_path / "m", signature, buckets={"b": [2]}, vjp_order=0)
    assert "trying buckets" in capsys.readouterr().err


def test_what_gives_nothing_at_small_sizes_is_tried_at_the_bucket(tmp_path: Path) -> None:
    def cropped(x: Any) -> Any:
        return x[:, 10:].mean(1)

    signature = Signature(cropped, [np.ones((1, 20), np.float32)], polymorphic_shapes="(b, n)")
    with pytest.raises(UnsoundBucketsError, match=r"padding n = 42 to the bucket n = 64 changes"):
        save(tmp_path / "m", signature, buckets={"n": [64]})


def test_a_masked_sequence_of_whole_blocks_is_sound(tmp_path: Path) -> None:
    def in_blocks(x: Any, mask: Any) -> Any:
        real = (x * mask).reshape(x.shape[0], x.shape[1] // 8, 8).sum((1, 2))
        return real / jnp.maximum(mask.sum(1), 1)

    x = np.ones((1, 8), np.float32)
    signature = Signature(
        in_blocks,
        [x, x],
        polymorphic_shapes="(b, n)",
        polymorphic_constraints=["mod(n, 8) == 0"],
        padding=Padding(mask="mask"),
        example={"x": np.arange(16, dtype=np.float32)[None]},
    )
    save(tmp_path / "m", signature, buckets={"b": [4], "n": [8]}, vjp_order=0)
    served = tf.saved_model.load(tmp_path / "m").serving_default
    np.testing.assert_allclose(served(tf.ones((3, 8))), np.ones(3), rtol=1e-6)


def test_above_names_what_has_buckets(tmp_path: Path) -> None:
    signature = Signature(lambda x: x * 2, [np.ones(2, np.float32)], polymorphic_shapes="(b,)")
    with pytest.raises(SavingError, match="oversize names 'bb', which has no buckets: did you"):
        save(tmp_path / "m", signature, buckets={"b": [1, 4]}, oversize={"bb": "as is"})
    with pytest.raises(SavingError, match="oversize='as is' is for sizes above the largest bucket"):
        save(tmp_path / "m", signature, oversize="as is")


def test_padding_with_a_number_that_only_float64_has(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        x = np.ones((1, 3), np.float64)
        signature = Signature(
            lambda x: jnp.where(x == 1e300, 0, x).sum(1),
            [x],
            polymorphic_shapes="(b, n)",
            padding=Padding(pad_values={"x": 1e300}),
        )
        save(tmp_path / "m", signature, buckets={"n": [4]}, vjp_order=0)
    assert tf.saved_model.load(tmp_path / "m").serving_default(x).numpy() == [3]


def _with_positions(rows: int) -> Any:
    """Adds learned positions to embedded words; JAX fills rows beyond the table with NaN."""
    table = np.ones((rows, 4), np.float32)

    def encode(ids: Any) -> Any:
        words = jnp.take(jnp.ones((50, 4)), ids, axis=0)
        positions = jnp.take(table, jnp.arange(ids.shape[1]), axis=0, mode="fill")
        real = (ids > 0)[..., None]
        mixed = jnp.where(real, words + positions, 0).sum(1)
        return mixed / jnp.maximum(real.sum(1), 1) + 0 * positions.sum()

    return encode


def test_a_bucket_beyond_a_table_of_positions() -> None:
    function = named(_with_positions(32), np.ones((2, 5), np.int32), shapes="(b, n)")
    buckets = {"b": (1, 4), "n": (16, 64)}
    message = (
        "f: padding n = 17 to the bucket n = 64 makes the output 'output_0' infinite or NaN; "
        "without padding it is finite. A likely cause is a table with fewer rows than the "
        "bucket, such as learned positions: make its length the largest bucket of n. If it is "
        "right for all your requests, vouch for it: unchecked_padding=['n']."
    )
    with pytest.raises(UnsoundBucketsError, match=f"^{re.escape(message)}$") as caught:
        check_rows(function, function.bucketing(buckets))
    assert (caught.value.sizes, caught.value.bucket) == ({"n": 17}, {"n": 64})
    check_rows(function, function.bucketing({**buckets, "n": (16, 32)}))


def test_a_size_that_gives_infinity_without_padding() -> None:
    def growing(x: Any) -> Any:
        return jnp.exp(jnp.float32(3) * x.shape[1]) * (1 + 0 * x.sum(1))

    function = named(growing, np.ones((2, 5), np.float32), shapes="(b, n)")
    buckets = {"b": (1,), "n": (8, 64)}
    message = "f: the output 'output_0' is infinite or NaN at n = 64, in the bucket n = 64; at n = "
    with pytest.raises(UnsoundBucketsError, match=f"^{re.escape(message)}"):
        check_rows(function, function.bucketing(buckets, unchecked=["n"]))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_small_change_is_refused_where_nothing_is_rounded(tmp_path: Path, dtype: Any) -> None:
    def mean(table: Any, ids: Any) -> Any:
        return 1 + 0.01 * table[ids].astype(dtype).mean((1, 2)).astype(jnp.float32)

    signature = Signature(mean, args=[IDS], polymorphic_shapes="(b, n)", example={"ids": IDS})
    options: dict[str, Any] = {
        "params": np.asarray(TABLE),
        "buckets": {"b": [1, 2], "n": [8]},
    }
    if dtype == jnp.bfloat16:  # a change of one percent may be its rounding
        save(tmp_path / "m", signature, **options)
        return
    with pytest.raises(UnsoundBucketsError, match=r"changes the output 'output_0' by up to 0\.00"):
        save(tmp_path / "m", signature, **options)


@pytest.mark.costly
def test_the_mask_of_a_signature_with_preprocess_comes_from_there(tmp_path: Path) -> None:
    def look_up(text: Any) -> Any:
        return tf.strings.unicode_decode(text, "UTF-8").to_tensor() % 8

    def masked(text: Any) -> Any:
        ids = tf.strings.unicode_decode(text, "UTF-8")
        return ids.to_tensor() % 8, tf.ones_like(ids).to_tensor()

    def mean(table: Any, ids: Any, mask: Any = None) -> Any:
        mask = jnp.ones_like(ids) if mask is None else mask
        return (table[ids] * mask[..., None]).sum(1) / jnp.maximum(mask.sum(1), 1)[:, None]

    def write(preprocess: Any, args: list[Any]) -> None:
        signature = Signature(
            mean,
            args=args,
            polymorphic_shapes="(b, n)",
            processing=Processing(preprocess, {"text": tf.TensorSpec([None], tf.string)}),
            example={"text": ["abc", "defgh"]},
        )
        save(
            tmp_path / "m",
            signature,
            params=np.asarray(TABLE),
            buckets={"b": [1, 2], "n": [8]},
            vjp_order=0,
        )

    remedy = (
        "\n  - return a mask that is 1 for real elements and 0 for padding from preprocess, as an"
    )
    with pytest.raises(UnsoundBucketsError) as caught:
        write(look_up, [IDS])
    assert remedy in str(caught.value)
    assert "mask='...'" not in str(caught.value)
    write(masked, [IDS, IDS])
