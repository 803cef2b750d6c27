"""`jax2tf-bridge retarget`: rewrites a function or a SavedModel for another TensorFlow."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from jax2tf_bridge.cli._commands import (
    READABLE_PATHS,
    Command,
    UsageError,
    add_for_converters,
    add_json,
    add_output,
    add_target,
    check_output,
    read_exported_path,
    read_target,
    report_output,
)
from jax2tf_bridge.cli._console import Console
from jax2tf_bridge.errors import BridgeError, FileFormatError
from jax2tf_bridge.inspecting import (
    SavedModelContents,
    describe_saved_model,
    format_releases,
    iterate_function_files,
    read_saved_model,
    summarize_function,
)
from jax2tf_bridge.portable import (
    PortableFunction,
    get_stored_functions,
    make_called_function,
    without_xla,
)
from jax2tf_bridge.saved_model import (
    GRAPH_FILE,
    CalledModule,
    NewModule,
    break_hard_link,
    edit_copy,
    read_message,
    replace_modules,
)
from jax2tf_bridge.serialization import read_function, write_function
from jax2tf_bridge.storage import AnyPath, StoragePath, as_path, check_free
from jax2tf_bridge.targets import Target

_MIN_SHARDY_CONVENTION = 10
"""First calling convention with Shardy operations, for which the op needs a flag."""

_FINGERPRINT = "fingerprint.pb"

_DESCRIPTION = """\
Writes the function in a file, or a SavedModel, for another TensorFlow release. Needs JAX, not
TensorFlow. With --no-xla or --for-converters it rewrites a SavedModel with TensorFlow alone."""

_EXAMPLES = """\
examples:
  jax2tf-bridge retarget predict.jaxfn --tensorflow 2.16 -o predict-2.16.jaxfn
  jax2tf-bridge retarget predict.jaxfn --no-xla -o predict-no-xla.jaxfn
  jax2tf-bridge retarget predict/1 --tensorflow 2.16 -o predict/2
  jax2tf-bridge retarget predict/1 --no-xla -o predict/2
  jax2tf-bridge retarget predict/1 --for-converters -o onnx/1"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=read_exported_path, metavar="PATH", help=READABLE_PATHS)
    add_target(parser, "the release, as 2.16")
    add_for_converters(parser)
    add_output(
        parser,
        "PATH",
        "the file or folder to write; by default NAME-tf2.16 beside the input",
        required=False,
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an existing SavedModel; without --output, the input",
    )
    add_json(parser)


def _run(options: argparse.Namespace, console: Console) -> None:
    target = _choose_target(options)
    if options.file.is_dir():
        _retarget_directory(options, target, console)
        return
    if options.overwrite and options.file.exists():
        raise UsageError(
            f"--overwrite is for SavedModels, and {options.file} is a file. Remove the option: an "
            "existing output file is replaced without it"
        )
    name = f"{options.file.name.removesuffix('.jaxfn')}-{_suffix(options)}.jaxfn"
    output = options.output or options.file.with_name(name)
    check_output(output)
    portable = read_function(options.file)
    with console.loading("JAX", "retarget"):
        from jax2tf_bridge.from_jax import retarget
    with console.step(f"retargeting {portable.name}"):
        retargeted = retarget(portable, target)
        # Stored gradients may be retargeted only now.
        write_function(output, retargeted, vjp_order=len(get_stored_functions(portable)) - 1)
    report_output(options, output, [f"{output}: {summarize_function(retargeted)}"])


def _choose_target(options: argparse.Namespace) -> Target:
    """Returns the target that the options name.

    Raises:
      UsageError: they name no target, or one that does not suit this input.
      TargetError: there is no such release.
    """
    if options.for_converters:
        if not options.file.is_dir():
            raise UsageError(
                "--for-converters: a .jaxfn file does not store this option. Pass it when you "
                f"write a SavedModel: jax2tf-bridge save {options.file} --for-converters -o DIR"
            )
        if options.tensorflow is not None:
            raise UsageError(
                "--for-converters writes for no particular release. Remove --tensorflow"
            )
        return Target.converters()
    target = read_target(options)
    if target is None:
        raise UsageError(
            "choose a target: --tensorflow RELEASE, such as 2.16, --no-xla, or --for-converters"
        )
    return target


def _suffix(options: argparse.Namespace) -> str:
    """Returns the target's part of the output's name: "tf2.16", "tf2.16-no-xla", "no-xla"..."""
    if options.for_converters:
        return "for-converters"
    release = [] if options.tensorflow is None else [f"tf{options.tensorflow}"]
    return "-".join([*release, *(["no-xla"] if options.no_xla else [])])


def _retarget_directory(options: argparse.Namespace, target: Target, console: Console) -> None:
    source: AnyPath = options.file
    output = options.output or _default_output(options)
    check_free(output, overwrite=options.overwrite, has=GRAPH_FILE)
    with console.step(f"reading {source}"):
        contents = read_saved_model(source)
    if not contents.modules:
        raise BridgeError(
            f"{source} consists of TensorFlow's own operations and has no module to retarget. "
            "Every newer release can run it."
        )
    batching = [entry.name for entry in contents.entries if entry.joins_requests]
    if target.for_converters and batching:
        raise BridgeError(
            f"{source} cannot be rewritten for converters: {batching[0]} joins requests with "
            "TensorFlow's BatchFunction, which they do not know. Save the model without batching."
        )
    graph, functions = (_retarget_graph if target.xla else _rewrite_graph)(
        contents, target, console
    )
    with (
        console.step(f"writing {output}"),
        edit_copy(source, output, overwrite=options.overwrite) as folder,
    ):
        break_hard_link(folder / GRAPH_FILE)
        with (folder / GRAPH_FILE).open("wb") as file:
            for part in graph:
                file.write(part)
        # This file has digests of the old graph.
        break_hard_link(folder / _FINGERPRINT)
        for name, portable in functions.items():
            break_hard_link(folder / name)
            order = len(get_stored_functions(portable)) - 1
            write_function(folder / name, portable, vjp_order=order, arrays=False)
        runs_on = f"; runs on {_list_releases(folder)}" if target.xla else ""
    modules = contents.modules
    count = "1 module" if len(modules) == 1 else f"{len(modules)} modules"
    action = "retargeted" if target.xla else "rewritten as TensorFlow's own operations"
    report_output(options, output, [f"{output}: {count} {action}{runs_on}"])


def _list_releases(folder: Path) -> str:
    facts = describe_saved_model(read_saved_model(folder))
    releases = [r for r in facts["tensorflow"] if r in facts["tensorflow_for_gradients"]]
    if not any(module["order"] for module in facts["modules"]):
        releases = facts["tensorflow"]
    return format_releases(releases)


_NewParts: TypeAlias = tuple[Sequence[bytes | memoryview], Mapping[Path, PortableFunction]]
"""The new bytes of saved_model.pb, in parts, and the new functions of the sidecar, by file."""


def _retarget_graph(contents: SavedModelContents, target: Target, console: Console) -> _NewParts:
    with console.loading("JAX", "retarget"):
        from jax2tf_bridge.from_jax import retarget, retarget_call

    def retarget_module(called: CalledModule) -> NewModule:
        function = make_called_function(
            bytes(called.module),
            called.stablehlo_version,
            name=called.place,
            argument_dtypes=called.arguments,
            result_dtypes=[result.dtype for result in called.results],
            platforms=called.platforms,
            disabled_checks=called.disabled_checks,
            has_tokens=called.has_tokens,
            calling_convention_version=called.calling_convention_version,
        )
        new_module = retarget_call(function, target)
        convention = new_module.calling_convention_version
        return NewModule(
            new_module.data, convention, called.uses_shardy and convention >= _MIN_SHARDY_CONVENTION
        )

    with console.step(f"retargeting {len(contents.modules)} modules"):
        modules = [retarget_module(called) for called in contents.modules]
        # Signatures that are TensorFlow's own operations have no module to retarget.
        functions = _retarget_files(contents, lambda f: retarget(f, target) if f.target.xla else f)
        return replace_modules(read_message(as_path(contents.path)), modules), functions


def _rewrite_graph(contents: SavedModelContents, target: Target, console: Console) -> _NewParts:
    with console.loading("TensorFlow", "retarget --no-xla"):
        from jax2tf_bridge.converting import make_operations_graph
    with console.step(f"rewriting {len(contents.modules)} modules as operations"):
        graph = make_operations_graph(contents, target)
        return [graph], _retarget_files(contents, lambda f: without_xla(f, target))


def _default_output(options: argparse.Namespace) -> AnyPath:
    """Returns the model itself with --overwrite, else a folder beside it."""
    source: AnyPath = options.file
    if options.overwrite:
        return source
    plain = source if isinstance(source, StoragePath) else Path(os.path.abspath(source))
    return source.parent / f"{plain.name}-{_suffix(options)}"


def _retarget_files(
    contents: SavedModelContents, retarget: Callable[[PortableFunction], PortableFunction]
) -> dict[Path, PortableFunction]:
    functions = {}
    for file in iterate_function_files(contents):
        try:
            portable = read_function(file)
        except FileNotFoundError as e:
            raise FileFormatError(
                f"The SavedModel {contents.path} lacks {file.name}, which holds one of its "
                "functions. Copy the whole folder.",
                file=str(file),
            ) from e
        functions[file.relative_to(contents.path)] = retarget(portable)
    return functions


COMMAND = Command(
    "retarget",
    "rewrite a file or a SavedModel for another TensorFlow",
    _DESCRIPTION,
    _EXAMPLES,
    _add_options,
    _run,
)
