"""Compiles functions to C libraries ahead of time, and loads such libraries in Python.

`compile_library` needs TensorFlow, whose tfcompile makes the objects. `load_library` needs NumPy
only. Neither is imported before it is used. `write_open_library` needs neither; its
libraries take any sizes, and need those of TensorFlow.
"""

from jax2tf_bridge.c_library._compile import CompiledLibrary, compile_library
from jax2tf_bridge.c_library._load import LoadedLibrary, load_library
from jax2tf_bridge.c_library.open_sizes import write_open_library

__all__ = [
    "CompiledLibrary",
    "LoadedLibrary",
    "compile_library",
    "load_library",
    "write_open_library",
]
