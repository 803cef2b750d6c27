"""Text generation with a cache that a model keeps, word by word as in JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, Target, save, save_litert
from tests.litert.running import interpreter
from tests.training.decoder import LENGTH, decode, generate, make_cache, make_params

PROMPT = np.array([3, 14, 15, 9, 2], np.int32)
STATE = {"params": make_params(), "cache": make_cache()}
DECODE = Signature(
    decode,
    args=[PROMPT],
    polymorphic_shapes="(n,)",
    polymorphic_constraints=[f"n <= {LENGTH}"],
    updates_params=True,
)


def write(next_word: Callable[[Any], Any], count: int) -> list[int]:
    """Generates words: reads the prompt, then each word that it got."""
    words = [int(next_word(PROMPT))]
    while len(words) < count:
        words.append(int(next_word(np.array(words[-1:], np.int32))))
    return words


def write_in_jax(count: int) -> list[int]:
    state, step = STATE, jax.jit(decode)

    def next_word(words: Any) -> Any:
        nonlocal state
        outputs, new = step(state, words)
        state = {**state, **new}
        return outputs["word"]

    return write(next_word, count)


@pytest.mark.costly
@pytest.mark.parametrize("target", [None, Target.widest(xla=False)], ids=["XLA", "operations"])
def test_a_saved_model_keeps_the_cache(tmp_path: Path, target: Target | None) -> None:
    saved = save(
        tmp_path / "m",
        {"decode": DECODE},
        params=STATE,
        trainable=["params"],
        weight_signatures=["reset_weights"],
        target=target,
    )
    assert saved.signatures["decode"].updates == ("cache/keys", "cache/length", "cache/values")
    model = tf.saved_model.load(str(tmp_path / "m"))
    expected = write_in_jax(50)
    for _ in range(2):  # the second text begins after a reset

        def next_word(words: Any) -> Any:
            return model.signatures["decode"](words=tf.constant(words))["word"]

        assert write(next_word, 50) == expected
        model.signatures["reset_weights"]()


@pytest.mark.slow
def test_litert_keeps_the_cache(tmp_path: Path) -> None:
    written = save_litert(tmp_path / "m.tflite", {"decode": DECODE}, params=STATE)
    runner = interpreter(written.path).get_signature_runner("decode")
    assert write(lambda words: runner(words=words)["word"], 50) == write_in_jax(50)


@pytest.mark.costly
def test_a_server_takes_and_returns_the_cache(tmp_path: Path) -> None:
    def read(params: Any, words: Any, cache: Any) -> Any:
        outputs, new = decode({"params": params, "cache": cache}, words)
        return {**outputs, "cache": new["cache"]}

    signature = Signature(
        read,
        args=[PROMPT, make_cache()],
        polymorphic_shapes=["(n,)", None],
        polymorphic_constraints=[f"n <= {LENGTH}"],
    )
    save(tmp_path / "m", signature, params=STATE["params"])
    model = tf.saved_model.load(str(tmp_path / "m"))

    def begin_text() -> Callable[[Any], Any]:
        cache = {f"cache_{name}": tf.constant(array) for name, array in make_cache().items()}

        def next_word(words: Any) -> Any:
            outputs = model.signatures["serving_default"](words=tf.constant(words), **cache)
            cache.update({name: outputs[name] for name in cache})
            return outputs["word"]

        return next_word

    next_word, other = begin_text(), begin_text()

    def next_word_between_others(words: Any) -> Any:
        other(np.array([7], np.int32))
        return next_word(words)

    assert write(next_word_between_others, 50) == write_in_jax(50)


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, Target.widest(xla=False)], ids=["XLA", "operations"])
def test_a_whole_text_in_one_call(tmp_path: Path, target: Target | None) -> None:
    key = jax.random.key(0)
    signature = Signature(
        generate,
        args=[PROMPT, key, np.float32(1)],
        polymorphic_shapes=["(n,)", None, None],
        polymorphic_constraints=[f"n <= {LENGTH}"],
        seed="scalar",
    )
    save(tmp_path / "m", signature, params=STATE["params"], target=target)
    model = tf.saved_model.load(str(tmp_path / "m"))
    for seed, prompt in ((0, PROMPT), (7, PROMPT[:2])):
        inputs = {"prompt": prompt, "key": np.uint32(seed), "temperature": np.float32(0.8)}
        answer = model.signatures["serving_default"](
            **{name: tf.constant(value) for name, value in inputs.items()}
        )
        expected = generate(
            jax.device_put(STATE["params"]), prompt, jax.random.key(seed), np.float32(0.8)
        )
        np.testing.assert_array_equal(answer["words"], expected["words"])
