"""Writes C libraries that open a .jaxfn file."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jax2tf_bridge.c_library._interface import (
    LibraryArray,
    check_identifiers,
    check_library_name,
    has_c_type,
    list_variables,
    make_identifier,
)
from jax2tf_bridge.c_library._sources import write_pkg_config
from jax2tf_bridge.c_library.open_sizes import _sources
from jax2tf_bridge.errors import SavingError, make_path_error
from jax2tf_bridge.portable import (
    HoldsPortable,
    Port,
    PortableFunction,
    TreeSpec,
    as_portable_function,
)
from jax2tf_bridge.serialization import read_function, write_function
from jax2tf_bridge.storage import as_path, whole_directory
from shape_poly import Comparison, parse_comparison

_RUNTIME = ("jaxfn.h", "jaxfn.c", "jaxfn_file.h", "jaxfn_file.c")
_MARKER = "jaxfn.h"
_OTHER_NAMES = ("jaxfn", "jaxfn_file", "main")
_NODE_KINDS = ("leaf", "none", "tuple", "list", "dict", "namedtuple", "custom")
_NAMED_CUSTOM = 7


@dataclass(frozen=True)
class OpenInterface:
    """The interface of a C library with open sizes.

    Attributes:
      name: the prefix of its C names.
      function: the name of the function.
      variables: the open sizes.
      conditions: the constraints on the open sizes.
      inputs, outputs: its arrays.
      signature: names, structure and types of arguments and results, as the library finds them in
        the file.
    """

    name: str
    function: str
    variables: tuple[str, ...]
    conditions: tuple[Comparison, ...]
    inputs: tuple[LibraryArray, ...]
    outputs: tuple[LibraryArray, ...]
    signature: str


def write_open_library(
    function: PortableFunction | HoldsPortable | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a C library that runs a function with any sizes, compiled when they first occur.

    The library opens a .jaxfn file and needs TensorFlow's C API (libtensorflow of TensorFlow's C
    package, or libtensorflow_cc of the pip package; 2.15 or newer), but no Python and no Bazel.
    The folder gets NAME.h, NAME.c, NAME.jaxfn, main.c, README.md, the sources in C that read and
    run the file, and files for CMake and pkg-config.

    >>> write_open_library("predict.jaxfn", "predict_library")  # doctest: +SKIP

    Args:
      function: the portable function, as `export(f)(x)` returns it, or the path of a .jaxfn file.
      folder: the folder to write.
      name: the prefix of the C names; by default made of the name of the file, or of the function.
      overwrite: whether to replace a library that the folder holds.

    Raises:
      SavingError: a C library cannot run the function; the message says why.
      FileFormatError: the file is in another format, or damaged.
      FunctionError: `function` is neither a portable function nor a path.
      FileExistsError: the folder holds something else, or `overwrite` is not set.
      OSError: a file cannot be read or written.
    """
    if isinstance(function, (str, os.PathLike)):
        _check_is_file(function)
        portable = read_function(function)
        default = Path(function).stem
    else:
        portable = as_portable_function(function, "write_open_library")
        default = portable.name
    interface = make_interface(portable, _choose_name(name, default))
    name = interface.name
    sources = {
        f"{name}.h": _sources.write_header(interface),
        f"{name}.c": _sources.write_functions(interface),
        "main.c": _sources.write_example(interface),
        "CMakeLists.txt": _sources.write_cmake(name),
        f"{name}.pc.in": write_pkg_config(
            name, libraries=" @TENSORFLOW_LIBRARIES@", runs_with=" that runs with TensorFlow"
        ),
        "README.md": _sources.write_readme(interface),
    }
    runtime = resources.files("jax2tf_bridge.c_library.open_sizes").joinpath("runtime")
    sources |= {file: runtime.joinpath(file).read_text("utf-8") for file in _RUNTIME}
    with whole_directory(as_path(folder), overwrite=overwrite, has=_MARKER) as staged:
        staged.mkdir(exist_ok=True)
        for file_name, text in sources.items():
            (staged / file_name).write_text(text, encoding="utf-8")
        write_function(staged / f"{name}.jaxfn", portable, vjp_order=0)


def _check_is_file(path: str | os.PathLike[str]) -> None:
    advice = "Pass the path of a .jaxfn file"
    if as_path(path).is_dir():
        text = f"is a folder. {advice}"
        raise make_path_error(errno.EISDIR, text, path)
    if not as_path(path).exists():
        text = f"does not exist. {advice}"
        raise make_path_error(errno.ENOENT, text, path)


def _choose_name(name: str | None, default: str) -> str:
    chosen = make_identifier(default).strip("_") or "function" if name is None else name
    if make_identifier(chosen) != chosen:
        raise SavingError(
            f"name must be a C identifier. Got: {name!r}. Pass name={make_identifier(chosen)!r}."
        )
    if chosen in _OTHER_NAMES:
        raise SavingError(
            f"The library has other files with the name {chosen}. Pass name='{chosen}_library'."
        )
    check_library_name(chosen)
    return chosen


def make_interface(portable: PortableFunction, name: str) -> OpenInterface:
    """Makes the interface of the library of a function.

    Raises:
      SavingError: a C library cannot run the function.
    """
    _check_function(portable)
    inputs = tuple(_make_array(port, "input") for port in portable.inputs)
    outputs = tuple(_make_array(port, "output") for port in portable.outputs)
    variables = list_variables(portable.in_avals)
    sizes = [(f"the size {v}", make_identifier(v)) for v in variables]
    for where, arrays in (("arguments", inputs), ("results", outputs)):
        names = [(array.name, array.identifier) for array in arrays]
        check_identifiers(
            f"The {where} of {portable.name}", [*sizes, *names] if arrays is inputs else names
        )
    conditions = dict.fromkeys(map(parse_comparison, _conditions(portable)))
    return OpenInterface(
        name, portable.name, variables, tuple(conditions), inputs, outputs, describe(portable)
    )


def _conditions(portable: PortableFunction) -> tuple[str, ...]:
    return (*portable.constraints, *portable.requirements)


def _make_array(port: Port, kind: str) -> LibraryArray:
    words = re.findall(r"\w+", port.path) or ["0"]
    identifier = make_identifier("_".join([kind] * words[0].isdigit() + words))
    return LibraryArray(port.path or "the result", identifier, port.aval.dtype, port.aval.shape)


def _check_function(portable: PortableFunction) -> None:
    problem = _find_problem(portable)
    if problem is not None:
        raise SavingError(f"{portable.name} cannot become a C library: {problem}")


def _find_problem(portable: PortableFunction) -> str | None:
    if not portable.target.xla:
        return (
            "it is for TensorFlow's own operations, and the library runs XLA. Export it with "
            "another target."
        )
    if portable.module.nr_devices != 1:
        return f"it runs on {portable.module.nr_devices} devices. Export it for one device."
    effects = (*portable.ordered_effects, *portable.unordered_effects)
    if effects:
        return f"it has the effects {', '.join(effects)}. Export it without them."
    if portable.graph_functions:
        return "it calls TensorFlow functions. Export it without call_tf."
    if not portable.tensorflow_releases:
        return "no TensorFlow release can run it. Its repr says why: print(function)."
    if "cpu" not in portable.platforms:
        return f"it is for {', '.join(portable.platforms)}. Export it for the platform cpu."
    missing = [constant.name for constant in portable.lifted_constants if constant.data is None]
    if missing:
        return (
            f"its file lacks the captured array {missing[0]}. Write the file with "
            "write_function(path, function)."
        )
    for constant in portable.lifted_constants:
        if not has_c_type(constant.aval.dtype):
            return (
                f"it captures {constant.name}, {constant.aval}, which the library cannot pass to "
                "TensorFlow. Capture another dtype, and convert it in the function."
            )
    if not portable.outputs:
        return "it has no results. Return an array."
    for port in (*portable.inputs, *portable.outputs):
        if not has_c_type(port.aval.dtype):
            where = port.path or "its result"
            return (
                f"{where} is {port.aval}, and C has no type for {port.aval.dtype}. Convert it in "
                "the function, for instance with astype, or for PRNG keys with jax.random.key_data."
            )
    return None


def describe(portable: PortableFunction) -> str:
    """Describes the arguments and results as runtime/jaxfn_file.c does."""
    inputs, outputs = (
        f"({', '.join(map(str, avals))})" for avals in (portable.in_avals, portable.out_avals)
    )
    names = ",".join(portable.argument_names)
    trees = f"{_describe_tree(portable.in_tree)} -> {_describe_tree(portable.out_tree)}"
    return f"{inputs} -> {outputs}, with the structure {names} {trees}"


def _describe_tree(tree: TreeSpec) -> str:
    kind = _NODE_KINDS.index(tree.kind)
    if tree.kind in ("leaf", "none"):
        return f".{kind}"
    if tree.kind == "custom" and tree.keys:
        kind = _NAMED_CUSTOM
    keys = "".join(f"/{key}" if isinstance(key, str) else "/?" for key in tree.keys)
    return f".{kind}:{len(tree.children)}{keys}" + "".join(map(_describe_tree, tree.children))
