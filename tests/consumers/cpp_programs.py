"""Compiles the C++ programs of tests/consumers/cpp against the wheel's headers and libraries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from scripts._env import locked
from tests.consumers.harness import Harness, NotAvailableError

SOURCES = Path(__file__).parent / "cpp"


def compiled(source: str, harness: Harness, release: str) -> Path:
    """Compiles a program against a TensorFlow release, once for all tests.

    Raises:
      NotAvailableError: there is no compiler, or no Python that has the release.
    """
    if shutil.which("g++") is None:
        raise NotAvailableError(f"no g++ on the PATH: cpp/{source} was NOT tested")
    python = harness.consumer_python(release)
    (package,) = python.parent.parent.glob("lib/python3*/site-packages/tensorflow")
    program = harness.folder / f"{source.removesuffix('.cc')}-{release}"
    with locked(program.with_suffix(".lock")):
        if not program.exists():
            harness.say(f"compiling {source} against TensorFlow {release}")
            compile_program(source, package, program)
    return program


def compile_program(name: str, package: Path, program: Path) -> None:
    """Compiles one of the programs.

    Args:
      name: the source's, as "replay.cc".
      package: the folder of an installed TensorFlow.
      program: what to write.

    Raises:
      RuntimeError: the compiler fails; with the end of what it said.
    """
    options = ["-O1", "-std=c++17", "-w", f"-I{package / 'include'}", "-D_GLIBCXX_USE_CXX11_ABI=1"]
    libraries = ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    places = [f"-L{package}", "-Wl,--no-as-needed", *libraries, f"-Wl,-rpath,{package}"]
    command = ["g++", *options, str(SOURCES / name), *places, "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} does not compile:\n{done.stderr[-3000:]}")
