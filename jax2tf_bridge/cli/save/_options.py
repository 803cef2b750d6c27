"""Defines the options that `save` and `publish` share."""

from __future__ import annotations

import argparse
import json
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from jax2tf_bridge._utils import number_of
from jax2tf_bridge.cli._commands import (
    NOT_NEGATIVE,
    UsageError,
    add_for_converters,
    add_no_xla,
)
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import PortableFunction, apply_target
from jax2tf_bridge.storage import AnyPath, as_path
from jax2tf_bridge.targets import Target

if TYPE_CHECKING:
    from jax2tf_bridge.saving import BucketOptions, Signature, SignatureInputs

_BOOLEANS = {"true": True, "false": False}
_OF_PADDING = ("oversize", "mask", "pad_values", "unchecked_padding")

Example: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Type of `Signature.example`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of both commands."""
    parser.add_argument(
        "--params",
        type=as_path,
        metavar="WEIGHTS",
        help="a msgpack or safetensors file, or a checkpoint of Orbax: the functions' first "
        "argument, as variables",
    )
    trained = parser.add_mutually_exclusive_group()
    trained.add_argument(
        "--trainable",
        action="extend",
        default=[],
        type=lambda text: [name.strip() for name in text.split(",")],
        metavar="NAME,NAME",
        help="the beginnings of the names of the weights that are trainable, as params for "
        "params/dense/kernel; by default all of floating-point numbers are",
    )
    trained.add_argument(
        "--no-trainable", action="store_true", help="leave all weights out of training"
    )
    parser.add_argument(
        "--buckets",
        action="append",
        default=[],
        type=_buckets,
        metavar="NAME=N,N",
        help="the sizes to compile for, as b=1,8,32; others are padded. Once a name",
    )
    parser.add_argument(
        "--oversize",
        action="append",
        default=[],
        type=_oversize,
        metavar="[NAME=]KIND",
        help="sizes above the largest bucket run in pieces (split) or are compiled (as-is): all, "
        "or of a name, as n=as-is; by default rows are split",
    )
    parser.add_argument(
        "--mask",
        action="extend",
        default=[],
        type=_names,
        metavar="INPUT,INPUT",
        help="inputs that the buckets fill, with 1 for what is real and 0 for padding; callers no "
        "longer give them",
    )
    parser.add_argument(
        "--pad-values",
        action="append",
        default=[],
        type=_pad_value,
        metavar="INPUT=X",
        help="what an input is padded with, as ids=1; by default 0. Once an input",
    )
    parser.add_argument(
        "--unchecked-padding",
        action="extend",
        default=[],
        type=_names,
        metavar="NAME,NAME",
        help="sizes for which it is not checked that padding changes no result: you vouch for them",
    )
    parser.add_argument(
        "--example",
        type=as_path,
        metavar="FILE",
        help="values of inputs by name, in a .npz or .json file: buckets are tried with them, and "
        "warm-up requests hold them, which without buckets have their sizes",
    )
    parser.add_argument(
        "--vjp-order",
        type=NOT_NEGATIVE,
        metavar="N",
        help="how many orders of gradients to save; by default those in the file",
    )
    add_no_xla(parser)
    add_for_converters(parser)
    parser.add_argument(
        "--precompile", action="store_true", help="leave what XLA compiles with the model"
    )


def check_save_options(options: argparse.Namespace) -> None:
    """Raises for options that contradict each other, before anything is loaded."""
    for name in ("buckets", "oversize", "pad_values"):
        _check_given_once(flag(name), [key for key, _ in getattr(options, name)])
    if len(options.oversize) > 1 and any(not name for name, _ in options.oversize):
        raise UsageError("--oversize: say it for all sizes once, or for each by its name")
    if (options.trainable or options.no_trainable) and options.params is None:
        named = "--trainable" if options.trainable else "--no-trainable"
        raise UsageError(f"{named} is for weights that are variables: add --params WEIGHTS")
    if options.buckets:
        return
    given = [flag(name) for name in _OF_PADDING if getattr(options, name)]
    if given:
        verb = "is" if len(given) == 1 else "are"
        raise UsageError(
            f"{' and '.join(given)} {verb} for sizes with buckets: add --buckets, as --buckets "
            "b=1,8,32"
        )


def given_with_function(options: argparse.Namespace) -> list[str]:
    """Lists the given options that say how a function is saved."""
    trainable = ("trainable", "no_trainable")
    names = (*trainable, "buckets", *_OF_PADDING, "precompile", "no_xla", "for_converters")
    given = [flag(name) for name in names if getattr(options, name)]
    given += [flag(n) for n in ("example", "vjp_order") if getattr(options, n) is not None]
    return given


def flag(name: str) -> str:
    """Formats an attribute of the options as the user writes it."""
    return f"--{name.replace('_', '-')}"


def signatures(
    functions: Mapping[str, PortableFunction], options: argparse.Namespace
) -> dict[str, Signature]:
    """Makes the signatures of functions, by name, with the options about their inputs.

    Options about inputs go to the signatures that have these inputs. Options about unknown inputs
    go to all signatures, so that `save` reports the error.

    Raises:
      UsageError, FileFormatError, OSError: the file of --example cannot be read.
    """
    example = {} if options.example is None else _read_example(options.example)
    inputs: dict[str, Any] = {}
    if len(functions) > 1:
        from jax2tf_bridge.saving import Signature, SignatureInputs

        for name, function in functions.items():
            takes_params = options.params is not None
            inputs[name] = SignatureInputs.of_function(name, Signature(function), takes_params)
    return {
        name: _signature(function, example, options, _Elsewhere.of(name, inputs))
        for name, function in functions.items()
    }


@dataclass(frozen=True)
class _Elsewhere:
    """Names that only other signatures have.

    Attributes:
      inputs: names of inputs.
      variables: names of open sizes.
    """

    inputs: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()

    @staticmethod
    def of(name: str, inputs: Mapping[str, SignatureInputs]) -> _Elsewhere:
        if name not in inputs:
            return _Elsewhere()
        every = inputs.values()
        return _Elsewhere(
            frozenset(i for each in every for i in each.inputs) - set(inputs[name].inputs),
            frozenset(v for each in every for v in each.variables) - inputs[name].variables,
        )


def _signature(
    function: PortableFunction, example: Example, options: argparse.Namespace, others: _Elsewhere
) -> Signature:
    from jax2tf_bridge.saving import Padding, Signature

    target = (
        Target.converters() if options.for_converters else Target.widest(xla=not options.no_xla)
    )
    function = apply_target(function, target)
    examples = [example] if isinstance(example, Mapping) else example
    kept = [_without(each, others.inputs) for each in examples]
    return Signature(
        function,
        padding=Padding(
            mask=[name for name in options.mask if name not in others.inputs],
            pad_values=_without(dict(options.pad_values), others.inputs),
            unchecked_padding=[n for n in options.unchecked_padding if n not in others.variables],
        ),
        example=kept[0] if isinstance(example, Mapping) else [each for each in kept if each],
    )


def _without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def trainable(options: argparse.Namespace) -> bool | list[str]:
    """Returns the argument of `save` that --trainable and --no-trainable stand for."""
    return options.trainable or not options.no_trainable


def bucket_options(options: argparse.Namespace) -> BucketOptions:
    """Makes the bucket options of `save_functions`, for which TensorFlow is loaded."""
    from jax2tf_bridge.saving import BucketOptions

    oversize: Any = dict(options.oversize) or None
    if oversize is not None and "" in oversize:
        oversize = oversize[""]
    return BucketOptions(dict(options.buckets) or None, oversize)


def _check_given_once(option: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{option}: {name or 'it'} is given twice")


def _buckets(text: str) -> tuple[str, tuple[int, ...]]:
    try:
        name, sizes = _split(text)
        return name, tuple(int(size) for size in sizes.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form NAME=N,N, as b=1,8,32"
        ) from None


def _oversize(text: str) -> tuple[str, str]:
    name, _, kind = text.rpartition("=")
    if kind not in ("split", "as-is"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither split nor as-is, nor one of these for a name, as n=as-is"
        )
    return name.strip(), kind.replace("-", " ")


def _pad_value(text: str) -> tuple[str, complex]:
    try:
        name, number = _split(text)
        return name, _number(number.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form INPUT=X with a number, true or false, as ids=1"
        ) from None


def _number(text: str) -> complex:
    if text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    return number_of(text)


def _names(text: str) -> Sequence[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(name.isidentifier() for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME,NAME, as n or b,n")
    return names


def _split(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise ValueError
    return name.strip(), value


def _read_example(file: AnyPath) -> Example:
    """Reads values by name; values of JSON have no dtype and get that of the input."""
    kind = file.suffix.lower()
    if kind not in (".npz", ".json"):
        raise UsageError(
            f"--example: expected a file .npz or .json with values of inputs by name. Got: {file}"
        )
    try:
        values = _read_json(file) if kind == ".json" else _read_npz(file)
    except (ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as e:
        raise FileFormatError(
            f"--example: {file} cannot be read as {kind} with values of inputs by name: {e}",
            file=str(file),
        ) from e
    return values


def _read_json(file: AnyPath) -> Example:
    values = json.loads(file.read_bytes())
    listed = values if isinstance(values, list) else [values]
    if not listed or not all(isinstance(each, dict) for each in listed):
        raise ValueError('expected an object, as {"ids": [[4, 8, 15]]}, or a list of such objects')
    return values if isinstance(values, dict) else listed


def _read_npz(file: AnyPath) -> Mapping[str, Any]:
    with file.open("rb") as opened:
        arrays = np.load(opened, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name; write it with np.savez")
        return {name: arrays[name] for name in arrays.files}
