"""`jax2tf-bridge litert`, `tfjs`, `onnx`, `coreml` and `weights`: write other formats."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Mapping
from typing import Any

from jax2tf_bridge.cli._commands import (
    READING_ERRORS,
    Command,
    UsageError,
    add_functions,
    add_json,
    add_output,
    add_overwrite,
    add_params,
    add_updates,
    check_names,
    check_output,
    map_signatures,
    print_result,
    read_named_path,
    read_npz,
    read_source,
    report_output,
)
from jax2tf_bridge.cli._console import Console
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model import read_saved_weights
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.storage import AnyPath, as_path
from jax2tf_bridge.weights import flatten_state, read_weights, unflatten_state, write_weights

_LITERT = """\
Writes functions in files, or the signatures of a SavedModel, as a LiteRT model (.tflite) of
built-in operations. Needs TensorFlow, not JAX."""

_LITERT_EXAMPLES = """\
examples:
  jax2tf-bridge litert predict.jaxfn -o predict.tflite
  jax2tf-bridge litert predict/1 -o predict.tflite
  jax2tf-bridge litert classify=classify.jaxfn embed=embed.jaxfn --params weights.msgpack \\
      -o model.tflite
  jax2tf-bridge litert predict.jaxfn -o predict.tflite --quantize int8 \\
      --representative-data inputs.npz"""

_ONNX = """\
Writes a function in a file as an ONNX model, or several as a folder of models over one file of
weights. Needs neither JAX nor TensorFlow, but the package onnx."""

_ONNX_EXAMPLES = """\
examples:
  jax2tf-bridge onnx predict.jaxfn -o predict.onnx
  jax2tf-bridge onnx predict.jaxfn --params weights.msgpack -o predict.onnx
  jax2tf-bridge onnx classify=classify.jaxfn embed=embed.jaxfn --params weights.msgpack \\
      -o models"""

_COREML = """\
Writes a function in a file, or the signature of a SavedModel, as a Core ML package (.mlpackage).
Needs TensorFlow and coremltools, not JAX."""

_COREML_EXAMPLES = """\
examples:
  jax2tf-bridge coreml predict.jaxfn -o predict.mlpackage --sizes b=1
  jax2tf-bridge coreml predict.jaxfn --params weights.msgpack -o predict.mlpackage --sizes b=1..8
  jax2tf-bridge coreml predict/1 -o predict.mlpackage --sizes b=1,n=128 --precision float16"""

_TFJS = """\
Writes functions in files, or the signatures of a SavedModel, as graph models of TensorFlow.js.
Needs TensorFlow, not JAX."""

_TFJS_EXAMPLES = """\
examples:
  jax2tf-bridge tfjs predict.jaxfn -o web/model
  jax2tf-bridge tfjs predict/1 -o web/model --quantize float16
  jax2tf-bridge tfjs classify=classify.jaxfn embed=embed.jaxfn --params weights.msgpack \\
      -o web/model"""

_WEIGHTS = """\
Writes the weights of a SavedModel, or of a file of safetensors, as a msgpack file that JAX and Flax
read. Needs neither JAX nor TensorFlow."""

_WEIGHTS_EXAMPLES = """\
examples:
  jax2tf-bridge weights predict/1 -o weights.msgpack
  jax2tf-bridge weights weights.safetensors -o weights.msgpack"""


def _add_litert_options(parser: argparse.ArgumentParser) -> None:
    add_functions(parser, takes_model=True)
    add_output(parser, "FILE", "the .tflite file to write")
    add_params(parser)
    add_updates(parser)
    parser.add_argument(
        "--quantize",
        choices=("dynamic_range", "float16", "int8", "int16x8", "as_trained"),
        help="replacement of float32: int8 weights (dynamic_range), float16 weights (float16), "
        "computing with int8 (int8), with int16 and int8 weights (int16x8), or with int8 where the "
        "function itself rounds to steps (as_trained)",
    )
    parser.add_argument(
        "--representative-data",
        type=as_path,
        metavar="NPZ",
        help="for int8 and int16x8: a .npz file with typical inputs by name; each array has one "
        "entry per call on its first axis",
    )
    parser.add_argument(
        "--integers-only",
        action="store_true",
        help="for int8, int16x8 and as_trained: take and return integers in place of float32, and "
        "refuse operations on floats in between",
    )
    parser.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="do not run the model once in LiteRT and compare it with TensorFlow",
    )
    add_overwrite(parser)
    add_json(parser)


def _write_litert(options: argparse.Namespace, console: Console) -> None:
    output: AnyPath = options.output
    check_output(output)
    data = (
        None if options.representative_data is None else _read_samples(options.representative_data)
    )
    source = read_source(options)
    with console.loading("TensorFlow", "litert"):
        from jax2tf_bridge.litert import save_litert
        from jax2tf_bridge.signatures import Signature
    signatures: Any = source
    if isinstance(source, dict):
        signatures = {
            name: Signature(function, updates_params=name in options.updates_params)
            for name, function in source.items()
        }
    with console.step(f"converting to {output}"):
        model = save_litert(
            output,
            signatures,
            params=options.params,
            weight_signatures=options.weight_signatures or None,
            quantize=options.quantize,
            representative_data=data,
            integers_only=options.integers_only,
            verify=options.verify,
            overwrite=options.overwrite,
        )
    report_output(options, output, [str(model)])


def _add_tfjs_options(parser: argparse.ArgumentParser) -> None:
    add_functions(parser, takes_model=True)
    add_output(parser, "DIR", "the folder to write")
    add_params(parser)
    parser.add_argument(
        "--quantize",
        choices=("float16", "uint16", "uint8"),
        help="the dtype of stored float32 weights",
    )
    add_overwrite(parser)
    add_json(parser, "print a description of the models as JSON")


def _write_tfjs(options: argparse.Namespace, console: Console) -> None:
    source = read_source(options)
    with console.loading("TensorFlow", "tfjs"):
        from jax2tf_bridge.tfjs import save_tfjs
    with console.step(f"converting to {options.output}"):
        model = save_tfjs(
            options.output,
            source,
            params=options.params,
            quantize=options.quantize,
            overwrite=options.overwrite,
        )
    print_result(options, model)


def _read_samples(file: AnyPath) -> list[Mapping[str, Any]]:
    try:
        by_name = read_npz(file)
    except READING_ERRORS as e:
        raise FileFormatError(
            f"{file} is not an .npz file of arrays, as numpy.savez writes: {e}", file=str(file)
        ) from e
    counts = {len(array) if array.ndim else 0 for array in by_name.values()}
    if len(counts) != 1:
        raise UsageError(
            f"--representative-data: each array in {file} needs one entry per call on its first "
            f"axis, so these axes must be equal. Got: "
            f"{', '.join(f'{n} {a.shape}' for n, a in by_name.items())}"
        )
    return [{n: a[i] for n, a in by_name.items()} for i in range(counts.pop())]


def _add_onnx_options(parser: argparse.ArgumentParser) -> None:
    add_functions(parser)
    add_output(parser, "PATH", "the .onnx file to write; for several functions, the folder")
    add_params(parser)
    parser.add_argument(
        "--opset",
        type=int,
        default=18,
        metavar="VERSION",
        help="the version of ONNX's operations, 18 to 23 (default: %(default)s)",
    )
    parser.add_argument(
        "--functions",
        action="store_true",
        help="write each jitted function that is called several times as a function of the model",
    )
    parser.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="do not run the model once in ONNX Runtime and compare it with JAX, as far as these "
        "are installed",
    )
    add_overwrite(parser)
    add_json(parser, "print JSON about what was written")


def _write_onnx(options: argparse.Namespace, console: Console) -> None:
    output: AnyPath = options.output
    files = map_signatures(options.file)
    if len(files) == 1:
        check_output(output)
    for path in files.values():
        if path.is_dir():
            raise UsageError(
                f"{path} is a folder, and this command reads files that export wrote. To convert a "
                "SavedModel, write it with: jax2tf-bridge retarget --for-converters, and use "
                "tf2onnx"
            )
    functions = {name: read_function(path) for name, path in files.items()}
    from jax2tf_bridge.to_onnx import save_onnx

    with console.step(f"converting to {output}"):
        model = save_onnx(
            output,
            functions,
            params=options.params,
            opset=options.opset,
            functions=options.functions,
            verify=options.verify,
            overwrite=options.overwrite,
        )
    print_result(options, model)


def _add_coreml_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs=1,
        type=read_named_path,
        metavar="PATH",
        help="a file that export wrote, or the folder of a SavedModel with one signature",
    )
    add_output(parser, "DIR", "the package to write; its name ends with .mlpackage")
    add_params(parser)
    parser.add_argument(
        "--sizes",
        action="extend",
        default=[],
        type=_read_size_bounds,
        metavar="NAME=SIZE[,NAME=SIZE]",
        help="the value of each open size, or its range, as b=1 or b=1..8. In a SavedModel that "
        "the bridge did not write, a size has the name of its input and axis, as x.0=1",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "float16"),
        default="float32",
        help="the dtype in which Core ML computes with floats (default: %(default)s); the Neural "
        "Engine needs float16",
    )
    add_overwrite(parser)
    add_json(parser, "print a description of the package as JSON")


def _read_size_bounds(text: str) -> list[tuple[str, int | tuple[int, int]]]:
    """Reads NAME=SIZE or NAME=LEAST..GREATEST, separated by commas.

    >>> _read_size_bounds("b=1..8,x.0=3")
    [('b', (1, 8)), ('x.0', 3)]
    """
    bounds: list[tuple[str, int | tuple[int, int]]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^=\s]+)=(\d+)(?:\.\.(\d+))?\s*", part)
        least, greatest = (int(match[2]), int(match[3] or match[2])) if match else (0, 0)
        if match is None or not 1 <= least <= greatest:
            raise argparse.ArgumentTypeError(
                "expected open sizes with their values or ranges, as b=1 or b=1..8,n=128. "
                f"Got: {text}"
            )
        bounds.append((match[1], (least, greatest) if match[3] else least))
    return bounds


def _write_coreml(options: argparse.Namespace, console: Console) -> None:
    check_names("--sizes", [name for name, _ in options.sizes])
    source: Any = read_source(options)
    if isinstance(source, dict):
        (source,) = source.values()
    with console.loading("TensorFlow", "coreml"):
        from jax2tf_bridge.coreml import save_coreml
    # coremltools prints warnings and progress bars, even if stderr is not a terminal.
    stderr = sys.stderr if options.debug else io.StringIO()
    with console.step(f"converting to {options.output}"), contextlib.redirect_stderr(stderr):
        model = save_coreml(
            options.output,
            source,
            params=options.params,
            sizes=dict(options.sizes),
            precision=options.precision,
            overwrite=options.overwrite,
        )
    print_result(options, model)


def _add_weights_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        type=as_path,
        metavar="PATH",
        help="the folder of a SavedModel that save wrote, also after TensorFlow trained it and "
        "saved it again; or a file of weights",
    )
    add_output(parser, "FILE", "the msgpack file to write")
    add_json(parser)


def _write_weights(options: argparse.Namespace, console: Console) -> None:
    source: AnyPath = options.source
    check_output(options.output)
    with console.step(f"reading {source}"):
        tree: Any = (
            unflatten_state(read_saved_weights(source)) if source.is_dir() else read_weights(source)
        )
    with console.step(f"writing {options.output}"):
        write_weights(options.output, tree)
    line = f"{options.output}: {len(flatten_state(tree))} weights of {source}"
    report_output(options, options.output, [line])


LITERT = Command(
    "litert",
    "write a LiteRT model (.tflite)",
    _LITERT,
    _LITERT_EXAMPLES,
    _add_litert_options,
    _write_litert,
)
TFJS = Command(
    "tfjs", "write a TensorFlow.js model", _TFJS, _TFJS_EXAMPLES, _add_tfjs_options, _write_tfjs
)
ONNX = Command("onnx", "write an ONNX model", _ONNX, _ONNX_EXAMPLES, _add_onnx_options, _write_onnx)
COREML = Command(
    "coreml",
    "write a Core ML package",
    _COREML,
    _COREML_EXAMPLES,
    _add_coreml_options,
    _write_coreml,
)
WEIGHTS = Command(
    "weights",
    "write the weights of a SavedModel as a file",
    _WEIGHTS,
    _WEIGHTS_EXAMPLES,
    _add_weights_options,
    _write_weights,
)
