"""The jobs that the three examples export, and the files that they write."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from examples.parallel_export import model
from jax2tf_bridge import PortableFunction, write_function
from jax2tf_bridge.parallel import ExportJob


def jobs() -> dict[str, ExportJob]:
    """Makes jobs of two functions, with open and fixed lengths, for all platforms or one."""
    params = model.weights()

    def tokens(length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return np.zeros((1, length), np.int32)

    return {
        "classify": ExportJob(
            model.classify, [params, tokens(16)], polymorphic_shapes=[None, "(b, l)"], vjp_order=1
        ),
        "classify_short": ExportJob(
            model.classify, [params, tokens(16)], polymorphic_shapes=[None, "(b, _)"]
        ),
        "classify_long_tpu": ExportJob(
            model.classify,
            [params, tokens(512)],
            polymorphic_shapes=[None, "(b, _)"],
            platforms=["tpu"],
        ),
        "embed": ExportJob(model.embed, [params, tokens(16)], polymorphic_shapes=[None, "(b, l)"]),
    }


def write(portables: Mapping[str, PortableFunction], folder: Path) -> None:
    """Writes a file for each portable function, and prints its arguments and platforms."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, portable in portables.items():
        path = folder / f"{name}.jaxfn"
        write_function(path, portable)
        arguments = ", ".join(map(str, portable.in_avals))
        print(f"{path.name}: ({arguments}) on {', '.join(portable.platforms)}")
