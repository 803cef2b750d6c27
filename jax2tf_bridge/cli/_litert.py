"""`jax2tf-bridge litert`: functions in files, or a SavedModel, as a LiteRT model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax2tf_bridge._utils import printable
from jax2tf_bridge.cli._commands import (
    Command,
    UsageError,
    add_output,
    check_output,
)
from jax2tf_bridge.cli._console import Console
from jax2tf_bridge.cli._packages import loading
from jax2tf_bridge.cli._references import METAVAR, NamedPath, by_signature, named_path
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.storage import AnyPath, as_path, on_disk

_DESCRIPTION = """\
Writes functions in files, or the signatures of a SavedModel, as a LiteRT model (.tflite) of
built-in operations. Needs TensorFlow, and no JAX."""

_EXAMPLES = """\
examples:
  jax2tf-bridge litert predict.jaxfn -o predict.tflite
  jax2tf-bridge litert predict/1 -o predict.tflite
  jax2tf-bridge litert classify=classify.jaxfn embed=embed.jaxfn --params weights.msgpack \\
      -o model.tflite
  jax2tf-bridge litert predict.jaxfn -o predict.tflite --quantize int8 \\
      --representative-data inputs.npz"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="+",
        type=named_path,
        metavar=METAVAR,
        help="what export wrote, with the signature's name where there are several; or the folder "
        "of a SavedModel",
    )
    add_output(parser, "FILE", "the .tflite file to write", required=True)
    parser.add_argument(
        "--params",
        type=as_path,
        metavar="WEIGHTS",
        help="a msgpack or safetensors file: the functions' first argument, shared by all of them",
    )
    parser.add_argument(
        "--quantize",
        choices=("dynamic_range", "float16", "int8"),
        help="what becomes of float32: int8 weights, float16 weights, or computing with int8",
    )
    parser.add_argument(
        "--representative-data",
        type=as_path,
        metavar="NPZ",
        help="for int8: inputs as they come, in a .npz file by their names; the first axis of each "
        "array counts the calls",
    )
    parser.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="do not run the model once in LiteRT, to compare it with TensorFlow",
    )


def run(options: argparse.Namespace) -> None:
    """Reads the files, or the SavedModel, and writes the model."""
    console = Console(verbose=options.verbose)
    output: AnyPath = options.output
    check_output(output)
    signatures = _signatures(options.file)
    data = None if options.representative_data is None else _samples(options.representative_data)
    with loading("TensorFlow", "litert", console):
        from jax2tf_bridge.litert import save_litert
    with console.step(f"converting to {output}"):
        model = save_litert(
            output,
            signatures,
            params=options.params,
            quantize=options.quantize,
            representative_data=data,
            verify=options.verify,
        )
    print(printable(str(model)))


def _signatures(files: list[NamedPath]) -> Any:
    folders = [path for _, path in files if path.is_dir()]
    if folders:
        if len(files) > 1 or files[0][0]:
            raise UsageError(
                f"{folders[0]} is a SavedModel, which has signatures with names of its own: name "
                "it alone"
            )
        return folders[0]
    return {name: read_function(path) for name, path in by_signature(files).items()}


def _samples(file: AnyPath) -> list[Mapping[str, Any]]:
    try:
        with on_disk(file) as local, np.load(local, allow_pickle=False) as arrays:
            by_name = dict(arrays)
    except (ValueError, EOFError) as e:
        raise FileFormatError(
            f"{file} is no .npz file of arrays, as numpy.savez writes it: {e}", file=str(file)
        ) from e
    counts = {len(array) if array.ndim else 0 for array in by_name.values()}
    if len(counts) != 1:
        raise UsageError(
            f"--representative-data: the first axis of each array in {file} counts the calls, and "
            f"has to be the same. Got: {', '.join(f'{n} {a.shape}' for n, a in by_name.items())}"
        )
    return [{n: a[i] for n, a in by_name.items()} for i in range(counts.pop())]


COMMAND = Command("litert", _DESCRIPTION, _EXAMPLES, _add_options, run)
