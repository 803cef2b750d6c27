#!/usr/bin/env python3
"""Generates text in ONNX Runtime, with the cache as an argument and a result.

Reads FOLDER/onnx, which write.py wrote with --onnx, and fails if a token differs from JAX's in
FOLDER/reference.npz.
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
    options = parser.parse_args()
    generate(options.folder)


def generate(folder: Path) -> None:
    """Generates as many tokens as the reference has, and compares them."""
    import onnxruntime

    prefill, decode = (
        onnxruntime.InferenceSession(str(folder / "onnx" / f"{name}.onnx"))
        for name in ("prefill", "decode")
    )
    cache_names = [each.name for each in decode.get_inputs() if each.name.startswith("cache")]
    names = ["next_token", *(f"new_{name}" for name in cache_names)]
    with np.load(folder / "reference.npz") as reference:
        prompt, expected = reference["prompt"], reference["tokens"]
    start = time.perf_counter()
    token, *arrays = prefill.run(names, {"tokens": prompt[None]})
    tokens = [token]
    for length in range(len(prompt), len(prompt) + len(expected) - 1):
        cache = dict(zip(cache_names, arrays, strict=True))
        inputs = {**cache, "token": token, "length": np.array(length, np.int32)}
        token, *arrays = decode.run(names, inputs)
        tokens.append(token)
    rate = len(tokens) / (time.perf_counter() - start)
    equal = int(np.sum(np.concatenate(tokens) == expected))
    print(f"{equal} of {len(expected)} tokens are JAX's, {len(set(expected))} of them distinct")
    print(f"{rate:.1f} tokens a second")
    if equal < len(expected):
        sys.exit("A token differs")


if __name__ == "__main__":
    main()
