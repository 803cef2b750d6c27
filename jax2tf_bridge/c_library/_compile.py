"""compile_library(): functions as a C library, compiled ahead of time by TensorFlow's tfcompile."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from jax2tf_bridge._utils import name_items, reraise_interrupts
from jax2tf_bridge.c_library import _sources
from jax2tf_bridge.c_library._cpp_header import write_cpp_header
from jax2tf_bridge.c_library._interface import (
    Interface,
    check_library_name,
    make_identifier,
)
from jax2tf_bridge.c_library._read import make_processing_error, read_interface, write_weights
from jax2tf_bridge.c_library._runtime import RuntimeSources, copy_runtime, mend_header
from jax2tf_bridge.errors import (
    Argument,
    Message,
    ModuleError,
    SavingError,
    UnsupportedByTargetError,
    make_path_error,
    name_missing_package,
)
from jax2tf_bridge.saved_model import SERVING_DEFAULT
from jax2tf_bridge.signatures import open_model
from jax2tf_bridge.storage import as_path, check_free, whole_directory

if TYPE_CHECKING:
    from jax2tf_bridge.signatures import Signatures

Weights: TypeAlias = Literal["embedded", "separate"]

_TRIPLES = {
    ("Linux", "x86_64"): "x86_64-pc-linux",
    ("Linux", "aarch64"): "aarch64-unknown-linux-gnu",
    ("Darwin", "arm64"): "aarch64-apple-darwin",
    ("Darwin", "x86_64"): "x86_64-apple-darwin",
}
_MARKER = "runtime/bridge_program.h"
"""Path of a file in every library; `overwrite` only replaces folders that contain it."""

_MIN_TENSORFLOW = (2, 21)
"""Oldest TensorFlow release whose tfcompile writes programs that need no other library."""


@dataclass(frozen=True)
class CompiledLibrary:
    """Describes a C library that `compile_library` wrote. Print it for a summary.

    Attributes:
      path: the folder.
      name: the name of the library, of its header, and the prefix of its C names.
      header: the path of the header.
      shared: the path of the shared library; None if it was not built.
      signatures: the compiled sizes of each signature.
      object_bytes: the size of the objects, without weights.
      weights_bytes: the size of the weights.
    """

    path: Path
    name: str
    header: Path
    shared: Path | None
    signatures: Mapping[str, tuple[Mapping[str, int], ...]]
    object_bytes: int
    weights_bytes: int

    def __post_init__(self) -> None:
        name_items(self, signatures="signature")

    def as_json(self) -> dict[str, Any]:
        """Returns the fields for JSON, with paths as texts."""
        return {
            "path": str(self.path),
            "name": self.name,
            "header": str(self.header),
            "shared": None if self.shared is None else str(self.shared),
            "signatures": {name: [*map(dict, sizes)] for name, sizes in self.signatures.items()},
            "object_bytes": self.object_bytes,
            "weights_bytes": self.weights_bytes,
        }

    def __str__(self) -> str:
        count = len(self.signatures)
        title = f"{count} signature{'s' if count > 1 else ''}"
        lines = [f"{self.path}: {self.header.name}, {title}"]
        for name, sizes in self.signatures.items():
            texts = [",".join(f"{v}={n}" for v, n in values.items()) for values in sizes if values]
            lines.append(f"  {name}" + (f" for {' or '.join(texts)}" if texts else ""))
        lines.append(
            f"  programs {self.object_bytes / 1e3:.0f} kB, "
            f"weights {self.weights_bytes / 1e3:.0f} kB"
        )
        return "\n".join(lines)


def compile_library(
    path: str | os.PathLike[str],
    source: Signatures | str | os.PathLike[str],
    *,
    params: Any = None,
    name: str | None = None,
    signatures: Sequence[str] | None = None,
    sizes: Sequence[Mapping[str, int]] = (),
    weights: Weights = "embedded",
    target_triple: str | None = None,
    target_cpu: str = "",
    multithreading: bool = False,
    shared: bool = False,
    overwrite: bool = False,
) -> CompiledLibrary:
    """Compiles functions to a folder with a C library, which needs neither Python nor TensorFlow.

    The folder has headers for C and C++, the compiled programs, all other sources, CMakeLists.txt,
    an example, and README.md. TensorFlow's tfcompile compiles a program for each signature and each
    combination of sizes. The programs share the weights.

    Args:
      path: the folder to write, which must not exist or must be empty.
      source: the folder of a SavedModel that `save` wrote, the path of a .jaxfn file, or what
        `save` takes as `signatures`: a Signature, a function, or a mapping of them by name.
      params: the weights of functions, as in `save`.
      name: the name of the library, an identifier in C. By default the name of the folder without
        "_lib".
      signatures: the names of the signatures to compile; by default all.
      sizes: values of the open sizes, such as [{"b": 1}, {"b": 32}]. A call runs the program
        for its sizes. The default is the buckets of the saved model, to which smaller sizes are
        padded. Leave it out if the functions have no open sizes.
      weights: "embedded" puts the weights into the program. "separate" writes NAME.weights, which
        the library maps into memory.
      target_triple: the machine that runs the library, as LLVM names it:
        "aarch64-unknown-linux-gnu". By default this machine.
      target_cpu: the processor, as LLVM names it: "haswell", "cortex-a72". Programs for newer
        processors are faster. The default supports every processor of the architecture.
      multithreading: whether large matrix products and convolutions use several threads.
      shared: whether to build NAME.so with this machine's compiler, for `load_library`.
      overwrite: whether to replace a library at `path`.

    Returns:
      A description of the library: paths, compiled sizes, and sizes in bytes. Print it.

    Raises:
      SavingError: the arguments contradict each other, or open sizes have no values.
      ShapeError: a function does not support the sizes.
      UnsupportedByTargetError: tfcompile cannot compile a function, such as one that calls
        TensorFlow or changes its weights.
      FileFormatError: the folder or file at `source` is of another kind, or is damaged.
      MissingDependencyError: TensorFlow is not installed.
      ModuleError: the installed TensorFlow has no suitable tfcompile, or the compiler fails.
      ExportError: an export fails, as in `export`.
      FileExistsError: `path` exists and may not be replaced.
      OSError: a file cannot be read or written.

    >>> import tempfile, numpy as np
    >>> from jax2tf_bridge import Signature, compile_library, load_library
    >>> dense = Signature(
    ...     lambda params, x: x @ params["w"],
    ...     args=[np.ones((4, 3), np.float32)],
    ...     polymorphic_shapes="(b, 3)",
    ... )
    >>> params = {"w": np.ones((3, 2), np.float32)}
    >>> library = compile_library(
    ...     tempfile.mkdtemp() + "/dense_lib", dense, params=params, sizes=[{"b": 2}], shared=True
    ... )
    >>> load_library(library.shared)(x=np.ones((2, 3), np.float32))
    {'output_0': array([[3., 3.],
           [3., 3.]], dtype=float32)}
    """
    folder = Path(path)
    check_free(folder, overwrite=overwrite, has=_MARKER)
    name = _check_name(name, folder)
    if shared and target_triple is not None:
        text = " builds a library for this machine, so it cannot be combined with "
        advice = ". Remove one of them. For another machine, build the folder with CMake."
        raise SavingError(Message(Argument("shared"), text, Argument("target_triple"), advice))
    if weights not in ("embedded", "separate"):
        raise SavingError(f"weights must be 'embedded' or 'separate'. Got: {weights!r}.")
    compiler = _find_compiler() if shared else None
    triple = target_triple or _find_triple()
    with (
        reraise_interrupts() as check_interrupts,
        tempfile.TemporaryDirectory(prefix="jax2tf_bridge-") as temporary,
        _save_or_open(source, params, Path(temporary)) as model,
    ):
        interface = read_interface(model, name, signatures, sizes)
        tensorflow = _find_tensorflow()
        check_interrupts()
        with whole_directory(folder, overwrite=overwrite, has=_MARKER) as staged:
            target = Path(staged)
            files = _Files(target, interface, weights, triple, target_cpu, multithreading)
            runtime = files.write(tensorflow, model, Path(temporary))
            if compiler is not None:
                files.build_shared(runtime, compiler)
            check_interrupts()
    return CompiledLibrary(
        path=folder,
        name=name,
        header=folder / f"{name}.h",
        shared=folder / f"{name}.so" if shared else None,
        signatures={s.name: s.sizes for s in interface.signatures},
        object_bytes=sum(f.stat().st_size for f in (folder / "programs").glob("*.o")),
        weights_bytes=interface.weights_size,
    )


def _check_name(name: str | None, folder: Path) -> str:
    name = folder.name.removesuffix("_lib") if name is None else name
    if make_identifier(name) != name:
        raise SavingError(
            Message(
                f"{name!r} prefixes all names of the library, and is not an identifier in C. Pass ",
                *(Argument("name", make_identifier(name)), "."),
            )
        )
    check_library_name(name)
    return name


def _find_triple() -> str:
    machine = (platform.system(), platform.machine())
    if machine not in _TRIPLES:
        raise SavingError(
            f"target_triple is needed on {' '.join(machine)}, for which no default is known. Pass "
            "LLVM's name of the machine that runs the library."
        )
    return _TRIPLES[machine]


def _find_compiler() -> str:
    for candidate in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if candidate and shutil.which(candidate):
            return candidate
    text = " needs a C++ compiler, but the PATH has none. Install g++, or set CXX."
    raise SavingError(Message(Argument("shared"), text))


def _find_error(text: str) -> str:
    """Returns a compiler's first error, or else its last line."""
    lines = text.strip().splitlines() or ["it said nothing"]
    return next((line for line in lines if "error:" in line), lines[-1])


@dataclass(frozen=True)
class _TensorFlow:
    """Parts of an installed TensorFlow that a compilation uses.

    Attributes:
      include: the folder of its headers.
      runtime: the folder of the runtime's sources.
      flags: the XLA flags that it needs.
      version: its release.
    """

    include: Path
    runtime: Path
    flags: str
    version: str


def _find_tensorflow() -> _TensorFlow:
    with name_missing_package("compile_library"):
        import tensorflow as tf
    from jax2tf_bridge.c_library._tf_compat import TFCOMPILE

    version = tuple(map(int, re.findall(r"\d+", tf.__version__)[:2]))
    include = Path(tf.sysconfig.get_include())
    runtime = include.parent / "xla_aot_runtime_src"
    if version < _MIN_TENSORFLOW or not runtime.is_dir() or TFCOMPILE.get() is None:
        raise ModuleError(
            f"The installed TensorFlow {tf.__version__} has no tfcompile whose programs run "
            "without TensorFlow. Install tensorflow-cpu 2.21 for Linux or macOS from PyPI."
        )
    # The runtime's sources lack YNNPACK, so programs must not call it.
    flags = "--xla_cpu_experimental_ynn_fusion_type=" if version == (2, 21) else ""
    return _TensorFlow(include, runtime, flags, tf.__version__)


@contextmanager
def _save_or_open(source: Any, params: Any, temporary: Path) -> Iterator[Path]:
    """Yields the path of a SavedModel; first saves functions to the temporary folder."""
    if isinstance(source, (str, os.PathLike)) and not as_path(source).exists():
        text = "does not exist. Pass the folder of a SavedModel, or the path of a .jaxfn file"
        raise make_path_error(errno.ENOENT, text, source)
    with open_model(source, params) as folder:
        if folder is not None:
            yield folder
            return
    if isinstance(source, (list, tuple)) or (isinstance(source, Mapping) and not source):
        raise SavingError(
            "source must be a path, a Signature or a function, or a mapping of them by name, as "
            f"{{'serving_default': ...}}. Got: {source!r}."
        )
    from jax2tf_bridge.converting import save

    for name, each in source.items() if isinstance(source, Mapping) else [("", source)]:
        processing = getattr(each, "processing", None)
        if processing is not None and (processing.preprocess or processing.postprocess):
            raise make_processing_error(name or SERVING_DEFAULT)
    saved = temporary / "model"
    save(saved, source, params=params, trainable=False, vjp_order=0, warm_up=False)
    yield saved


@dataclass(frozen=True)
class _Files:
    """Writes the files of a library.

    Attributes:
      folder: the folder to fill.
      interface: the interface of the library.
      weights: whether weights are embedded or separate.
      triple, cpu: the machine, as LLVM names it.
      multithreading: whether programs use several threads.
    """

    folder: Path
    interface: Interface
    weights: Weights
    triple: str
    cpu: str
    multithreading: bool

    @property
    def is_separate(self) -> bool:
        return self.weights == "separate" and bool(self.interface.weights)

    @property
    def is_embedded(self) -> bool:
        return self.weights == "embedded" and bool(self.interface.weights)

    def write(self, tensorflow: _TensorFlow, model: Path, temporary: Path) -> RuntimeSources:
        """Compiles all programs, and writes all files but the shared library."""
        name, folder = self.interface.name, self.folder
        arguments = self._compile(tensorflow, temporary)
        headers = []
        for file in sorted((folder / "programs").glob("*.h")):
            headers.append(mend_header(file.read_text()))
            file.write_text(headers[-1])
        runtime = copy_runtime(
            headers,
            tensorflow.include,
            tensorflow.runtime,
            folder / "runtime",
            threads=self.multithreading,
        )
        wrapper = _sources.write_wrapper(self.interface, arguments, separate=self.is_separate)
        objects = [f"programs/{file.name}" for file in sorted((folder / "programs").glob("*.o"))]
        texts = {
            f"{name}.h": _sources.write_header(self.interface),
            f"{name}.hpp": write_cpp_header(self.interface),
            f"{name}.cc": wrapper,
            f"{name}.pc.in": _sources.write_pkg_config(
                name, private_libraries="-lstdc++ -lm" + " -lpthread" * self.multithreading
            ),
            "main.c": _sources.write_example(self.interface, separate=self.is_separate),
            "CMakeLists.txt": _sources.write_cmake(
                name,
                self._list_sources(runtime),
                objects,
                self._list_machine_flags(),
                runtime.definitions,
                has_assembly=self.is_embedded,
            ),
        }
        texts["README.md"] = _sources.write_readme(
            self.interface,
            separate=self.is_separate,
            triple=self.triple,
            cpu=self.cpu,
            compiler=tensorflow.version,
            program_bytes={
                file.stem: sum(o.stat().st_size for o in file.parent.glob(f"{file.stem}*.o"))
                for file in (folder / "programs").glob("*.h")
            },
            uses_eigen=runtime.uses_eigen,
            uses_xla=bool(runtime.sources),
        )
        shutil.copyfile(tensorflow.include / "LICENSE", folder / "runtime" / "LICENSE")
        if self.is_embedded:
            texts[f"{name}_weights.S"] = _sources.write_weights_assembly(name)
        for file_name, text in texts.items():
            (folder / file_name).write_text(text, encoding="utf-8")
        if self.interface.weights:
            with (folder / f"{name}.weights").open("wb") as stream:
                write_weights(as_path(model), self.interface, stream)
        return runtime

    def build_shared(self, runtime: RuntimeSources, compiler: str) -> None:
        """Builds NAME.so with this machine's compiler."""
        objects = sorted(str(f) for f in (self.folder / "programs").glob("*.o"))
        command = [
            *(compiler, "-std=c++17", "-O3", "-w", "-fPIC", "-shared", "-fvisibility=hidden"),
            *("-ffunction-sections", "-fdata-sections", "-Wl,-Bsymbolic"),
            *(["-Wl,--gc-sections"] if platform.system() == "Linux" else []),
            *self._list_machine_flags(),
            *(f"-D{definition}" for definition in runtime.definitions),
            *("-DJAX2TF_BRIDGE_SHARED", "-I.", "-Iruntime", *self._list_sources(runtime)),
            *(os.path.relpath(file, self.folder) for file in objects),
            *(["-pthread"] if self.multithreading else []),
            *("-o", f"{self.interface.name}.so"),
        ]
        completed = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if completed.returncode:
            raise ModuleError(
                f"{compiler} cannot build {self.interface.name}.so: {_find_error(completed.stderr)}"
            )

    def _list_sources(self, runtime: RuntimeSources) -> list[str]:
        weights = [f"{self.interface.name}_weights.S"] if self.is_embedded else []
        return [
            f"{self.interface.name}.cc",
            *weights,
            *(f"runtime/{s}" for s in runtime.sources),
        ]

    def _list_machine_flags(self) -> list[str]:
        if not self.cpu:
            return []
        is_arm = self.triple.startswith(("aarch64", "arm"))
        return [f"-mcpu={self.cpu}" if is_arm else f"-march={self.cpu}"]

    def _compile(self, tensorflow: _TensorFlow, temporary: Path) -> list[tuple[int, ...]]:
        """Compiles all programs; returns the indices of the leaves that each signature takes."""
        from jax2tf_bridge.c_library._graphs import make_graph

        programs = self.folder / "programs"
        programs.mkdir(parents=True)
        jobs, owners, arguments = [], [], []
        for signature in self.interface.signatures:
            for i, sizes in enumerate(signature.sizes):
                program = signature.program_name(i)
                graph = make_graph(signature, sizes)
                (temporary / f"{program}.pb").write_bytes(graph.graph)
                (temporary / f"{program}.pbtxt").write_text(graph.config)
                jobs.append(
                    {
                        "graph": str(temporary / f"{program}.pb"),
                        "config": str(temporary / f"{program}.pbtxt"),
                        "target_triple": self.triple,
                        "target_cpu": self.cpu,
                        "cpp_class": program,
                        "entry_point": f"{program}_entry",
                        "out_header": str(programs / f"{program}.h"),
                        "out_function_object": str(programs / f"{program}.o"),
                        "out_constant_buffers_object": str(programs / f"{program}_constants.o"),
                        "out_metadata_object": str(temporary / f"{program}_metadata.o"),
                        "gen_name_to_index": False,
                        "gen_program_shape": False,
                    }
                )
                owners.append(signature)
            arguments.append(graph.arguments)
        failures = self._run_compiler(jobs, tensorflow.flags, temporary)
        for signature, failure in zip(owners, failures, strict=True):
            if failure is not None:
                if "No available targets are compatible with triple" in failure:
                    raise SavingError(
                        Message(
                            f"TensorFlow's LLVM does not compile for {self.triple!r}. Pass "
                            "another ",
                            Argument("target_triple"),
                            ", such as aarch64-unknown-linux-gnu.",
                        )
                    )
                raise UnsupportedByTargetError(
                    f"tfcompile cannot compile the signature {signature.name}: "
                    f"{failure.splitlines()[0]}",
                    operation="tfcompile",
                    source=None,
                )
        return arguments

    def _run_compiler(
        self, jobs: Sequence[Mapping[str, Any]], flags: str, temporary: Path
    ) -> list[str | None]:
        file = temporary / "jobs.json"
        file.write_text(json.dumps(jobs))
        threads = str(self.multithreading).lower()
        user_flags = os.environ.get("XLA_FLAGS", "")
        environment = {
            **os.environ,
            "XLA_FLAGS": f"{user_flags} --xla_cpu_multi_thread_eigen={threads} {flags}".strip(),
        }
        completed = subprocess.run(
            [sys.executable, "-m", "jax2tf_bridge.c_library._tf_compat", str(file)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        # LLVM only warns about an unknown processor, and compiles for a default one.
        if f"'{self.cpu}' is not a recognized processor" in completed.stderr:
            raise SavingError(
                Message(
                    f"LLVM does not know the processor {self.cpu!r} for {self.triple}. Pass "
                    "another ",
                    Argument("target_cpu"),
                    ", or leave it out to support every processor of the architecture.",
                )
            )
        failures_file = Path(f"{file}.failures")
        if completed.returncode or not failures_file.exists():
            error = _find_error(completed.stderr)
            raise ModuleError(f"tfcompile ended with exit code {completed.returncode}: {error}")
        failures: list[str | None] = json.loads(failures_file.read_text())
        return failures
