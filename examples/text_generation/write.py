#!/usr/bin/env python3
"""Writes a GPT-2 of Keras Hub with random weights as a LiteRT model that generates text.

FOLDER/generator.tflite has the signatures prefill and decode, which share a cache, and predict,
which has none. FOLDER/reference.npz has a prompt, and the tokens that Keras Hub generates in JAX.
With --onnx, FOLDER/onnx has ONNX models prefill and decode over one file of weights, which take and
return the cache.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_PROMPT_LENGTH = 10


def main() -> None:
    """Runs with the options of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files are written")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--words", type=int, default=1000, help="number of known tokens")
    parser.add_argument("--length", type=int, default=512, help="maximum length of a text")
    parser.add_argument("--count", type=int, default=500, help="number of tokens of the reference")
    parser.add_argument("--onnx", action="store_true", help="also write ONNX models")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported
    options.folder.mkdir(parents=True, exist_ok=True)
    write(**vars(options))


def write(folder: Path, count: int, words: int, length: int, onnx: bool, **sizes: int) -> None:
    """Writes the files."""
    from examples.text_generation.model import Generator, generate_in_keras, make_model
    from jax2tf_bridge import Signature, save_litert, save_onnx

    model = make_model(words=words, length=length, **sizes)
    prompt = np.random.default_rng(0).integers(0, words, _PROMPT_LENGTH).astype(np.int32)
    reference = generate_in_keras(model, prompt, count)
    np.savez(folder / "reference.npz", prompt=prompt, tokens=reference)

    generator = Generator(model)
    state = generator.make_state()

    def take_text(function: Callable[..., Any], *, updates_params: bool = False) -> Signature:
        return Signature(
            function,
            args=[prompt[None]],
            polymorphic_shapes="(1, n)",
            polymorphic_constraints=[f"n <= {length}"],
            updates_params=updates_params,
        )

    signatures = {
        "prefill": take_text(generator.prefill, updates_params=True),
        "decode": Signature(generator.decode, args=[prompt[:1]], updates_params=True),
        "predict": take_text(generator.predict),
    }
    written = save_litert(folder / "generator.tflite", signatures, params=state, overwrite=True)
    print(f"{written.path}: {written.size} bytes")

    if not onnx:
        return
    cache = [state["cache"], state["length"]]
    signatures = {
        "prefill": take_text(generator.start),
        "decode": Signature(generator.go_on, args=[prompt[:1], *cache]),
    }
    print(save_onnx(folder / "onnx", signatures, params=state["params"], overwrite=True))


if __name__ == "__main__":
    main()
