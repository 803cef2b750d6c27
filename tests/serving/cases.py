"""Table of the models that the server loads, with right and wrong requests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge import (
    Batching,
    Padding,
    Signature,
    Target,
    export,
    save,
    write_function,
    write_weights,
)
from scripts._env import ROOT
from tests.consumers.environments import process_environment
from tests.models.table import by_name
from tests.saving.text_classifier import PARAMS as TEXT_PARAMS
from tests.saving.text_classifier import WORDS
from tests.saving.text_classifier import signature as text_signature
from tests.serving.client import Arrays, Call

Random = np.random.Generator
Save = Callable[[Path, Path], str]
"""Writes a model at a path, and returns the text that `print(saved.serving)` prints.

The second argument is an interpreter that has the server's TensorFlow and no JAX.
"""


@dataclass(frozen=True)
class Wrong:
    """A request that the server refuses.

    Attributes:
      inputs: the arrays to send.
      grpc: part of the error over gRPC; None if it is not sent over gRPC.
      rest: part of the error over REST; None if it is not sent over REST.
      signature: name of the signature; "" leaves it out of the request.
    """

    inputs: Arrays
    grpc: str | None
    rest: str | None = None
    signature: str = ""


@dataclass(frozen=True)
class Case:
    """A kind of model.

    Attributes:
      name: name of the model.
      save: writes it.
      call: draws a call.
      compiles: number of modules that XLA compiles before the server is available.
      compiles_later: number of modules that it compiles for all calls.
      is_joined: whether the server joins requests.
      has_rest: whether REST can answer.
      note: part of the printed text.
      wrong: requests that the server refuses.
    """

    name: str
    save: Save
    call: Callable[[Random], Call]
    compiles: int
    compiles_later: int = 0
    is_joined: bool = False
    has_rest: bool = True
    note: str = ""
    wrong: Sequence[Wrong] = ()


RNG = np.random.default_rng(0)
W = RNG.normal(size=(28, 10)).astype(np.float32)
HEAD = RNG.normal(size=(10, 3)).astype(np.float32)
TABLE = RNG.normal(size=(50, 8)).astype(np.float32)
X = np.ones((2, 28), np.float32)
IDS, LENGTHS = np.ones((2, 5), np.int32), np.array([5, 4], np.int32)
ROWS = {"b": [1, 8, 32]}
ROWS_AND_LENGTHS = {"b": [1, 8], "n": [16, 64]}
APART = "Requests are not joined (--enable_batching) because of serving_default: "


def save_here(signatures: Any, **options: Any) -> Save:
    """Saves in this process."""
    return lambda path, _: str(save(path, signatures, **options).serving)


def save_precompiled(path: Path, python: Path) -> str:
    """Saves by the command line with the server's TensorFlow: programs are for one release."""
    path.parent.mkdir()
    file, weights = path.parent / "dense.jaxfn", path.parent / "w.msgpack"
    write_function(file, export(dense, polymorphic_shapes=[None, "(b, 28)"])(W, X))
    write_weights(weights, W)
    words = ["save", file, "--params", weights, "--buckets", "b=1,8,32", "--precompile"]
    done = subprocess.run(
        [str(python), "-m", "jax2tf_bridge", "--verbose", *map(str, words), "-o", str(path)],
        cwd=ROOT,
        env=process_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def dense(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def draw_rows(random: Random, at_most: int = 32) -> Any:
    return random.normal(size=(random.integers(1, at_most + 1), 28)).astype(np.float32)


def call_dense(random: Random) -> Call:
    x = draw_rows(random)
    return Call({"x": x}, {"output_0": np.tanh(x @ W)})


DENSE = Signature(dense, args=[X], polymorphic_shapes="(b, 28)")

WRONG_ROWS = (
    *(
        Wrong({"x": np.ones(shape, np.float32)}, text, text)
        for shape in ((3, 27), (3, 1), (3,), (1, 3, 28))
        for text in ["expected shape [?,28]"]
    ),
    Wrong({"x": np.ones((3, 28))}, "Expects arg[0] to be float but double is provided"),
    Wrong({"x": [["a"]]}, None, "is not of expected type: float"),
    Wrong({"y": X}, "x(feed name: serving_default_x:0) not found", "Missing named input: x"),
    Wrong({"x": X, "y": X}, "Sent extra: {y}"),
    Wrong({"x": X}, '"other" not found', '"other" not found', "other"),
)
TOO_MANY = "Task size 33 is larger than maximum input batch size 32"
WRONG_JOINED_ROWS = (
    *WRONG_ROWS,
    Wrong({"x": np.ones((33, 28), np.float32)}, TOO_MANY, TOO_MANY),
)


def call_few_sizes(random: Random) -> Call:
    x = draw_rows(random, 3)
    return Call({"x": x}, {"output_0": np.tanh(x @ W)})


def bfloat16(w: Any, x: Any) -> Any:
    return dense(w, x).astype(jnp.bfloat16)


def call_bfloat16(random: Random) -> Call:
    x = draw_rows(random)
    return Call({"x": x}, {"output_0": np.tanh(x @ W).astype(jnp.bfloat16)})


def sharpen(w: Any, x: Any, *, temperature: Any) -> Any:
    return dense(w, x / temperature)


def call_defaults(random: Random) -> Call:
    x, temperature = draw_rows(random, 8), np.float32(random.uniform(1, 5))
    if random.random() < 0.5:
        return Call({"x": x}, {"output_0": np.tanh(x @ W / 2)})
    return Call({"x": x, "temperature": temperature}, {"output_0": np.tanh(x @ W / temperature)})


def embed(params: Any, x: Any) -> Any:
    return dense(params["w"], x)


def classify(params: Any, x: Any) -> Any:
    logits = embed(params, x) @ params["head"]
    return {"logits": logits, "probabilities": jax.nn.softmax(logits)}


def compute_softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def call_signatures(random: Random) -> Call:
    x = draw_rows(random)
    if random.random() < 0.5:
        return Call({"x": x}, {"output_0": np.tanh(x @ W)}, "embed")
    logits = np.tanh(x @ W) @ HEAD
    return Call({"x": x}, {"logits": logits, "probabilities": compute_softmax(logits)})


def masked_sum(table: Any, ids: Any, lengths: Any) -> Any:
    is_real = jnp.arange(ids.shape[1]) < lengths[:, None]
    return (table[ids] * is_real[..., None]).sum(1)


def attend(table: Any, ids: Any, mask: Any) -> Any:
    scores = jnp.where(mask, table[ids].sum(-1), -1e9)
    return jnp.einsum("bn,bnd->bd", jax.nn.softmax(scores), table[ids])


def attend_masked(table: Any, ids: Any, attention_mask: Any) -> Any:
    return attend(table, ids, attention_mask > 0)


def attend_without_pads(table: Any, ids: Any) -> Any:
    return attend(table, ids, ids != 1)


def compute_attention(ids: Any, mask: Any) -> Any:
    weights = compute_softmax(np.where(mask, TABLE[ids].sum(-1), -np.inf))
    return np.einsum("bn,bnd->bd", weights, TABLE[ids])


def draw_ids(random: Random, at_most: int = 12) -> Any:
    """Draws ids above 1. By default some have more rows than the largest bucket, which is 8."""
    shape = random.integers(1, (at_most + 1, 33))
    return random.integers(2, 50, shape).astype(np.int32)


def call_lengths(random: Random) -> Call:
    ids = draw_ids(random, 8)
    lengths = random.integers(1, ids.shape[1] + 1, ids.shape[:1]).astype(np.int32)
    sums = [TABLE[row[:length]].sum(0) for row, length in zip(ids, lengths, strict=True)]
    return Call({"ids": ids, "lengths": lengths}, {"output_0": np.stack(sums)})


def call_attention_mask(random: Random) -> Call:
    ids = draw_ids(random)
    mask = random.integers(0, 2, ids.shape).astype(np.int32)
    mask[:, 0] = 1
    return Call(
        {"ids": ids, "attention_mask": mask}, {"output_0": compute_attention(ids, mask > 0)}
    )


def call_mask(random: Random) -> Call:
    ids = draw_ids(random)
    return Call({"ids": ids}, {"output_0": compute_attention(ids, True)})


def call_pad_id(random: Random) -> Call:
    ids = draw_ids(random)
    ids[random.random(ids.shape) < 0.3] = 1
    ids[:, 0] = 2
    return Call({"ids": ids}, {"output_0": compute_attention(ids, ids != 1)})


def text_case(
    name: str,
    function: Any,
    args: Sequence[Any],
    call: Callable[[Random], Call],
    *wrong: Wrong,
    is_joined: bool = False,
    padding: Padding | None = None,
) -> Case:
    """Makes a model of ids in rows of open lengths, with buckets for both."""
    shapes = ["(b, n)" if arg.ndim == 2 else "(b,)" for arg in args]
    signature = Signature(
        function, args=args, polymorphic_shapes=shapes, padding=padding or Padding()
    )
    return Case(
        name,
        save_here(signature, params=TABLE, buckets=ROWS_AND_LENGTHS),
        call,
        compiles=4,
        is_joined=is_joined,
        note="also pads requests of a wrong size" if is_joined else APART,
        wrong=wrong,
    )


WRONG_RANK = "_ids_0_0 [1,2,5] is not compatible with expected shape [?,?]"


def call_strings(random: Random) -> Call:
    texts = [random.choice(WORDS, random.integers(1, 5)) for _ in range(random.integers(1, 9))]
    sums = [TEXT_PARAMS["embedding"][[WORDS.index(w) + 1 for w in text]].sum(0) for text in texts]
    scores = compute_softmax(np.stack(sums) @ TEXT_PARAMS["head"])
    labels = np.array([b"negative", b"positive"], object)[scores.argmax(1)]
    strings = np.array([" ".join(text) for text in texts], object)
    return Call({"text": strings}, {"label": labels, "scores": scores})


RECOMMENDER = by_name("recommender")
BUILT_RECOMMENDER = RECOMMENDER.build()
MAX_ROWS, MAX_HISTORY = 8, 16
RECOMMEND = jax.jit(BUILT_RECOMMENDER.function)


def call_recommender(random: Random) -> Call:
    rows, length = random.integers(1, (MAX_ROWS + 1, MAX_HISTORY + 1))
    # One shape, so that JAX compiles once. The id 0 is padding.
    numbers = random.normal(size=(MAX_ROWS, 13)).astype(np.float32)
    shapes = {"user": (MAX_ROWS,), "item": (MAX_ROWS,), "history": (MAX_ROWS, MAX_HISTORY)}
    ids = {n: random.integers(1, 20_000, shape).astype(np.int32) for n, shape in shapes.items()}
    ids["history"][:, length:] = 0
    inputs = {f"ids_{name}": array[:rows] for name, array in ids.items()}
    inputs["ids_history"] = inputs["ids_history"][:, :length]
    return Call(
        {"numbers": numbers[:rows], **inputs},
        {"output_0": np.asarray(RECOMMEND(BUILT_RECOMMENDER.params, numbers, ids))[:rows]},
    )


CASES = (
    Case(
        "dense",
        save_here(DENSE, params=W, buckets=ROWS),
        call_dense,
        compiles=3,
        is_joined=True,
        note="A request of a wrong size also fails the requests",
        wrong=WRONG_JOINED_ROWS,
    ),
    Case(
        "joining",
        save_here(DENSE, params=W, buckets=ROWS, batching=Batching(batch_timeout_micros=500)),
        call_dense,
        compiles=3,
        note="The model joins requests itself",
        wrong=WRONG_ROWS,
    ),
    Case(
        "any_size",
        save_here(
            Signature(dense, args=[X], polymorphic_shapes="(b, 28)", example={"x": X[:1]}),
            params=W,
        ),
        call_few_sizes,
        compiles=1,
        compiles_later=2,
        note=f"{APART}it has no buckets.",
        wrong=WRONG_ROWS,
    ),
    Case(
        "operations",
        save_here(DENSE, params=W, target=Target.widest(xla=False)),
        call_dense,
        compiles=0,
        note=f"{APART}it has no buckets.",
        wrong=WRONG_ROWS,
    ),
    Case(
        "precompiled",
        save_precompiled,
        call_dense,
        compiles=0,
        is_joined=True,
        note="TF_XLA_FLAGS names the programs that precompile stored.",
        wrong=WRONG_JOINED_ROWS,
    ),
    Case(
        "signatures",
        save_here(
            {
                "serving_default": Signature(classify, args=[X], polymorphic_shapes="(b, 28)"),
                "embed": Signature(embed, args=[X], polymorphic_shapes="(b, 28)"),
            },
            params={"w": W, "head": HEAD},
            buckets=ROWS,
        ),
        call_signatures,
        compiles=6,
        is_joined=True,
        wrong=(
            *WRONG_JOINED_ROWS,
            Wrong({"x": X[:, 1:]}, "_embed_x_", "expected shape [?,28]", "embed"),
        ),
    ),
    Case(
        "defaults",
        save_here(
            Signature(
                sharpen,
                args=[X],
                kwargs={"temperature": np.float32(1)},
                polymorphic_shapes="(b, 28)",
                defaults={"temperature": 2.0},
            ),
            params=W,
            buckets={"b": [8]},
        ),
        call_defaults,
        compiles=1,
        note="so its callers also pass temperature of serving_default.",
        wrong=(
            Wrong({"x": X}, None, "Missing named input: temperature"),
            Wrong({"temperature": np.float32(1)}, "x(feed name: serving_default_x:0) not found"),
            Wrong({"x": X, "temperature": X}, "_temperature_0_0 [2,28] is not compatible"),
            Wrong({"x": X, "y": X}, "request input: "),
        ),
    ),
    Case(
        "bfloat16",
        save_here(
            Signature(bfloat16, args=[X], polymorphic_shapes="(b, 28)"), params=W, buckets=ROWS
        ),
        call_bfloat16,
        compiles=3,
        is_joined=True,
        has_rest=False,
        note="The REST API has no bfloat16, so these signatures work over gRPC only: "
        "serving_default (output_0).",
        wrong=(Wrong({"x": X}, None, "Failed to write JSON value for tensor type: bfloat16"),),
    ),
    text_case(
        "lengths",
        masked_sum,
        [IDS, LENGTHS],
        call_lengths,
        Wrong({"ids": IDS, "lengths": IDS}, "_lengths_0_1 ", "expected shape [?]"),
        Wrong({"ids": IDS, "lengths": LENGTHS[:1]}, "equal 0th-dimension", "equal 0th-dimension"),
        is_joined=True,
    ),
    text_case(
        "attention_mask",
        attend_masked,
        [IDS, IDS],
        call_attention_mask,
        *(
            Wrong({"ids": IDS, "attention_mask": mask}, f"{text}, got] {got}", text)
            for text in ["serving_default: attention_mask: expected shape (b, n)"]
            for mask, got in ((IDS[:, :4], "[2 4] [: n is] [5]"), (IDS[:1], "[1 5] [: b is] [2]"))
        ),
    ),
    text_case(
        "mask",
        attend,
        [IDS, IDS > 0],
        call_mask,
        Wrong({"ids": IDS[None]}, WRONG_RANK, WRONG_RANK),
        Wrong({"ids": IDS, "mask": IDS > 0}, "Sent extra: {mask}"),
        padding=Padding(mask="mask"),
    ),
    text_case(
        "pad_id",
        attend_without_pads,
        [IDS],
        call_pad_id,
        Wrong({"ids": IDS[None]}, WRONG_RANK, WRONG_RANK),
        padding=Padding(pad_values={"ids": 1}),
    ),
    Case(
        "strings",
        save_here(
            text_signature(example=[{"text": ["good film"]}, {"text": ["not a good film"]}]),
            params=TEXT_PARAMS,
            buckets={"b": [1, 8], "l": [2, 4]},
        ),
        call_strings,
        compiles=4,
        is_joined=True,
        wrong=(
            Wrong({"text": X}, "Expects arg[0] to be string", "is not of expected type: string"),
            Wrong({"text": [["good"]]}, "_text_0_0 [1,1] is not", "_text_0_0 [1,1] is not"),
        ),
    ),
    Case(
        "recommender",
        save_here(
            Signature(
                BUILT_RECOMMENDER.function,
                args=BUILT_RECOMMENDER.example,
                polymorphic_shapes=RECOMMENDER.polymorphic_shapes,
            ),
            params=BUILT_RECOMMENDER.params,
            buckets={"b": [1, MAX_ROWS], "n": [4, MAX_HISTORY]},
        ),
        call_recommender,
        compiles=4,
        note=APART,
        wrong=(
            Wrong(
                dict.fromkeys(("ids_user", "ids_item"), LENGTHS)
                | {"ids_history": IDS, "numbers": X},
                "_numbers_0_3 [2,28] is not compatible with expected shape [?,13]",
                "_numbers_0_3 [2,28] is not compatible with expected shape [?,13]",
            ),
        ),
    ),
)
"""Every model."""
