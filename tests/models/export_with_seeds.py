"""Exports real models with an int32 seed where they take a key, for runtimes without uint32.

python -m tests.models.export_with_seeds FOLDER MODEL ...
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.models.export_models import export
from tests.models.model import Arguments, Built, Model
from tests.models.table import by_name


def with_seed(model: Model) -> Model:
    """Returns the model with int32 seeds in place of the keys among its arguments."""
    return dataclasses.replace(model, build=lambda: _seeded(model.build()))


def _seeded(built: Built) -> Built:
    keys = [_is_key(argument) for argument in built.example]
    assert any(keys), "the model takes no key"

    def function(params: Any, *args: Any) -> Any:
        pairs = zip(args, keys, strict=True)
        return built.function(params, *(jax.random.key(a) if key else a for a, key in pairs))

    return Built(function, built.params, _seeds(built.example), list(map(_seeds, built.calls)))


def _is_key(argument: Any) -> bool:
    dtype = getattr(argument, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _seeds(args: Arguments) -> Arguments:
    """Replaces keys by the seeds that they were made of."""
    return tuple(np.int32(jax.random.key_data(a)[-1]) if _is_key(a) else a for a in args)


def main(folder: Path, *names: str) -> None:
    """Exports the models named."""
    export(folder, [with_seed(by_name(name)) for name in names])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
