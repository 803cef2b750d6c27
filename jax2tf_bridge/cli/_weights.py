"""`jax2tf-bridge weights`: writes the weights of a SavedModel as a file that JAX reads."""

from __future__ import annotations

import argparse
from typing import Any

from jax2tf_bridge._utils import printable
from jax2tf_bridge.cli._commands import Command, add_output, check_output
from jax2tf_bridge.cli._console import Console
from jax2tf_bridge.saved_model import read_saved_weights
from jax2tf_bridge.storage import AnyPath, as_path
from jax2tf_bridge.weights import flatten_state, read_weights, unflatten_state, write_weights

_DESCRIPTION = """\
Writes the weights of a SavedModel, or of a file of safetensors, as a msgpack file that JAX and Flax
read. Needs neither JAX nor TensorFlow."""

_EXAMPLES = """\
examples:
  jax2tf-bridge weights predict/1 -o weights.msgpack
  jax2tf-bridge weights weights.safetensors -o weights.msgpack"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        type=as_path,
        metavar="PATH",
        help="the folder of a SavedModel that save wrote, also after TensorFlow trained it and "
        "saved it again; or a file of weights",
    )
    add_output(parser, "FILE", "the msgpack file to write", required=True)


def run(options: argparse.Namespace) -> None:
    """Reads the weights and writes the file."""
    console = Console(verbose=options.verbose)
    source: AnyPath = options.source
    check_output(options.output)
    with console.step(f"reading {source}"):
        tree: Any = (
            unflatten_state(read_saved_weights(source)) if source.is_dir() else read_weights(source)
        )
    with console.step(f"writing {options.output}"):
        write_weights(options.output, tree)
    print(printable(f"{options.output}: {len(flatten_state(tree))} weights of {source}"))


COMMAND = Command("weights", _DESCRIPTION, _EXAMPLES, _add_options, run)
