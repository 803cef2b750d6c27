#!/usr/bin/env python3
"""Generates text in LiteRT's interpreter, with neither JAX nor TensorFlow.

Reads the files of write.py, and fails if a token differs from JAX's. Then predicts some of the
tokens from the whole text before them, which takes longer than from a cache.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np


def main() -> None:
    """Runs with the options of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what write.py wrote")
    parser.add_argument(
        "--predicted", type=int, default=10, help="number of tokens to predict without a cache"
    )
    options = parser.parse_args()
    generate(options.folder, options.predicted)


def generate(folder: Path, predicted: int) -> None:
    """Generates as many tokens as the reference has, and compares them."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(folder / "generator.tflite"))
    prefill = interpreter.get_signature_runner("prefill")
    decode = interpreter.get_signature_runner("decode")
    with np.load(folder / "reference.npz") as reference:
        prompt, expected = reference["prompt"], reference["tokens"]
    print(f"loaded of JAX and TensorFlow: {_list_loaded() or 'none'}")

    start = time.perf_counter()
    tokens = [prefill(tokens=prompt[None])["next_token"]]
    while len(tokens) < len(expected):
        tokens.append(decode(token=tokens[-1])["next_token"])
    rate = len(tokens) / (time.perf_counter() - start)
    equal = int(np.sum(np.concatenate(tokens) == expected))
    print(f"{equal} of {len(expected)} tokens are JAX's, {len(set(expected))} of them distinct")
    print(f"{rate:.1f} tokens a second")
    if equal < len(expected):
        sys.exit("A token differs")

    predict = interpreter.get_signature_runner("predict")
    text = np.concatenate([prompt, expected])
    places = np.linspace(len(prompt), len(text) - 1, predicted).astype(int)
    start = time.perf_counter()
    equal = sum(int(predict(tokens=text[None, :p])["next_token"][0] == text[p]) for p in places)
    rate = len(places) / (time.perf_counter() - start)
    print(f"without a cache {equal} of {len(places)} tokens, {rate:.1f} tokens a second")


def _list_loaded() -> str:
    return ", ".join(sorted({"jax", "tensorflow"} & set(sys.modules)))


if __name__ == "__main__":
    main()
