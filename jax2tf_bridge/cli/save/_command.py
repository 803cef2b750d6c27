"""`jax2tf-bridge save` and `publish`: the function in a file as a SavedModel."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax2tf_bridge.cli._console import Console, printable
from jax2tf_bridge.cli._option_words import in_option_words
from jax2tf_bridge.cli._packages import loading
from jax2tf_bridge.cli._usage_errors import UsageError
from jax2tf_bridge.cli.save._options import (
    bucket_options,
    check_save_options,
    given_with_function,
    signature,
)
from jax2tf_bridge.errors import path_error
from jax2tf_bridge.saved_model._sidecar import read_sidecar
from jax2tf_bridge.saved_model._signature import SERVING_DEFAULT, Signature
from jax2tf_bridge.serialization import read_function

if TYPE_CHECKING:
    from jax2tf_bridge.saving import SavedModel


def run(options: argparse.Namespace) -> None:
    """Reads the file and writes the SavedModel."""
    console = Console(verbose=options.verbose)
    output: Path = options.output
    if not options.overwrite and output.is_dir() and any(output.iterdir()):
        raise path_error(
            FileExistsError, errno.EEXIST, "is there already; --overwrite replaces it", output
        )
    check_save_options(options)
    signatures = {SERVING_DEFAULT: _read(options)}
    _quiet(options)
    with loading("TensorFlow", "save", console):
        from jax2tf_bridge.saving import save_records
    with console.step(f"saving {output}"):
        saved = save_records(
            output,
            signatures,
            overwrite=options.overwrite,
            **_save_options(options),
        )
    _report(saved, output, options, console)


def run_publish(options: argparse.Namespace) -> None:
    """Reads the file and writes the next version; or of weights alone."""
    console = Console(verbose=options.verbose)
    if options.file is None:
        _publish_weights(options, console)
        return
    check_save_options(options)
    signatures = {SERVING_DEFAULT: _read(options)}
    _quiet(options)
    with loading("TensorFlow", "publish", console):
        from jax2tf_bridge.saving import publish_version, save_records
    dropped = _buckets_dropped(options.output, options)
    with console.step(f"publishing below {options.output}"):
        published = publish_version(
            options.output,
            lambda folder: save_records(folder, signatures, **_save_options(options)),
            keep=options.keep,
        )
    for note in (*published.notes, *([dropped] if dropped else [])):
        console.note(note)
    if published.removed:
        console.note(f"removed the versions {', '.join(map(str, published.removed))}")
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
    _quiet(options)
    with loading("TensorFlow", "publish", console):
        from jax2tf_bridge import publish
    with console.step(f"publishing below {options.output}"):
        published = publish(options.output, params=options.params, keep=options.keep)
    for note in published.notes:
        console.note(note)
    if published.removed:
        console.note(f"removed the versions {', '.join(map(str, published.removed))}")
    path, base = options.output / str(published.version), published.graph_of
    assert base is not None
    print(printable(f"{path}: version {base.name} with the weights in {options.params}"))


def _read(options: argparse.Namespace) -> Signature:
    if options.file.is_dir():
        raise path_error(
            IsADirectoryError,
            errno.EISDIR,
            "is a folder, and what is needed is a file that export wrote",
            options.file,
        )
    return signature(read_function(options.file), options)


def _buckets_dropped(root: Path, options: argparse.Namespace) -> str | None:
    """What to say where the version before has buckets, and the new one would not."""
    from jax2tf_bridge.saving import latest

    newest = latest(root)
    found = None if newest is None or options.buckets else read_sidecar(newest)
    had = [e for e in found[0].signatures.values() if e.buckets] if found else []
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


def _save_options(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line says, as save_records takes it."""
    return {
        "params": options.params,
        "vjp_order": options.vjp_order,
        "buckets": bucket_options(options),
        "precompile": options.precompile,
    }


def _quiet(options: argparse.Namespace) -> None:
    """Keeps TensorFlow from writing to stderr when it starts, and when it saves."""
    if not options.debug:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # next to nothing is computed here
        logging.getLogger("tensorflow").setLevel(logging.ERROR)


def _report(saved: SavedModel, path: Path, options: argparse.Namespace, console: Console) -> None:
    for note in saved.notes:
        console.note(in_option_words(note, options))
    if console.verbose:
        print(printable(str(saved.serving_from(path))))
    print(printable(f"{path}: {SERVING_DEFAULT}{saved.signatures[SERVING_DEFAULT]}"))
