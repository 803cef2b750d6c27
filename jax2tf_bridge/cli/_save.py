"""`jax2tf-bridge save` and `publish`: functions in files as a SavedModel."""

from __future__ import annotations

import argparse
import errno
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax2tf_bridge._utils import printable, read_number
from jax2tf_bridge.cli._commands import (
    NOT_NEGATIVE,
    Command,
    UsageError,
    add_for_converters,
    add_functions,
    add_json,
    add_no_xla,
    add_output,
    add_overwrite,
    add_params,
    add_updates,
    check_names,
    check_updates,
    map_signatures,
    read_example,
    report_output,
    split_assignment,
    split_names,
)
from jax2tf_bridge.cli._console import Console, format_for_command_line, get_option_name
from jax2tf_bridge.cli._versions import (
    JSON_OF_VERSION,
    add_publishing_options,
    print_notes,
    print_version,
)
from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.portable import PortableFunction, apply_target
from jax2tf_bridge.publishing import (
    Origin,
    check_complete,
    latest_version,
    publish_version,
)
from jax2tf_bridge.saved_model import read_sidecar
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.storage import AnyPath, as_path, check_free
from jax2tf_bridge.targets import Target

if TYPE_CHECKING:
    from jax2tf_bridge.saving import SavedModel, SaveOptions
    from jax2tf_bridge.signatures import Signature, SignatureInputs

_BOOLEANS = {"true": True, "false": False}
_PADDING_OPTIONS = ("oversize", "mask", "pad_values", "unchecked_padding")

_SAVE = """\
Writes the functions in files as the signatures of a SavedModel, with their gradients; a single
function is serving_default. Needs TensorFlow, not JAX."""

_SAVE_EXAMPLES = """\
examples:
  jax2tf-bridge save predict.jaxfn -o predict/1
  jax2tf-bridge save predict.jaxfn -o predict/1 --buckets b=1,8,32
  jax2tf-bridge save predict.jaxfn -o predict/1 --params weights.msgpack --trainable params
  jax2tf-bridge save classify=classify.jaxfn embed=embed.jaxfn -o net/1 --params weights.msgpack
  jax2tf-bridge save text.jaxfn -o text/1 --buckets b=1,8 --buckets n=16,64 --pad-values ids=1"""

_PUBLISH = """\
Writes the functions in files as the next version below a folder that TensorFlow Serving watches.
Needs TensorFlow, not JAX. Without a file, it writes the newest version with other weights."""

_PUBLISH_EXAMPLES = """\
examples:
  jax2tf-bridge publish predict.jaxfn -o models/predict --buckets b=1,8,32 --keep 3
  jax2tf-bridge publish -o models/predict --params weights.msgpack"""


def _add_save_options(parser: argparse.ArgumentParser) -> None:
    add_functions(parser)
    add_output(parser, "DIR", "the folder to write; a failed command changes nothing")
    add_overwrite(parser)
    _add_common_options(parser)
    add_json(parser)


def _add_publish_options(parser: argparse.ArgumentParser) -> None:
    add_functions(parser, nargs="*")
    add_output(parser, "ROOT", "the folder of all versions")
    add_publishing_options(parser)
    _add_common_options(parser)
    add_json(parser, JSON_OF_VERSION)


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    add_params(parser)
    training = parser.add_mutually_exclusive_group()
    training.add_argument(
        "--trainable",
        action="extend",
        default=[],
        type=split_names,
        metavar="NAME,NAME",
        help="prefixes of the names of the trainable weights, such as params for "
        "params/dense/kernel; by default all floating-point weights are trainable",
    )
    training.add_argument(
        "--no-trainable", action="store_true", help="leave all weights out of training"
    )
    parser.add_argument(
        "--buckets",
        action="append",
        default=[],
        type=_read_buckets,
        metavar="NAME=N,N",
        help="the sizes to compile for, such as b=1,8,32; other sizes are padded. Once per name",
    )
    parser.add_argument(
        "--oversize",
        action="append",
        default=[],
        type=_read_oversize,
        metavar="[NAME=]KIND",
        help="whether sizes above the largest bucket run in pieces (split) or are compiled "
        "(as-is), for all names or for one, such as n=as-is; by default rows are split",
    )
    parser.add_argument(
        "--mask",
        action="extend",
        default=[],
        type=_read_names,
        metavar="INPUT,INPUT",
        help="inputs that the buckets fill, with 1 for real elements and 0 for padding; callers "
        "do not pass them",
    )
    parser.add_argument(
        "--pad-values",
        action="append",
        default=[],
        type=_read_pad_value,
        metavar="INPUT=X",
        help="the value that pads an input, such as ids=1; by default 0. Once per input",
    )
    parser.add_argument(
        "--unchecked-padding",
        action="extend",
        default=[],
        type=_read_names,
        metavar="NAME,NAME",
        help="sizes for which you vouch that padding changes no result; the bridge does not check",
    )
    parser.add_argument(
        "--example",
        type=as_path,
        metavar="FILE",
        help="a .npz or .json file with values of inputs by name, for trials of the buckets and "
        "for warm-up requests; without buckets, the requests have the sizes of these values",
    )
    parser.add_argument(
        "--vjp-order",
        type=NOT_NEGATIVE,
        metavar="N",
        help="number of gradient orders to save; by default those in the file",
    )
    add_no_xla(parser)
    add_for_converters(parser)
    add_updates(parser)
    parser.add_argument(
        "--precompile",
        action="store_true",
        help="compile the model with XLA now, and save the compiled programs with it",
    )
    parser.add_argument(
        "--batching",
        action="store_true",
        help="join the requests of concurrent callers in the model itself, for callers without "
        "TensorFlow Serving; needs --buckets for the rows",
    )


def _check_save_options(options: argparse.Namespace) -> None:
    for name in ("buckets", "oversize", "pad_values"):
        check_names(get_option_name(name), [key for key, _ in getattr(options, name)])
    if len(options.oversize) > 1 and any(not name for name, _ in options.oversize):
        raise UsageError("--oversize: pass it once for all sizes, or once per name")
    if (options.trainable or options.no_trainable) and options.params is None:
        option = "--trainable" if options.trainable else "--no-trainable"
        raise UsageError(f"{option} is for weights that are variables: add --params WEIGHTS")
    if options.buckets:
        return
    flags = [get_option_name(name) for name in _PADDING_OPTIONS if getattr(options, name)]
    if flags:
        verb = "is" if len(flags) == 1 else "are"
        raise UsageError(
            f"{' and '.join(flags)} {verb} for sizes with buckets: add --buckets, as --buckets "
            "b=1,8,32"
        )


def _save(options: argparse.Namespace, console: Console) -> None:
    output: AnyPath = options.output
    if output.is_dir():
        check_free(output, overwrite=options.overwrite, has="saved_model.pb")
    _check_save_options(options)
    functions = _read_functions(options)
    with console.loading("TensorFlow", "save"):
        from jax2tf_bridge.saving import save_functions
    with console.step(f"saving {output}"):
        saved = save_functions(
            output,
            _make_signatures(functions, options),
            options.params,
            _make_save_options(options, overwrite=options.overwrite),
        )
    _report(saved, output, options, console)


def _publish(options: argparse.Namespace, console: Console) -> None:
    if not options.file:
        _publish_weights(options, console)
        return
    _check_save_options(options)
    functions = _read_functions(options)
    with console.loading("TensorFlow", "publish"):
        from jax2tf_bridge.saving import save_functions
    signatures = _make_signatures(functions, options)
    save_options = _make_save_options(options, overwrite=False)
    dropped = _describe_dropped_buckets(options.output, options)
    with console.step(f"publishing below {options.output}"):
        published = publish_version(
            options.output,
            lambda folder: save_functions(folder, signatures, options.params, save_options),
            keep=options.keep,
            check=check_complete,
            origin=Origin(note=options.note),
            label=options.label,
        )
    print_notes(published, console, dropped, _describe_updates(published.result))
    if options.json:
        _print_save_notes(published.result, options, console)
        print_version(options.output, published)
        return
    _report(published.result, options.output / str(published.version), options, console)


def _publish_weights(options: argparse.Namespace, console: Console) -> None:
    if options.params is None:
        raise UsageError("publish needs FILE, or --params with new weights for the newest version")
    trainable = ("trainable", "no_trainable")
    others = ("precompile", "batching", "no_xla", "for_converters")
    updates = ("updates_params", "weight_signatures")
    names = (*trainable, "buckets", *_PADDING_OPTIONS, *others, *updates)
    refused = [get_option_name(name) for name in names if getattr(options, name)]
    refused += [
        get_option_name(n) for n in ("example", "vjp_order") if getattr(options, n) is not None
    ]
    if refused:
        raise UsageError(
            f"{', '.join(refused)}: without FILE, publish replaces only the weights of the newest "
            "version. Remove these options, or pass FILE"
        )
    with console.loading("TensorFlow", "publish"):
        from jax2tf_bridge import publish
    with console.step(f"publishing below {options.output}"):
        published = publish(
            options.output,
            params=options.params,
            keep=options.keep,
            label=options.label,
            note=options.note,
        )
    print_notes(published, console)
    if options.json:
        print_version(options.output, published)
        return
    path, base = options.output / str(published.version), published.graph_of
    assert base is not None
    print(printable(f"{path}: version {base.name} with the weights in {options.params}"))


def _read_functions(options: argparse.Namespace) -> dict[str, PortableFunction]:
    functions = {}
    for name, file in map_signatures(options.file).items():
        if options.output.is_file() and not file.is_file():
            raise UsageError(
                f"--output: {options.output} is a file. Name the folder to write there, and the "
                f"file before it: jax2tf-bridge {options.command} {options.output} -o DIR"
            )
        if file.is_dir():
            text = f"is a folder, and {options.command} reads files that export wrote. Pass a file"
            raise make_path_error(errno.EISDIR, text, file)
        functions[name] = read_function(file)
    return functions


def _describe_dropped_buckets(root: AnyPath, options: argparse.Namespace) -> str | None:
    """Warns if the previous version has buckets and the new one has none."""
    newest = latest_version(root)
    sidecar = None if newest is None or options.buckets else read_sidecar(newest)
    entries = sidecar[0].signatures.values() if sidecar else ()
    entry = next((entry for entry in entries if entry.buckets), None)
    if newest is None or entry is None or entry.buckets is None:
        return None
    words = []
    for variable, sizes in entry.buckets.items():
        words += ["--buckets", f"{variable}={','.join(map(str, sizes))}"]
    for name, value in entry.pad_values.items():
        words += ["--pad-values", f"{name}={value}"]
    if entry.masks:
        words += ["--mask", ",".join(entry.masks)]
    if entry.unchecked_padding:
        words += ["--unchecked-padding", ",".join(entry.unchecked_padding)]
    if entry.batching is not None:
        words.append("--batching")
    return (
        f"version {newest.name} has buckets, and this one has none: to keep them, add "
        f"{shlex.join(words)}"
    )


def _describe_updates(saved: SavedModel) -> str | None:
    """Explains how signatures that change weights behave in a model with versions."""
    names = [name for name, signature in saved.signatures.items() if signature.updates]
    if not names:
        return None
    return (
        f"{' and '.join(names)} change{'s' * (len(names) == 1)} the weights of one server: other "
        "servers keep theirs, and each version starts with its published weights"
    )


def _make_save_options(options: argparse.Namespace, *, overwrite: bool) -> SaveOptions:
    from jax2tf_bridge.saving import Batching, BucketOptions, SaveOptions

    oversize: Any = dict(options.oversize) or None
    if oversize is not None and "" in oversize:
        oversize = oversize[""]
    return SaveOptions(
        trainable=options.trainable or not options.no_trainable,
        vjp_order=options.vjp_order,
        buckets=BucketOptions(dict(options.buckets) or None, oversize),
        precompile=options.precompile,
        batching=Batching() if options.batching else None,
        weight_signatures=options.weight_signatures,
        overwrite=overwrite,
    )


def _report(
    saved: SavedModel, path: AnyPath, options: argparse.Namespace, console: Console
) -> None:
    _print_save_notes(saved, options, console)
    if console.verbose and not options.json:
        print(printable(str(saved.serving_from(path))))
    lines = [f"{path}: {name}{signature}" for name, signature in saved.signatures.items()]
    report_output(options, path, lines)


def _print_save_notes(saved: SavedModel, options: argparse.Namespace, console: Console) -> None:
    for note in saved.notes:
        console.note(format_for_command_line(note, options))


def _make_signatures(
    functions: Mapping[str, PortableFunction], options: argparse.Namespace
) -> dict[str, Signature]:
    """Makes the signatures of functions, by name, with the options about their inputs.

    A signature gets the options about the inputs that it has. Options about unknown inputs go to
    all signatures, so that `save` reports the error.

    Raises:
      UsageError, FileFormatError, OSError: the file of --example cannot be read.
    """
    from jax2tf_bridge.signatures import Padding, Signature, SignatureInputs

    check_updates(options, functions)
    example = {} if options.example is None else read_example(options.example)
    examples = [example] if isinstance(example, Mapping) else example
    target = (
        Target.converters() if options.for_converters else Target.widest(xla=not options.no_xla)
    )
    inputs: dict[str, SignatureInputs] = {}
    if len(functions) > 1:
        takes_params = options.params is not None
        for name, function in functions.items():
            inputs[name] = SignatureInputs.of_function(name, Signature(function), takes_params)
    all_inputs = {name for each in inputs.values() for name in each.inputs}
    all_variables = {name for each in inputs.values() for name in each.variables}
    signatures = {}
    for name, function in functions.items():
        own_names = inputs.get(name)
        # Names that only other signatures have.
        other_inputs = all_inputs.difference(own_names.inputs) if own_names else set()
        other_variables = all_variables.difference(own_names.variables) if own_names else set()
        own_examples = [_drop_names(each, other_inputs) for each in examples]
        signatures[name] = Signature(
            apply_target(function, target),
            updates_params=name in options.updates_params,
            padding=Padding(
                mask=[name for name in options.mask if name not in other_inputs],
                pad_values=_drop_names(dict(options.pad_values), other_inputs),
                unchecked_padding=[
                    name for name in options.unchecked_padding if name not in other_variables
                ],
            ),
            example=own_examples[0]
            if isinstance(example, Mapping)
            else [each for each in own_examples if each],
        )
    return signatures


def _drop_names(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _read_buckets(text: str) -> tuple[str, tuple[int, ...]]:
    try:
        name, sizes = split_assignment(text)
        return name, tuple(int(size) for size in sizes.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form NAME=N,N, as b=1,8,32"
        ) from None


def _read_oversize(text: str) -> tuple[str, str]:
    name, _, kind = text.rpartition("=")
    if kind not in ("split", "as-is"):
        raise argparse.ArgumentTypeError(
            f"expected split or as-is, for all sizes or for a name, such as n=as-is. Got: {text!r}"
        )
    return name.strip(), kind.replace("-", " ")


def _read_pad_value(text: str) -> tuple[str, complex]:
    try:
        name, value = split_assignment(text)
        number = value.strip()
        boolean = _BOOLEANS.get(number.lower())
        return name, read_number(number) if boolean is None else boolean
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form INPUT=X with a number, true or false, as ids=1"
        ) from None


def _read_names(text: str) -> Sequence[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(name.isidentifier() for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME,NAME, as n or b,n")
    return names


SAVE = Command(
    "save", "write functions as a SavedModel", _SAVE, _SAVE_EXAMPLES, _add_save_options, _save
)
PUBLISH = Command(
    "publish",
    "write the next version of a served model",
    _PUBLISH,
    _PUBLISH_EXAMPLES,
    _add_publish_options,
    _publish,
)
