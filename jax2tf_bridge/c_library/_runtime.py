"""Copies the sources that compiled programs need into the folder of a C library."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

_RUNTIME = "xla/backends/cpu/runtime"
_OWN_HEADERS = {
    "xla/types.h": "bridge_tensorflow.h",
    "tensorflow/core/platform/types.h": "bridge_tensorflow.h",
    "tensorflow/compiler/tf2xla/xla_compiled_cpu_function.h": "bridge_tensorflow.h",
    f"{_RUNTIME}/work_queue.h": "bridge_workers.h",
    f"{_RUNTIME}/sort_lib.h": "bridge_sort.h",
    "xla/tsl/concurrency/async_value_ref.h": "bridge_workers.h",
    "xla/tsl/concurrency/chain.h": "bridge_workers.h",
}
"""Headers of TensorFlow that one of ours replaces."""
_PRODUCT_HEADERS = {
    f"{_RUNTIME}/dot_lib.h": "bridge_products.h",
    f"{_RUNTIME}/convolution_lib.h": "bridge_products.h",
}
"""Further headers that one of ours replaces for programs without float16."""

_OWN_FILES = tuple(
    f"bridge_{name}.h"
    for name in (
        "abseil",
        "bfloat16",
        "kernels",
        "products",
        "program",
        "sort",
        "tensorflow",
        "threads",
        "workers",
    )
)
_MATMUL_SOURCES = {
    "Eigen::half": "f16",
    "float": "f32",
    "double": "f64",
    "int32_t": "s32",
    "int8_t": "s8",
    "std::complex<float>": "c64",
    "std::complex<double>": "c128",
}
_INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
_OTHER_MACHINES = re.compile(r"/arch/(GPU|SYCL|HIP|AltiVec|ZVector|MSA|HVX|LSX|RVV10)/")
"""Parts of Eigen for machines that tfcompile makes no programs for."""

_ACCESSORS = re.compile(
    r"^  // Arg methods for managing input buffers\..*?(?=^ private:)", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class RuntimeSources:
    """The part of XLA's runtime that programs need.

    Attributes:
      sources: the source files to compile, as paths below runtime/.
      definitions: the macros to define.
      uses_eigen: whether it has the headers of Eigen.
    """

    sources: tuple[str, ...]
    definitions: tuple[str, ...]
    uses_eigen: bool


_COMPLEX_PRODUCT = re.compile(r"(TypedMatMul<(?:std::complex<\w+>, ){2}std::complex<\w+>)\(")


def mend_header(text: str) -> str:
    """Removes access to single elements, and mends products of complex matrices.

    The library does not access single elements, whose types would need further headers. In products
    of complex matrices, TensorFlow 2.21 leaves out the last bracket.
    """
    return _COMPLEX_PRODUCT.sub(r"\1>(", _ACCESSORS.sub("", text))


def copy_runtime(
    headers: Sequence[str], include: Path, sources: Path, folder: Path, *, threads: bool
) -> RuntimeSources:
    """Copies what the programs include, and nothing else.

    Args:
      headers: the texts of the generated headers.
      include: TensorFlow's folder of headers.
      sources: its folder of the runtime's sources.
      folder: the folder to fill.
      threads: whether programs use several threads.
    """
    folder.mkdir()
    own = resources.files("jax2tf_bridge.c_library").joinpath("runtime")
    for name in _OWN_FILES:
        (folder / name).write_text(own.joinpath(name).read_text("utf-8"), "utf-8")
    text = "\n".join(headers)
    needs_eigen = "Eigen::half" in text
    own_headers = _OWN_HEADERS if needs_eigen else _OWN_HEADERS | _PRODUCT_HEADERS
    compiled = _list_sources(text, needs_eigen=needs_eigen)
    roots = {*_iterate_includes(text), *compiled}
    copied = _copy(roots, own_headers, (sources, include), folder)
    definitions = []
    if "rng_states[" in text:
        definitions.append("JAX2TF_BRIDGE_RANDOM")
    if threads and not needs_eigen:  # our pool runs our products only
        definitions.append("JAX2TF_BRIDGE_THREADS")
    uses_eigen = any("Eigen" in path for path in copied)
    return RuntimeSources(tuple(compiled), tuple(definitions), uses_eigen)


def _list_sources(text: str, *, needs_eigen: bool) -> list[str]:
    names = ["rng_state_lib"] if "rng_states[" in text else []
    if not needs_eigen:
        return [f"{_RUNTIME}/{name}.cc" for name in names]
    for types in re.findall(r"internal::TypedMatMul<(.+?)>\s*\(", text):
        first = types.split(", ")[0].strip()
        names.append(f"dot_lib_{_MATMUL_SOURCES[first]}")
    for dimensions, element in re.findall(r"internal::EigenConv(\d)D<(\S+?)>", text):
        kind = "f16" if "half" in element else "f32"
        names.append(f"convolution_lib_{kind}_{dimensions}d")
    return [f"{_RUNTIME}/{name}.cc" for name in sorted(set(names))]


def _iterate_includes(text: str) -> Iterable[str]:
    return (quoted or angled for quoted, angled in _INCLUDE.findall(text))


def _copy(
    roots: Iterable[str], own_headers: Mapping[str, str], places: Sequence[Path], folder: Path
) -> list[str]:
    """Copies files and all that they include; returns their paths."""
    seen: set[str] = set()
    copied = []
    rest = list(roots)
    while rest:
        path = rest.pop()
        if path in seen or _OTHER_MACHINES.search(path):
            continue
        seen.add(path)
        replacement = "bridge_abseil.h" if path.startswith("absl/") else own_headers.get(path)
        target = folder / path
        if replacement is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(f'#include "{replacement}"\n')
            if replacement == "bridge_workers.h":
                rest.append("unsupported/Eigen/CXX11/Tensor")
            continue
        source = next((place / path for place in places if (place / path).is_file()), None)
        if source is None:
            continue  # a header of the system, or for another machine
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        copied.append(path)
        for name in _iterate_includes(source.read_text("utf-8", errors="replace")):
            near = os.path.normpath(os.path.join(os.path.dirname(path), name))
            rest += [near] if any((place / near).is_file() for place in places) else [name]
    return copied
