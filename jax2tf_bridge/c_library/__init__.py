"""Compiles functions to C libraries ahead of time, and loads such libraries in Python.

`compile_library` needs TensorFlow, whose tfcompile makes the objects, and imports it when it is
called. `load_library` and `write_open_library` need neither JAX nor TensorFlow. Libraries of
`write_open_library` take any sizes, and need the libraries of TensorFlow.

Names are imported when they are first used: `load_library` needs NumPy alone.
"""

from typing import TYPE_CHECKING

from jax2tf_bridge._lazy_names import make_lazy_getattr

if TYPE_CHECKING:
    from jax2tf_bridge.c_library._compile import CompiledLibrary, compile_library
    from jax2tf_bridge.c_library._load import LoadedLibrary, load_library
    from jax2tf_bridge.c_library._open_sizes import write_open_library
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "CompiledLibrary": "_compile",
            "LoadedLibrary": "_load",
            "compile_library": "_compile",
            "load_library": "_load",
            "write_open_library": "_open_sizes",
        },
    )

__all__ = [
    "CompiledLibrary",
    "LoadedLibrary",
    "compile_library",
    "load_library",
    "write_open_library",
]
