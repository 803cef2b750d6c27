"""Makes XLA compile quickly rather than well: most tests look at a result once.

The consumers on the oldest and the newest TensorFlow (tests/consumers) compile as XLA does by
default, so that what is served is tested as well.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
import os
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

VARIABLE = "XLA_FLAGS"

# Against XLA's defaults these take 50 to 80% off the CPU time of a compilation.
FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    # One module for LLVM instead of one for each kernel: a fifth less.
    "--xla_cpu_parallel_codegen_split_count=1",
)

# Where JAX and TensorFlow keep their copies of XLA.
_LIBRARIES = (("jaxlib", "libjax_common.so"), ("tensorflow", "libtensorflow_cc.so.2"))


def compile_quickly(environ: MutableMapping[str, str] = os.environ) -> None:
    """Adds the flags to XLA_FLAGS, unless the variable names any of them already.

    Has to run before JAX and TensorFlow compile anything. A process ends at a flag that its XLA
    does not know, so only those are added that are found in the libraries.
    """
    present = environ.get(VARIABLE, "")
    if not any(_name(flag) in present for flag in FLAGS):
        environ[VARIABLE] = with_quick_flags(present)


def with_quick_flags(flags: str) -> str:
    """Puts the flags that both XLAs know before others, for the environment of a process.

    >>> with_quick_flags("--xla_force_host_platform_device_count=8").split()[-1]
    '--xla_force_host_platform_device_count=8'
    """
    return " ".join([*_known_flags(tuple(_libraries())), flags]).strip()


def quick_flags_of(python: Path) -> str:
    """Returns the flags that every XLA of another environment knows; none where it has no XLA.

    Args:
        python: the interpreter of the environment.
    """
    folders = python.parent.parent.glob("lib/python3*/site-packages")
    libraries = (folder.joinpath(*names) for folder in folders for names in _LIBRARIES)
    return " ".join(_known_flags(tuple(path for path in libraries if path.parent.exists())))


def _name(flag: str) -> str:
    return flag.removeprefix("--").partition("=")[0]


@functools.cache
def _known_flags(libraries: Sequence[Path]) -> tuple[str, ...]:
    if not libraries:
        return ()
    known = set(FLAGS)
    for library in libraries:
        if not library.exists():
            return ()
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            known = {flag for flag in known if content.find(_as_c_string(flag)) >= 0}
    return tuple(flag for flag in FLAGS if flag in known)


def _as_c_string(flag: str) -> bytes:
    r"""Writes a flag's name as code refers to it.

    XLA's protocol buffers still name flags that are gone.

    >>> _as_c_string("--xla_x=1")
    b'\x00xla_x\x00'
    """
    return b"\0" + _name(flag).encode() + b"\0"


def _libraries() -> Iterator[Path]:
    """Yields where the installed packages keep XLA, if they do as they do on Linux."""
    for package, name in _LIBRARIES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(folder, name)
