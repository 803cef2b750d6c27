"""Portable functions and their parts. Imports neither jax nor tensorflow.

`__init__.pyi` lists the public names, which are imported on first use.

>>> from jax2tf_bridge.portable import Aval
>>> str(Aval((2, 3), "float32"))
'float32[2,3]'
"""

from jax2tf_bridge._lazy_names import homes_of, lazy_getattr

_HOMES = homes_of(__spec__)

__all__ = sorted(_HOMES)
__getattr__ = lazy_getattr(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
