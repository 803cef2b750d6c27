"""Builds the folder of a C library by CMake, as its README says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.consumers.one_by_one import RECORD_TIMES


def build_by_cmake(source: Path, build: Path, *options: str) -> None:
    """Builds a project of CMake in a new folder.

    Args:
      source: the folder of the library, or a project that uses it.
      build: the folder to make.
      options: options for the first step, as "-DBUILD_SHARED_LIBS=ON".

    Raises:
      RuntimeError: the project does not build; with what CMake said.
    """
    run(["cmake", "-S", source, "-B", build, *options])
    run(["cmake", "--build", build])


def build_shared(library: Path, build: Path, name: str) -> Path:
    """Builds the shared library of a folder by CMake, and returns its path.

    It is compiled with few optimisations, to be quick, unless the tests measure times.
    """
    quick = () if RECORD_TIMES in os.environ else ("-DCMAKE_CXX_FLAGS_RELEASE=-O1",)
    build_by_cmake(library, build, "-DBUILD_SHARED_LIBS=ON", *quick)
    return build / f"lib{name}.so"


def run(command: Sequence[object]) -> str:
    """Runs a command and returns what it printed.

    Raises:
      RuntimeError: it fails; with what it said.
    """
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
