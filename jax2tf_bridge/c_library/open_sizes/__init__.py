"""C libraries that take any sizes: they open a .jaxfn file, and TensorFlow's XLA compiles it.

Imports neither jax nor tensorflow. `runtime` has the sources in C.
"""

from jax2tf_bridge.c_library.open_sizes._write import write_open_library

__all__ = ["write_open_library"]
