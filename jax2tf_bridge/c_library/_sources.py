"""Writes the sources of a C library: header, wrapper, example, and the files that build them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.c_library._interface import (
    CAlgebra,
    Interface,
    LibraryArray,
    LibrarySignature,
    Weight,
    evaluate_shapes,
    format_sizes,
    make_identifier,
    quote_c,
)
from shape_poly import Dim, DimExpr, shape_text


def write_header(interface: Interface) -> str:
    """Returns NAME.h."""
    name, big = interface.name, interface.name.upper()
    parts = [
        f"""
/* A handle holds the buffers of calls. Use it in one thread at a time; each thread can have its
   own. All handles share the weights. */
typedef struct {name}_handle {name}_handle;

typedef enum {{
  {big}_OK = 0,
  {big}_NO_MEMORY,  /* there is not enough memory */
  {big}_NO_WEIGHTS, /* the file of the weights is missing, or belongs to another library */
  {big}_NO_SIZE,    /* no program is compiled for the open sizes of the call */
  {big}_FAILED      /* an input is NULL, or the program failed */
}} {name}_status;

/* Makes a handle. weights_file is NULL if the weights are in the program.
   After an error, *handle only has the message; free it as well. */
{name}_status {name}_new({name}_handle **handle, const char *weights_file);

/* A sentence about the last error of a handle; valid until its next call. */
const char *{name}_message(const {name}_handle *handle);

/* Frees a handle; NULL is allowed. */
void {name}_free({name}_handle *handle);
"""
    ]
    parts += [_declare(name, signature) for signature in interface.signatures]
    parts.append(
        f"""
/* The signatures as JSON. */
const char *{name}_description(void);
"""
    )
    return wrap_header(name, "".join(parts))


def wrap_header(name: str, declarations: str) -> str:
    """Returns NAME.h with its declarations."""
    big = name.upper()
    return f"""\
/* {name}: a JAX function as a C library. Written by jax2tf-bridge. */
#ifndef {big}_H_
#define {big}_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif
{declarations}
#ifdef __cplusplus
}}
#endif

#endif /* {big}_H_ */
"""


def _declare(handle: str, signature: LibrarySignature) -> str:
    prefix = signature.prefix
    compiled = signature.format_sizes()
    if signature.padded:
        compiled += "; smaller ones are padded"
    note = f"\n   Compiled for {compiled}." if signature.variables else ""
    return f"""
/* {signature.name.replace("*/", "* /")}: arrays in row-major order.{note}
   Outputs are memory of the caller; an output that is NULL is left out. The memory of an output
   may be that of an input, but not that of another output. */
{declare_inputs(prefix, signature.variables, signature.inputs)}
{declare_outputs(prefix, signature.outputs)}
{handle}_status {prefix}_run({handle}_handle *handle, const {prefix}_inputs *inputs,
    const {prefix}_outputs *outputs);
"""


def declare_inputs(prefix: str, variables: Sequence[str], arrays: Sequence[LibraryArray]) -> str:
    """Declares the struct of open sizes and inputs."""
    sizes = [f"  int64_t {make_identifier(v)};" for v in variables]
    inputs = [_declare_array(array, "const ") for array in arrays]
    return _declare_struct(f"{prefix}_inputs", [*sizes, *inputs])


def declare_outputs(prefix: str, arrays: Sequence[LibraryArray]) -> str:
    """Declares the struct of outputs."""
    return _declare_struct(f"{prefix}_outputs", [_declare_array(array, "") for array in arrays])


def _declare_struct(name: str, members: Sequence[str]) -> str:
    return f"""\
typedef struct {{
{chr(10).join(members) or "  char unused;"}
}} {name};"""


_NOTES = {
    "bool": "0 or 1",
    "bfloat16": "bits of bfloat16",
    "float16": "bits of float16",
    "complex64": "real and imaginary parts",
    "complex128": "real and imaginary parts",
}


def _declare_array(array: LibraryArray, const: str) -> str:
    note = f", {_NOTES[array.dtype]}" if array.dtype in _NOTES else ""
    return f"  {const}{array.c_type} *{array.identifier}; /* {array.sizes_text}{note} */"


def write_description(interface: Interface) -> str:
    """Returns the description for `load_library`, as JSON."""
    signatures = {
        s.name: {
            "prefix": s.prefix,
            "variables": {v: make_identifier(v) for v in s.variables},
            "inputs": {a.name: [a.dtype, shape_text(a.shape)] for a in s.inputs},
            "outputs": {a.name: [a.dtype, shape_text(a.shape)] for a in s.outputs},
            "sizes": [dict(values) for values in s.sizes],
            "padded": sorted(s.padded),
        }
        for s in interface.signatures
    }
    return json.dumps(
        {"format": 1, "name": interface.name, "signatures": signatures}, separators=(",", ":")
    )


def write_wrapper(
    interface: Interface,
    arguments: Sequence[Sequence[int]],
    *,
    separate: bool,
) -> str:
    """Returns NAME.cc, the functions of the header around the compiled programs.

    `arguments` has the indices of the leaves that the programs of each signature take.
    """
    name = interface.name
    names = [s.program_name(i) for s in interface.signatures for i in range(len(s.sizes))]
    includes = "\n".join(f'#include "programs/{program}.h"' for program in names)
    header = ", ".join(map(str, interface.weights_header()))
    embeds = interface.weights and not separate
    data = f"{name}_weights_data" if embeds else "nullptr"
    tables = "\n".join(
        _write_tables(signature, indices)
        for signature, indices in zip(interface.signatures, arguments, strict=True)
    )
    signatures = ", ".join(f"&{s.prefix}_signature" for s in interface.signatures)
    return f"""\
// The functions of {name}.h. Written by jax2tf-bridge.
#include "{name}.h"

#include "bridge_program.h"

{includes}

#if defined(_WIN32)
#define {name.upper()}_API __declspec(dllexport)
#else
#define {name.upper()}_API __attribute__((visibility("default")))
#endif

struct {name}_handle : jax2tf_bridge::Handle {{}};
{f'extern "C" const unsigned char {name}_weights_data[];' if embeds else ""}

namespace jax2tf_bridge {{
namespace {{

{tables}
const Signature* const kSignatures[] = {{{signatures}}};
const unsigned char kWeightsHeader[] = {{{header}}};
const Library kLibrary = {{"{name}", {len(interface.signatures)}, kSignatures, kWeightsHeader,
                          {interface.weights_size}ULL, {data}}};

}}  // namespace
}}  // namespace jax2tf_bridge

extern "C" {{

{name.upper()}_API {name}_status {name}_new({name}_handle** handle, const char* weights_file) {{
  jax2tf_bridge::Handle* result = nullptr;
  const jax2tf_bridge::Status status =
      jax2tf_bridge::new_handle(jax2tf_bridge::kLibrary, weights_file, &result);
  *handle = static_cast<{name}_handle*>(result);
  return static_cast<{name}_status>(status);
}}

{name.upper()}_API const char* {name}_message(const {name}_handle* handle) {{
  return handle == nullptr ? "There is no handle: the memory for it is missing." : handle->message;
}}

{name.upper()}_API void {name}_free({name}_handle* handle) {{
  jax2tf_bridge::free_handle(handle);
}}

{name.upper()}_API const char* {name}_description(void) {{
  return {json.dumps(write_description(interface))};
}}

#ifdef JAX2TF_BRIDGE_SHARED
{name.upper()}_API const char* jax2tf_bridge_library(void) {{ return {name}_description(); }}
#endif

{"".join(_define_run(interface, i) for i in range(len(interface.signatures)))}\
}}  // extern "C"
"""


def _define_run(interface: Interface, index: int) -> str:
    signature = interface.signatures[index]
    handle, prefix = interface.name, signature.prefix
    sizes = ", ".join(f"inputs->{make_identifier(v)}" for v in signature.variables)
    inputs = ", ".join(f"inputs->{a.identifier}" for a in signature.inputs)
    outputs = ", ".join(f"outputs->{a.identifier}" for a in signature.outputs)
    return f"""\
{handle.upper()}_API {handle}_status {prefix}_run({handle}_handle* handle,
    const {prefix}_inputs* inputs,
    const {prefix}_outputs* outputs) {{
  const int64_t sizes[] = {{{sizes or "0"}}};
  const void* const in[] = {{{inputs or "nullptr"}}};
  void* const out[] = {{{outputs or "nullptr"}}};
  return static_cast<{handle}_status>(
      jax2tf_bridge::run(handle, {index}, sizes, in, out));
}}

"""


def _write_tables(signature: LibrarySignature, indices: Sequence[int]) -> str:
    prefix = signature.prefix
    positions = {array.name: i for i, array in enumerate((*signature.inputs, *signature.masks))}
    pads, arrays, start = [], [], 0
    for i, array in enumerate(signature.arrays):
        pad = "nullptr"
        if array.pad != 0:
            pad = f"{prefix}_pad_{i}"
            pads.append(f"const unsigned char {pad}[] = {{{_write_pad(array)}}};")
        rank = len(array.shape)
        arrays.append(f"{{{quote_c(array.name)}, {array.element_size}, {rank}, {start}, {pad}}}")
        start += rank
    arguments = [
        _write_argument(signature.leaves[i], positions, len(signature.inputs)) for i in indices
    ]
    programs = []
    lines = []
    for i, sizes in enumerate(signature.sizes):
        program = signature.program_name(i)
        values = ", ".join(map(str, sizes.values())) or "0"
        shapes = evaluate_shapes(signature.arrays, sizes)
        flat = ", ".join(str(size) for shape in shapes for size in shape) or "0"
        lines.append(f"const int64_t {program}_sizes[] = {{{values}}};")
        lines.append(f"const int64_t {program}_shapes[] = {{{flat}}};")
        programs.append(f"{{&{program}::StaticData, {program}_sizes, {program}_shapes}}")
    variables = ", ".join(map(quote_c, signature.variables)) or "nullptr"
    padded = ", ".join(str(v in signature.padded).lower() for v in signature.variables) or "false"
    dims = [dimension for array in signature.arrays for dimension in array.shape]
    computed = "\n".join(
        f"  shapes[{i}] = {_write_size(d, signature)};" for i, d in enumerate(dims)
    )
    newline = "\n"
    return f"""\
{newline.join(pads)}
const Array {prefix}_arrays[] = {{{", ".join(arrays) or '{"", 1, 0, 0, nullptr}'}}};
const Argument {prefix}_arguments[] = {{{", ".join(arguments) or "{Argument::kMask, 0}"}}};
{newline.join(lines)}
const Program {prefix}_programs[] = {{{", ".join(programs)}}};
const char* const {prefix}_variables[] = {{{variables}}};
const bool {prefix}_padded[] = {{{padded}}};
void {prefix}_compute_shapes([[maybe_unused]] const int64_t* sizes,
                             [[maybe_unused]] int64_t* shapes) {{
{computed}
}}
const Signature {prefix}_signature = {{
    {quote_c(signature.name)}, {len(signature.variables)}, {prefix}_variables, {prefix}_padded,
    {len(signature.inputs)}, {len(signature.masks)}, {len(signature.outputs)}, {prefix}_arrays,
    {len(indices)}, {prefix}_arguments, {len(programs)}, {prefix}_programs,
    {quote_c(signature.format_sizes())}, {prefix}_compute_shapes, {len(dims)}}};
"""


def _write_argument(leaf: str | Weight, positions: dict[str, int], num_inputs: int) -> str:
    if isinstance(leaf, Weight):
        return f"{{Argument::kWeight, {leaf.offset}}}"
    kind = "kInput" if positions[leaf] < num_inputs else "kMask"
    return f"{{Argument::{kind}, {positions[leaf]}}}"


def _write_pad(array: LibraryArray) -> str:
    row = find_dtype(array.dtype)
    assert row is not None
    number = array.pad if array.is_complex else array.pad.real
    return ", ".join(map(str, np.array(number).astype(row.numpy()).tobytes()))


_ALGEBRA = CAlgebra("")
"""Arithmetic with the functions of bridge_program.h."""


def _write_size(dimension: Dim, signature: LibrarySignature) -> str:
    if not isinstance(dimension, DimExpr):
        return str(dimension)
    values = {v: f"sizes[{i}]" for i, v in enumerate(signature.variables)}
    return f"maximum(0, {dimension.evaluate_with(values, _ALGEBRA)})"


def write_weights_assembly(name: str) -> str:
    """Returns NAME_weights.S, which puts the file of the weights into the program."""
    return f"""\
/* The weights of {name}, in read-only memory. Written by jax2tf-bridge. */
#if defined(__APPLE__)
  .section __TEXT,__const
  .globl _{name}_weights_data
  .private_extern _{name}_weights_data
  .p2align 6
_{name}_weights_data:
#else
  .section .rodata
  .globl {name}_weights_data
  .hidden {name}_weights_data
  .balign 64
{name}_weights_data:
#endif
  .incbin "{name}.weights"
#if defined(__ELF__)
  .section .note.GNU-stack,"",%progbits
#endif
"""


def write_cmake(
    name: str,
    sources: Sequence[str],
    objects: Sequence[str],
    flags: Sequence[str],
    definitions: Sequence[str],
    *,
    has_assembly: bool,
) -> str:
    """Returns CMakeLists.txt."""
    newline = "\n  "
    threads = "JAX2TF_BRIDGE_THREADS" in definitions
    build = f"""\
set_source_files_properties(
  {newline.join(objects)}
  PROPERTIES EXTERNAL_OBJECT TRUE)
add_library({name}
  {newline.join([*sources, *objects])})
target_include_directories({name}
  PUBLIC $<BUILD_INTERFACE:${{CMAKE_CURRENT_SOURCE_DIR}}> $<INSTALL_INTERFACE:include>
  PRIVATE runtime)
target_compile_options({name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:{
        ";".join(["-w", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections", *flags])
    }>)
target_compile_definitions({name} PRIVATE {
        " ".join(definitions)
    } $<$<BOOL:${{BUILD_SHARED_LIBS}}>:JAX2TF_BRIDGE_SHARED>)
set_target_properties({name} PROPERTIES LINKER_LANGUAGE CXX PUBLIC_HEADER "{name}.h;{name}.hpp")
# Programs of C projects link the C++ library too.
target_link_libraries({name} PRIVATE ${{CMAKE_CXX_IMPLICIT_LINK_LIBRARIES}})
{"find_package(Threads REQUIRED)" if threads else ""}
{f"target_link_libraries({name} PUBLIC Threads::Threads)" if threads else ""}

add_executable({name}_example main.c)
target_link_libraries({name}_example PRIVATE {name})
set_target_properties({name}_example PROPERTIES LINKER_LANGUAGE CXX)
if(NOT APPLE)
  target_link_libraries({name}_example PRIVATE -Wl,--gc-sections)
endif()
"""
    languages = "C CXX ASM" if has_assembly else "C CXX"
    return wrap_cmake(name, languages, "set(CMAKE_CXX_STANDARD 17)", build)


def wrap_cmake(name: str, languages: str, standard: str, build: str) -> str:
    """Returns CMakeLists.txt: the project, the code that builds it, and its installation."""
    return f"""\
# Builds lib{name} and an example. Written by jax2tf-bridge.
cmake_minimum_required(VERSION 3.13)
project({name} {languages})
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
{standard}
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

{build}
include(GNUInstallDirs)
install(TARGETS {name} EXPORT {name}
  PUBLIC_HEADER DESTINATION ${{CMAKE_INSTALL_INCLUDEDIR}})
set(prefix ${{CMAKE_INSTALL_PREFIX}})
configure_file({name}.pc.in {name}.pc @ONLY)
install(FILES ${{CMAKE_CURRENT_BINARY_DIR}}/{name}.pc
  DESTINATION ${{CMAKE_INSTALL_LIBDIR}}/pkgconfig)
"""


def write_pkg_config(
    name: str, *, libraries: str = "", private_libraries: str = "", runs_with: str = ""
) -> str:
    """Returns NAME.pc.in, which CMake completes.

    Args:
      name: the name of the library.
      libraries: further libraries that programs link.
      private_libraries: the libraries that the static library needs.
      runs_with: the end of the description.
    """
    private = f"Libs.private: {private_libraries}\n" if private_libraries else ""
    return f"""\
prefix=@prefix@
Name: {name}
Description: A JAX function as a C library{runs_with}
Version: 1
Cflags: -I${{prefix}}/@CMAKE_INSTALL_INCLUDEDIR@
Libs: -L${{prefix}}/@CMAKE_INSTALL_LIBDIR@ -l{name}{libraries}
{private}"""


def write_example(interface: Interface, *, separate: bool) -> str:
    """Returns main.c, which calls each signature once, with zeros, and prints its outputs."""
    name = interface.name
    weights = f'arguments > 1 ? values[1] : "{name}.weights"' if separate else "NULL"
    calls = [
        write_call(name, s.prefix, f"{s.name}: ", s.sizes[0], inputs=s.inputs, outputs=s.outputs)
        for s in interface.signatures
    ]
    return wrap_example(name, f"{name}_new(&handle, {weights})", calls)


def wrap_example(name: str, opening: str, calls: Sequence[str]) -> str:
    """Returns main.c, which opens a handle, calls functions, and frees the handle."""
    newline = "\n"
    return f"""\
/* Calls each function of {name} once, with zeros. Written by jax2tf-bridge. */
#include <stdio.h>
#include <stdlib.h>

#include "{name}.h"

static int fail({name}_handle *handle) {{
  fprintf(stderr, "%s\\n", {name}_message(handle));
  {name}_free(handle);
  return 1;
}}

int main(int arguments, char **values) {{
  {name}_handle *handle = NULL;
  (void)arguments;
  (void)values;
  if ({opening} != {name.upper()}_OK)
    return fail(handle);
{newline.join(calls)}
  {name}_free(handle);
  return 0;
}}
"""


def write_call(
    library: str,
    prefix: str,
    label: str,
    sizes: Mapping[str, int],
    *,
    inputs: Sequence[LibraryArray],
    outputs: Sequence[LibraryArray],
) -> str:
    """Returns the code that calls a function with zeros of these sizes, and prints its outputs.

    The C names of the function begin with `prefix`. The text about each output begins with `label`.
    """
    lines = [f"    {prefix}_inputs inputs = {{0}};", f"    {prefix}_outputs outputs = {{0}};"]
    lines += [f"    inputs.{make_identifier(v)} = {size};" for v, size in sizes.items()]
    frees, prints = [], []
    for side, arrays in (("inputs", inputs), ("outputs", outputs)):
        for array, shape in zip(arrays, evaluate_shapes(arrays, sizes), strict=True):
            count = math.prod(shape) * (2 if array.is_complex else 1)
            place = f"{side}.{array.identifier}"
            lines.append(f"    {place} = calloc({max(count, 1)}, sizeof({array.c_type}));")
            frees.append(f"    free((void *){place});")
            if side == "outputs":
                prints += [
                    f'    printf("%s =", {quote_c(label + array.identifier)});',
                    f"    for (int i = 0; i < {min(count, 10)}; ++i) "
                    f'printf(" %g", (double){place}[i]);',
                    '    printf("\\n");',
                ]
    newline = "\n"
    return f"""\
  {{
{newline.join(lines)}
    if ({prefix}_run(handle, &inputs, &outputs) != {library.upper()}_OK) return fail(handle);
{newline.join([*prints, *frees])}
  }}"""


def write_readme(
    interface: Interface,
    *,
    separate: bool,
    triple: str,
    cpu: str,
    compiler: str,
    program_bytes: Mapping[str, int],
    uses_eigen: bool,
    uses_xla: bool,
) -> str:
    """Returns README.md: how to build the library, its sizes, and the licenses of its parts.

    `compiler` is the release of TensorFlow that compiled the programs. `uses_eigen` and `uses_xla`
    tell which sources runtime/ has.
    """
    name = interface.name
    rows = []
    for signature in interface.signatures:
        for i, sizes in enumerate(signature.sizes):
            size = program_bytes[signature.program_name(i)]
            rows.append(f"| `{signature.prefix}_run` | {format_sizes(sizes) or 'fixed'} | {size} |")
    file = f"`{name}.weights`, which `{name}_new` maps into memory" if separate else "the program"
    weights = (
        f"The weights ({interface.weights_size} bytes) are in {file}."
        if interface.weights
        else "The functions have no weights."
    )
    licenses = [f"- `{name}.*`, `main.c`, `programs/`: compiled from your functions."]
    licenses.append("- `runtime/bridge_*.h`: jax2tf-bridge, Apache License 2.0.")
    licenses.append(
        "- `runtime/xla/`: headers" + (" and sources" if uses_xla else "") + " of OpenXLA, Apache "
        "License 2.0 (`runtime/LICENSE`)."
    )
    if uses_eigen:
        licenses.append(
            "- `runtime/Eigen/`, `runtime/unsupported/`: Eigen, Mozilla Public License 2.0 "
            "(https://www.mozilla.org/MPL/2.0/); parts under BSD and Apache licenses, as their "
            "files say. If you distribute changed files of Eigen, publish them."
        )
    newline = "\n"
    machine = f"{triple} ({cpu})" if cpu else triple
    return f"""\
# {name}

JAX functions as a C library, compiled by TensorFlow {compiler} for {machine}.
Neither Python nor TensorFlow is needed to build or run it. {weights}

```sh
cmake -S . -B build && cmake --build build
./build/{name}_example
```

`{name}.h` describes the functions, and `main.c` calls each of them. `{name}.hpp` is for C++17.

| function | sizes | bytes of its program |
|---|---|---|
{newline.join(rows)}

## Licenses

{newline.join(licenses)}
"""
