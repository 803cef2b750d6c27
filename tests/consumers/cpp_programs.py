"""Compiles the C++ programs of tests/consumers/cpp against the wheel's headers and libraries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from scripts._env import locked
from tests.consumers.harness import Harness, NotAvailableError

SOURCES = Path(__file__).parent / "cpp"


def compiled(name: str, harness: Harness, release: str) -> Path:
    """Compiles the programs against a TensorFlow release, once for all tests.

    Args:
      name: of the program that is wanted, as "replay".
      harness: the runs.
      release: of TensorFlow.

    Returns: a link to the file of all programs, whose name says which one it runs.

    Raises:
      NotAvailableError: there is no compiler, or no Python that has the release.
    """
    if shutil.which("g++") is None:
        raise NotAvailableError(f"no g++ on the PATH: cpp/{name}.cc was NOT tested")
    python = harness.consumer_python(release)
    (package,) = python.parent.parent.glob("lib/python3*/site-packages/tensorflow")
    programs, link = (harness.folder / f"{stem}-{release}" for stem in ("programs", name))
    with locked(programs.with_suffix(".lock")):
        if not programs.exists():
            harness.say(f"compiling the C++ programs against TensorFlow {release}")
            compile_program("programs.cc", package, programs)
        if not link.exists():
            link.symlink_to(programs)
    return link


LINKER = ["-fuse-ld=gold"] * (shutil.which("ld.gold") is not None)
"""Links against libtensorflow_cc in 2 s of CPU time instead of 7."""


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
    places = [f"-L{package}", *LINKER, "-Wl,--no-as-needed", *libraries, f"-Wl,-rpath,{package}"]
    command = ["g++", *options, str(SOURCES / name), *places, "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} does not compile:\n{done.stderr[-3000:]}")
