"""The generated files of a C library with open sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax2tf_bridge.c_library._interface import CAlgebra, make_identifier, quote_c
from jax2tf_bridge.c_library._sources import (
    declare_inputs,
    declare_outputs,
    wrap_cmake,
    wrap_example,
    wrap_header,
    write_call,
)
from shape_poly import Comparison, Dim, DimExpr, SymbolicScope, sample_sizes

if TYPE_CHECKING:
    from jax2tf_bridge.c_library.open_sizes._write import OpenInterface


def write_header(interface: OpenInterface) -> str:
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


def write_functions(interface: OpenInterface) -> str:
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
        values = ", ".join(map(_expression, array.shape)) or "0"
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
  if (!jaxfn_compare({_expression(condition.left)}, "{condition.operator}",
      {_expression(condition.right)}))
    return ({library}_status)jaxfn_fail(opened, JAXFN_NO_SIZE,
        "The sizes {words} do not satisfy the constraint %s. Pass other sizes.",
        {values}, {quote_c(str(condition))});\
"""


_ALGEBRA = CAlgebra("jaxfn_", is_checked=True)
"""Arithmetic with the functions of jaxfn.h."""


def _expression(dimension: Dim) -> str:
    if not isinstance(dimension, DimExpr):
        return f"INT64_C({dimension})"
    values = {v: f"inputs->{make_identifier(v)}" for v in dimension.variables()}
    return dimension.evaluate_with(values, _ALGEBRA)


def write_example(interface: OpenInterface) -> str:
    """Returns main.c, which calls the function once, with zeros, and prints its outputs."""
    name = interface.name
    scope = SymbolicScope(interface.conditions, check=False)
    sizes = next(sample_sizes(interface.variables, scope), dict.fromkeys(interface.variables, 1))
    call = write_call(name, name, "", sizes, inputs=interface.inputs, outputs=interface.outputs)
    file = f'arguments > 1 ? values[1] : "{name}.jaxfn"'
    return wrap_example(name, f"{name}_open(&handle, {file})", [call])


def write_cmake(name: str) -> str:
    """Returns CMakeLists.txt."""
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


def write_readme(interface: OpenInterface) -> str:
    """Returns README.md."""
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
