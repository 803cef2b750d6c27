"""Converts the real models' SavedModels to Core ML, at the sizes of their first call.

    python -m tests.models.export_for_converters EXPORTED
    python -m tests.models.convert_to_coreml EXPORTED [MODEL ...]

The second command needs coremltools and TensorFlow, not JAX. It prints a line for each model. Linux
cannot run Core ML, so only coremltools' checks of the program are done.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.consumers.exchange import read_arrays


def convert(folder: Path) -> None:
    """Converts one model, and writes and reads its program.

    Raises:
      Exception: coremltools cannot convert it.
    """
    ct: Any = importlib.import_module("coremltools")
    facts = json.loads((folder / "model.json").read_text())
    arrays = read_arrays(folder / "call-0.npz")["inputs"]
    inputs = [
        ct.TensorType(
            name=name,
            shape=array.shape or (1,),
            dtype=np.float32 if array.dtype.kind == "f" else np.int32,
        )
        for name, array in zip(facts["inputs"], arrays, strict=True)
    ]
    program = ct.convert(
        str(folder / "model"),
        source="tensorflow",
        convert_to="mlprogram",
        inputs=inputs,
        compute_precision=ct.precision.FLOAT32,
        minimum_deployment_target=ct.target.iOS17,
        skip_model_load=True,
    )
    with tempfile.TemporaryDirectory() as temporary:
        package = f"{temporary}/model.mlpackage"
        program.save(package)
        ct.models.MLModel(package, skip_model_load=True).get_spec()


def main(exported: Path, *names: str) -> None:
    """Converts the models named, or all that were written."""
    for name in names or sorted(path.parent.name for path in exported.glob("*/model.json")):
        try:
            convert(exported / name)
        except Exception as error:
            text = str(error).partition("\n")[0]
            print(f"{name}: {type(error).__name__}: {text}", flush=True)
        else:
            print(f"{name}: converted", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
