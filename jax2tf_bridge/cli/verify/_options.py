"""Defines the options of `verify`."""

from __future__ import annotations

import argparse
from pathlib import Path

from jax2tf_bridge.cli._commands import NOT_NEGATIVE, POSITIVE, exported_path

DESCRIPTION = """\
Compares a SavedModel in TensorFlow with the JAX function that it came from: values and gradients,
at sizes drawn from its symbolic shapes; with --latency also how long calls take.
Needs JAX and TensorFlow."""

EXAMPLES = """\
exit code 1 if something differs by more than the tolerance

examples:
  jax2tf-bridge verify predict/1 --against model:predict
  jax2tf-bridge verify predict/1 --against model:predict --samples 20 --gradients 5
  jax2tf-bridge verify predict/1 --against model:predict --batch-sizes 1,4,16 --plot latency.svg"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `verify`."""
    parser.add_argument(
        "directory", type=exported_path, metavar="DIR", help="the SavedModel of save()"
    )
    parser.add_argument(
        "--against",
        required=True,
        metavar="module:function",
        help="the JAX function, imported from the current folder or what is installed, or the "
        "model that is called, if it was saved as the weights",
    )
    parser.add_argument(
        "--params-like",
        metavar="module:object",
        help="an object like the weights that the function was saved with, or a function that "
        "makes one; by default one is looked for beside the function",
    )
    parser.add_argument("--signature", metavar="NAME", help="by default serving_default")
    parser.add_argument(
        "--samples", type=POSITIVE, default=5, metavar="N", help="how many sizes (default 5)"
    )
    parser.add_argument(
        "--gradients",
        type=NOT_NEGATIVE,
        default=1,
        metavar="N",
        help="at how many of them gradients are compared, too (default 1); they take most of the "
        "time",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of sizes and values")
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        metavar="X",
        help="how much floats may differ, relative to the largest number of an array, or to a "
        "tenth of the largest gradient; by default 1e-4 for float32, 1e-12, 1e-2, 6e-2 for "
        "float64, float16, bfloat16",
    )
    parser.add_argument(
        "--latency", action="store_true", help="measure how long calls take, too, which takes time"
    )
    parser.add_argument(
        "--batch-sizes",
        type=_sizes,
        metavar="N,N",
        help="at which to measure latency; by default powers of 2 up to 128",
    )
    parser.add_argument(
        "--rounds",
        type=NOT_NEGATIVE,
        metavar="N",
        help="calls that are measured at each size (default 20)",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="measure latency, and draw it over size"
    )
    parser.add_argument("--json", action="store_true", help="all of it as JSON")


def _tolerance(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no tolerance")
    return number


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({POSITIVE(part) for part in text.split(",")}))
