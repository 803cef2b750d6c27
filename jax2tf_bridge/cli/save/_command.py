"""`jax2tf-bridge save` and `publish`: functions in files as a SavedModel."""

from __future__ import annotations

import argparse
import errno
import shlex
from typing import TYPE_CHECKING, Any

from jax2tf_bridge._utils import printable
from jax2tf_bridge.cli._commands import POSITIVE, Command, UsageError, add_output
from jax2tf_bridge.cli._console import Console, for_command_line
from jax2tf_bridge.cli._packages import loading
from jax2tf_bridge.cli._references import METAVAR, by_signature, named_path
from jax2tf_bridge.cli.save._options import (
    add_options,
    bucket_options,
    check_save_options,
    given_with_function,
    signatures,
    trainable,
)
from jax2tf_bridge.errors import make_path_error
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.saved_model import read_sidecar
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.storage import AnyPath, check_free

if TYPE_CHECKING:
    from jax2tf_bridge.saving import NewVersion, Published, SavedModel, SaveOptions

_SAVE = """\
Writes the functions in files as the signatures of a SavedModel, with their gradients; one alone is
serving_default. Needs TensorFlow, and no JAX."""

_SAVE_EXAMPLES = """\
examples:
  jax2tf-bridge save predict.jaxfn -o predict/1
  jax2tf-bridge save predict.jaxfn -o predict/1 --buckets b=1,8,32
  jax2tf-bridge save predict.jaxfn -o predict/1 --params weights.msgpack --trainable params
  jax2tf-bridge save classify=classify.jaxfn embed=embed.jaxfn -o net/1 --params weights.msgpack
  jax2tf-bridge save text.jaxfn -o text/1 --buckets b=1,8 --buckets n=16,64 --pad-values ids=1"""

_PUBLISH = """\
Writes the functions in files as the next version below a folder that TensorFlow Serving watches.
Needs TensorFlow, and no JAX. Without a file, the newest version once more, with other weights."""

_PUBLISH_EXAMPLES = """\
examples:
  jax2tf-bridge publish predict.jaxfn -o models/predict --buckets b=1,8,32 --keep 3
  jax2tf-bridge publish -o models/predict --params weights.msgpack"""


def _add_files(parser: argparse.ArgumentParser, *, nargs: str) -> None:
    parser.add_argument(
        "file",
        nargs=nargs,
        type=named_path,
        metavar=METAVAR,
        help="what export wrote, with the signature's name where there are several",
    )


def _add_save_options(parser: argparse.ArgumentParser) -> None:
    _add_files(parser, nargs="+")
    add_output(parser, "DIR", "the folder to write, complete or not at all", required=True)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the SavedModel that is there"
    )
    add_options(parser)


def _add_publish_options(parser: argparse.ArgumentParser) -> None:
    _add_files(parser, nargs="*")
    add_output(parser, "ROOT", "the folder of all versions", required=True)
    parser.add_argument(
        "--keep", type=POSITIVE, metavar="N", help="remove all but the newest N versions afterwards"
    )
    add_options(parser)


def run(options: argparse.Namespace) -> None:
    """Reads the files and writes the SavedModel."""
    console = Console(verbose=options.verbose)
    output: AnyPath = options.output
    if output.is_dir():
        check_free(output, overwrite=options.overwrite, has="saved_model.pb")
    check_save_options(options)
    functions = _read(options)
    with loading("TensorFlow", "save", console):
        from jax2tf_bridge.saving import save_functions
    with console.step(f"saving {output}"):
        saved = save_functions(
            output,
            signatures(functions, options),
            options.params,
            _save_options(options, overwrite=options.overwrite),
        )
    _report(saved, output, options, console)


def run_publish(options: argparse.Namespace) -> None:
    """Reads the files and writes the next version; without files, one with other weights."""
    console = Console(verbose=options.verbose)
    if not options.file:
        _publish_weights(options, console)
        return
    check_save_options(options)
    functions = _read(options)
    with loading("TensorFlow", "publish", console):
        from jax2tf_bridge.saving import check_complete, publish_version, save_functions
    named = signatures(functions, options)
    save_options = _save_options(options)
    dropped = _buckets_dropped(options.output, options)
    with console.step(f"publishing below {options.output}"):
        published = publish_version(
            options.output,
            lambda folder: save_functions(folder, named, options.params, save_options),
            keep=options.keep,
            check=check_complete,
        )
    _note(published, console, dropped)
    _report(published.result, options.output / str(published.version), options, console)


def _publish_weights(options: argparse.Namespace, console: Console) -> None:
    """Writes the newest version once more, with the weights in a file."""
    if options.params is None:
        raise UsageError("publish needs FILE, or --params for the graph of the newest version")
    without = given_with_function(options)
    if without:
        raise UsageError(
            f"{', '.join(without)}: of a version with other weights all else is that of the one "
            "before; give FILE, to write it anew"
        )
    with loading("TensorFlow", "publish", console):
        from jax2tf_bridge import publish
    with console.step(f"publishing below {options.output}"):
        published = publish(options.output, params=options.params, keep=options.keep)
    _note(published, console)
    path, base = options.output / str(published.version), published.graph_of
    assert base is not None
    print(printable(f"{path}: version {base.name} with the weights in {options.params}"))


def _note(published: Published | NewVersion[Any], console: Console, *more: str | None) -> None:
    for note in (*published.notes, *filter(None, more)):
        console.note(note)
    if published.removed:
        console.note(f"removed the versions {', '.join(map(str, published.removed))}")


def _read(options: argparse.Namespace) -> dict[str, PortableFunction]:
    functions = {}
    for name, file in by_signature(options.file).items():
        if options.output.is_file() and not file.is_file():
            raise UsageError(
                f"--output: {options.output} is a file. Name the folder to write there, and the "
                f"file before it: jax2tf-bridge {options.command} {options.output} -o DIR"
            )
        if file.is_dir():
            text = f"is a folder, and {options.command} reads a file that export wrote"
            raise make_path_error(IsADirectoryError, errno.EISDIR, text, file)
        functions[name] = read_function(file)
    return functions


def _buckets_dropped(root: AnyPath, options: argparse.Namespace) -> str | None:
    """Warns if the previous version has buckets and the new one has none."""
    from jax2tf_bridge.saving import latest_version

    newest = latest_version(root)
    sidecar = None if newest is None or options.buckets else read_sidecar(newest)
    had = [e for e in sidecar[0].signatures.values() if e.buckets] if sidecar else []
    if not had or newest is None:
        return None
    words = []
    for variable, sizes in (had[0].buckets or {}).items():
        words += ["--buckets", f"{variable}={','.join(map(str, sizes))}"]
    for name, value in had[0].pad_values.items():
        words += ["--pad-values", f"{name}={value}"]
    if had[0].masks:
        words += ["--mask", ",".join(had[0].masks)]
    if had[0].unchecked_padding:
        words += ["--unchecked-padding", ",".join(had[0].unchecked_padding)]
    given = shlex.join(words)
    return f"version {newest.name} has buckets, and this one has none: to keep them, add {given}"


def _save_options(options: argparse.Namespace, *, overwrite: bool = False) -> SaveOptions:
    """Converts the options of the command line; loads TensorFlow."""
    from jax2tf_bridge.saving import SaveOptions

    return SaveOptions(
        trainable=trainable(options),
        vjp_order=options.vjp_order,
        buckets=bucket_options(options),
        precompile=options.precompile,
        overwrite=overwrite,
    )


def _report(
    saved: SavedModel, path: AnyPath, options: argparse.Namespace, console: Console
) -> None:
    for note in saved.notes:
        console.note(for_command_line(note, options))
    if console.verbose:
        print(printable(str(saved.serving_from(path))))
    for name, signature in saved.signatures.items():
        print(printable(f"{path}: {name}{signature}"))


SAVE = Command("save", _SAVE, _SAVE_EXAMPLES, _add_save_options, run)
PUBLISH = Command("publish", _PUBLISH, _PUBLISH_EXAMPLES, _add_publish_options, run_publish)
