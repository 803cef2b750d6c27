"""write_open_library(): C libraries that open a .jaxfn file, which TensorFlow's XLA compiles."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jax2tf_bridge.c_library._interface import (
    CAlgebra,
    LibraryArray,
    check_identifiers,
    check_library_name,
    has_c_type,
    list_variables,
    make_identifier,
    quote_c,
)
from jax2tf_bridge.c_library._sources import (
    declare_inputs,
    declare_outputs,
    wrap_cmake,
    wrap_example,
    wrap_header,
    write_call,
    write_pkg_config,
)
from jax2tf_bridge.errors import Argument, Message, SavingError, make_path_error
from jax2tf_bridge.portable import (
    HoldsPortable,
    Port,
    PortableFunction,
    TreeSpec,
    as_portable_function,
)
from jax2tf_bridge.serialization import read_function, write_function
from jax2tf_bridge.storage import as_path, whole_directory
from shape_poly import Comparison, Dim, DimExpr, SymbolicScope, parse_comparison, sample_sizes

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
    interface = _make_interface(portable, _choose_name(name, default))
    name = interface.name
    sources = {
        f"{name}.h": _write_header(interface),
        f"{name}.c": _write_functions(interface),
        "main.c": _write_example(interface),
        "CMakeLists.txt": _write_cmake(name),
        f"{name}.pc.in": write_pkg_config(
            name, libraries=" @TENSORFLOW_LIBRARIES@", runs_with=" that runs with TensorFlow"
        ),
        "README.md": _write_readme(interface),
    }
    runtime = resources.files("jax2tf_bridge.c_library").joinpath("runtime")
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
    if name is None:
        name = make_identifier(default).strip("_") or "function"
    elif make_identifier(name) != name:
        text = f"{name!r} is not an identifier in C. Pass "
        raise SavingError(Message(text, Argument("name", make_identifier(name)), "."))
    if name in _OTHER_NAMES:
        text = f"The library has other files with the name {name}. Pass "
        raise SavingError(Message(text, Argument("name", f"{name}_library"), "."))
    check_library_name(name)
    return name


def _make_interface(portable: PortableFunction, name: str) -> OpenInterface:
    _check_function(portable)
    inputs = tuple(_make_array(port, "input") for port in portable.inputs)
    outputs = tuple(_make_array(port, "output") for port in portable.outputs)
    variables = list_variables(portable.in_avals)
    for where, sizes, arrays in (("arguments", variables, inputs), ("results", (), outputs)):
        names = [(f"the size {v}", make_identifier(v)) for v in sizes]
        names += [(array.name, array.identifier) for array in arrays]
        check_identifiers(f"The {where} of {portable.name}", names)
    texts = (*portable.constraints, *portable.requirements)
    conditions = dict.fromkeys(map(parse_comparison, texts))
    return OpenInterface(
        name,
        portable.name,
        variables,
        tuple(conditions),
        inputs,
        outputs,
        _format_signature(portable),
    )


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


def _format_signature(portable: PortableFunction) -> str:
    """Formats the arguments and results as runtime/jaxfn_file.c does."""
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


# The generated files.


def _write_header(interface: OpenInterface) -> str:
    """Returns NAME.h."""
    name, big = interface.name, interface.name.upper()
    declarations = f"""
/* A handle holds the buffers of calls. Use it in one thread at a time. */
typedef struct {name}_handle {name}_handle;

typedef enum {{
  {big}_OK = 0,
  {big}_NO_MEMORY,  /* there is not enough memory */
  {big}_NO_WEIGHTS, /* the file is missing, damaged, or of another function */
  {big}_NO_SIZE,    /* the function does not accept the sizes */
  {big}_FAILED      /* an input is NULL, or TensorFlow failed */
}} {name}_status;

/* Opens a .jaxfn file, which holds the program and the weights. After an error, *handle has only
   the message; free it as well. */
{name}_status {name}_open({name}_handle **handle, const char *jaxfn_file);

/* Makes a handle for another thread, with the program, weights and compiled sizes of an open one.
   Each handle is freed by itself, in any order. */
{name}_status {name}_share({name}_handle **handle, {name}_handle *other);

/* Open sizes, and arrays in row-major order. */
{declare_inputs(name, interface.variables, interface.inputs)}

/* Memory of the caller; an output that is NULL is left out. */
{declare_outputs(name, interface.outputs)}

/* Calls the function. The first call with new sizes compiles it for them. */
{name}_status {name}_run({name}_handle *handle, const {name}_inputs *inputs,
    const {name}_outputs *outputs);

/* A sentence about the last error of a handle; valid until its next call. */
const char *{name}_message(const {name}_handle *handle);

/* Frees a handle; NULL is allowed. */
void {name}_free({name}_handle *handle);
"""
    return wrap_header(name, declarations)


def _write_functions(interface: OpenInterface) -> str:
    """Returns NAME.c, the functions of the header."""
    name, big = interface.name, interface.name.upper()
    checks = [_check_variable(name, v) for v in interface.variables]
    checks += [_check_condition(name, c) for c in interface.conditions]
    arrays = [("inputs", "input", array) for array in interface.inputs]
    arrays += [("outputs", "output", array) for array in interface.outputs]
    sizes: list[str] = []
    rows: dict[str, list[str]] = {"inputs": [], "outputs": []}
    for side, kind, array in arrays:
        number = len(rows[side])
        values = ", ".join(map(_write_size, array.shape)) or "0"
        sizes.append(f"  const int64_t {kind}_sizes_{number}[] = {{{values}}};")
        rows[side].append(
            f"{{{quote_c(array.name)}, {side}->{array.identifier}, {kind}_sizes_{number}}}"
        )
    tables = {side: ",\n      ".join(each) or "{NULL, NULL, NULL}" for side, each in rows.items()}
    newline = "\n"
    return f"""\
/* The functions of {name}.h. Written by jax2tf-bridge. */
#include "{name}.h"

#include <inttypes.h>
#include <stddef.h>

#include "jaxfn.h"

static const char SIGNATURE[] = {quote_c(interface.signature)};

{name}_status {name}_open({name}_handle **handle, const char *jaxfn_file) {{
  jaxfn_handle *opened = NULL;
  jaxfn_status status = jaxfn_open(&opened, jaxfn_file, SIGNATURE);
  *handle = ({name}_handle *)opened;
  return ({name}_status)status;
}}

{name}_status {name}_share({name}_handle **handle, {name}_handle *other) {{
  jaxfn_handle *opened = NULL;
  jaxfn_status status = jaxfn_share(&opened, (jaxfn_handle *)other);
  *handle = ({name}_handle *)opened;
  return ({name}_status)status;
}}

{name}_status {name}_run({name}_handle *handle, const {name}_inputs *inputs,
    const {name}_outputs *outputs) {{
  jaxfn_handle *opened = (jaxfn_handle *)handle;
  (void)inputs;
  (void)outputs;
  if (opened == NULL) return {big}_FAILED;
{newline.join([*checks, *sizes])}
  const jaxfn_array all_inputs[] = {{
      {tables["inputs"]}}};
  const jaxfn_array all_outputs[] = {{
      {tables["outputs"]}}};
  return ({name}_status)jaxfn_run(opened, all_inputs, all_outputs);
}}

const char *{name}_message(const {name}_handle *handle) {{
  return jaxfn_message((const jaxfn_handle *)handle);
}}

void {name}_free({name}_handle *handle) {{ jaxfn_free((jaxfn_handle *)handle); }}
"""


def _check_variable(library: str, variable: str) -> str:
    place = f"inputs->{make_identifier(variable)}"
    return f"""\
  if ({place} < 1)
    return ({library}_status)jaxfn_fail(opened, JAXFN_NO_SIZE,
        "The size %s is %" PRId64 ". Pass a size of at least 1.", {quote_c(variable)}, {place});\
"""


def _check_condition(library: str, condition: Comparison) -> str:
    variables = sorted(condition.variables())
    words = ", ".join(['%s = %" PRId64 "'] * len(variables))
    values = ", ".join(f"{quote_c(v)}, inputs->{make_identifier(v)}" for v in variables)
    return f"""\
  if (!jaxfn_compare({_write_size(condition.left)}, "{condition.operator}",
      {_write_size(condition.right)}))
    return ({library}_status)jaxfn_fail(opened, JAXFN_NO_SIZE,
        "The sizes {words} do not satisfy the constraint %s. Pass other sizes.",
        {values}, {quote_c(str(condition))});\
"""


_ALGEBRA = CAlgebra("jaxfn_", is_checked=True)
"""Arithmetic with the functions of jaxfn.h."""


def _write_size(dimension: Dim) -> str:
    if not isinstance(dimension, DimExpr):
        return f"INT64_C({dimension})"
    values = {v: f"inputs->{make_identifier(v)}" for v in dimension.variables()}
    return dimension.evaluate_with(values, _ALGEBRA)


def _write_example(interface: OpenInterface) -> str:
    """Returns main.c, which calls the function once, with zeros, and prints its outputs."""
    name = interface.name
    scope = SymbolicScope(interface.conditions, check=False)
    sizes = next(sample_sizes(interface.variables, scope), dict.fromkeys(interface.variables, 1))
    call = write_call(name, name, "", sizes, inputs=interface.inputs, outputs=interface.outputs)
    file = f'arguments > 1 ? values[1] : "{name}.jaxfn"'
    return wrap_example(name, f"{name}_open(&handle, {file})", [call])


def _write_cmake(name: str) -> str:
    build = f"""\
set(TENSORFLOW "" CACHE PATH "folder of the pip package tensorflow, or of TensorFlow's C package")
find_path(TENSORFLOW_INCLUDE tensorflow/c/c_api.h HINTS ${{TENSORFLOW}} PATH_SUFFIXES include)
find_library(TENSORFLOW_LIBRARY HINTS ${{TENSORFLOW}} PATH_SUFFIXES lib
  NAMES libtensorflow_cc.so.2 libtensorflow_cc.2.dylib tensorflow)
find_library(TENSORFLOW_FRAMEWORK HINTS ${{TENSORFLOW}} PATH_SUFFIXES lib
  NAMES libtensorflow_framework.so.2 libtensorflow_framework.2.dylib tensorflow_framework)
if(NOT TENSORFLOW_INCLUDE OR NOT TENSORFLOW_LIBRARY OR NOT TENSORFLOW_FRAMEWORK)
  message(FATAL_ERROR "TensorFlow is not found. Pass -DTENSORFLOW=FOLDER; README.md says which.")
endif()
get_filename_component(TENSORFLOW_FOLDER ${{TENSORFLOW_LIBRARY}} DIRECTORY)
set(TENSORFLOW_LIBRARIES
  "${{TENSORFLOW_LIBRARY}} ${{TENSORFLOW_FRAMEWORK}} -Wl,-rpath,${{TENSORFLOW_FOLDER}}")

add_library({name} {name}.c jaxfn.c jaxfn_file.c)
target_include_directories({name} PRIVATE ${{TENSORFLOW_INCLUDE}}
  PUBLIC $<BUILD_INTERFACE:${{CMAKE_CURRENT_SOURCE_DIR}}> $<INSTALL_INTERFACE:include>)
target_link_libraries({name} PUBLIC ${{TENSORFLOW_LIBRARY}} ${{TENSORFLOW_FRAMEWORK}})
set_target_properties({name} PROPERTIES PUBLIC_HEADER {name}.h)

if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  add_executable({name}_example main.c)
  target_link_libraries({name}_example PRIVATE {name})
endif()
"""
    return wrap_cmake(name, "C", "set(CMAKE_C_STANDARD 11)", build)


def _write_readme(interface: OpenInterface) -> str:
    name = interface.name
    return f"""\
# {name}: a JAX function as a C library

`{name}.h` declares the functions, and `main.c` is an example. The library opens `{name}.jaxfn`,
which holds the program and its weights. TensorFlow's XLA compiles the program at the first call
with new sizes.

To build it you need CMake, a C compiler and TensorFlow 2.15 or newer. TensorFlow's folder is either
its C package (https://www.tensorflow.org/install/lang_c), or the folder `tensorflow` of its Python
package: a wheel is a zip file, and no Python is needed to unpack and use it.

```bash
cmake -S . -B build -DTENSORFLOW=/path/to/tensorflow
cmake --build build
build/{name}_example {name}.jaxfn
```

Without CMake:

```bash
cc -std=c11 -O2 -I$TENSORFLOW/include *.c -o example -L$TENSORFLOW \\
  -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2 -Wl,-rpath,$TENSORFLOW
```

Programs that you distribute contain or need TensorFlow, which has the Apache License 2.0.
Open only files whose source you trust: XLA runs the program in them.
"""
