"""`jax2tf-bridge retarget`: a function or a SavedModel for another TensorFlow release."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from jax2tf_bridge.cli._commands import (
    READABLE,
    Command,
    UsageError,
    add_output,
    check_output,
    exported_path,
)
from jax2tf_bridge.cli._console import Console, printable
from jax2tf_bridge.cli._function_text import releases_text, stored_functions, summary
from jax2tf_bridge.cli._packages import loading
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.inspecting import SavedModelContents, describe_saved_model, read_saved_model
from jax2tf_bridge.inspecting._contents import function_files
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._target import Target
from jax2tf_bridge.saved_model._new_directory import changed_copy, replace_file
from jax2tf_bridge.saved_model._patching import NewModule, replaced_modules
from jax2tf_bridge.saved_model._reading import GRAPH_FILE, read_message
from jax2tf_bridge.saved_model._saved_model import CalledModule
from jax2tf_bridge.saved_model._whole_directory import check_free
from jax2tf_bridge.serialization import read_function, write_function

_WITH_SHARDY = 10
"""The calling convention of modules with Shardy's operations, for which the op has a flag."""

_FINGERPRINT = "fingerprint.pb"

_DESCRIPTION = """\
Writes the function in a file, or a SavedModel, for another TensorFlow release. Needs JAX, and no
TensorFlow."""

_EXAMPLES = """\
examples:
  jax2tf-bridge retarget predict.jaxfn --tensorflow 2.16 -o predict-2.16.jaxfn
  jax2tf-bridge retarget predict/1 --tensorflow 2.16 -o predict/2"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=exported_path, metavar="PATH", help=READABLE)
    parser.add_argument(
        "--tensorflow", metavar="RELEASE", required=True, help="the release, as 2.16"
    )
    add_output(parser, "PATH", "what to write; by default beside the other, NAME-tf2.16")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the SavedModel that is there; without --output the one that is read",
    )


def run(options: argparse.Namespace) -> None:
    """Reads the file or directory, retargets its functions and gradients, and writes the other."""
    if options.file.is_dir():
        _retarget_directory(options)
        return
    if options.overwrite:
        raise UsageError(
            f"--overwrite: {options.file} is a file, and the one to write is replaced anyway"
        )
    console = Console(verbose=options.verbose)
    target = Target.tensorflow(options.tensorflow)
    output = options.output or _output_beside(options.file, options.tensorflow)
    check_output(output)
    portable = read_function(options.file)
    with loading("JAX", "retarget", console):
        from jax2tf_bridge.from_jax.stablehlo._retarget import retarget
    with console.step(f"retargeting {portable.name}"):
        retargeted = retarget(portable, target)
        # The gradients that were there, which may be retargeted only now.
        write_function(output, retargeted, vjp_order=len(stored_functions(portable)) - 1)
    print(printable(f"{output}: {summary(retargeted)}"))


def _output_beside(file: Path, release: str) -> Path:
    """Names the file for a release, in the folder of the file that is read."""
    return file.with_name(f"{file.name.removesuffix('.jaxfn')}-tf{release}.jaxfn")


def _retarget_directory(options: argparse.Namespace) -> None:
    """Reads the SavedModel, retargets its modules, and writes the other SavedModel."""
    console = Console(verbose=options.verbose)
    target = Target.tensorflow(options.tensorflow)
    source: Path = options.file
    output = options.output or _default_output(options)
    check_free(output, overwrite=options.overwrite, has=GRAPH_FILE)
    with console.step(f"reading {source}"):
        contents = read_saved_model(source)
    with loading("JAX", "retarget", console):
        from jax2tf_bridge.from_jax.stablehlo._retarget import retarget, retarget_call

    def retargeted(called: CalledModule) -> NewModule:
        found = retarget_call(
            bytes(called.module),
            name="/".join(filter(None, (called.function, called.node))),
            argument_dtypes=called.arguments,
            result_dtypes=[result.dtype for result in called.results],
            platforms=called.platforms,
            disabled_checks=called.disabled_checks,
            has_tokens=called.has_tokens,
            calling_convention_version=called.calling_convention_version,
            target=target,
        )
        convention = found.calling_convention_version
        return NewModule(
            found.module, convention, called.uses_shardy and convention >= _WITH_SHARDY
        )

    with console.step(f"retargeting {len(contents.modules)} modules"):
        modules = [retargeted(called) for called in contents.modules]
        portables = _portables(contents, lambda portable: retarget(portable, target))
    with (
        console.step(f"writing {output}"),
        changed_copy(source, output, overwrite=options.overwrite) as folder,
    ):
        changed = replaced_modules(read_message(source), modules)
        replace_file(folder / GRAPH_FILE)
        with (folder / GRAPH_FILE).open("wb") as file:
            changed.write(file)
        # It has digests of the graph that was.
        replace_file(folder / _FINGERPRINT)
        for name, portable in portables.items():
            replace_file(folder / name)
            order = len(stored_functions(portable)) - 1
            write_function(folder / name, portable, vjp_order=order, arrays=False)
        facts = describe_saved_model(read_saved_model(folder))
    count = "1 module" if len(modules) == 1 else f"{len(modules)} modules"
    releases = [r for r in facts["tensorflow"] if r in facts["tensorflow_for_gradients"]]
    if not any(module["order"] for module in facts["modules"]):
        releases = facts["tensorflow"]
    print(printable(f"{output}: {count} retargeted; runs on {releases_text(releases)}"))


def _default_output(options: argparse.Namespace) -> Path:
    """Returns the model itself with --overwrite, else a folder beside it."""
    source: Path = options.file
    if options.overwrite:
        return source
    plain = Path(os.path.abspath(source))
    return source.parent / f"{plain.name}-tf{options.tensorflow}"


def _portables(
    contents: SavedModelContents, retarget: Callable[[PortableFunction], PortableFunction]
) -> dict[Path, PortableFunction]:
    """Retargets the functions in the sidecar of a model, by their files."""
    found = {}
    for file in function_files(contents):
        try:
            portable = read_function(file)
        except FileNotFoundError as e:
            raise FileFormatError(
                f"The SavedModel {contents.path} has lost {file.name}, which holds a function of "
                "it: copy the whole folder.",
                file=str(file),
            ) from e
        found[file.relative_to(contents.path)] = retarget(portable)
    return found


COMMAND = Command("retarget", _DESCRIPTION, _EXAMPLES, _add_options, run)
