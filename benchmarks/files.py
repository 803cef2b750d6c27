"""Writing and reading .jaxfn files against jax.export's: time, size and peak memory."""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import _measure

# The bridge calls fsync when it writes a file; JAX does not. jax.export.deserialize accepts bytes,
# but its annotation is bytearray, which requires a copy of the data.
_SERIALIZE, _WRITE, _READ, _READ_ANNOTATED = (
    "serialize",
    "write a file",
    "read a file (JAX: as bytes)",
    "read a file (JAX: as bytearray)",
)
_STEPS = (_SERIALIZE, _WRITE, _READ, _READ_ANNOTATED)
_SIDES = ("bridge", "jax.export")


def _export_small() -> Any:
    """Exports a model whose modules, with the gradient, have 10 kB."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def apply(layers: Any, x: jax.Array) -> jax.Array:
        for layer in layers:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x

    (batch,) = jax.export.symbolic_shape("b")
    layer = {"w": np.zeros((16, 16), np.float32), "b": np.zeros(16, np.float32)}
    x = jax.ShapeDtypeStruct((batch, 16), np.float32)
    return jax.export.export(jax.jit(apply))([layer] * 6, x)


def _export_large() -> Any:
    """Exports a function whose module contains 50 MB of weights."""
    import jax
    import numpy as np

    weights = np.random.default_rng(0).standard_normal(50 * 2**18).astype(np.float32)
    x = jax.ShapeDtypeStruct(weights.shape, np.float32)
    return jax.export.export(jax.jit(lambda x: x * weights))(x)


_MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "10 kB": (_export_small, 1),
    "50 MB": (_export_large, 0),
}


def _make_steps(side: str, folder: Path, orders: int) -> dict[str, Callable[[], Any]]:
    """Makes the steps of one side; they use the files in the folder."""
    jaxfn_path, jax_path = folder / "model.jaxfn", folder / "model.bin"
    if side == "bridge":
        from jax2tf_bridge.serialization import read_function, serialize, write_function

        portable = read_function(jaxfn_path)
        serialize(
            replace(portable, module=replace(portable.module, data=b""))
        )  # imports what writing needs
        read = functools.partial(read_function, jaxfn_path)
        return {
            _SERIALIZE: lambda: serialize(portable),
            _WRITE: lambda: write_function(folder / "written.jaxfn", portable),
            _READ: read,
            _READ_ANNOTATED: read,
        }
    from jax import export

    # serialize does not trace a VJP again if it was deserialized.
    exported = export.deserialize(bytearray(jax_path.read_bytes()))
    deserialize_bytes: Any = export.deserialize
    return {
        _SERIALIZE: lambda: exported.serialize(vjp_order=orders),
        _WRITE: lambda: (folder / "written.bin").write_bytes(exported.serialize(vjp_order=orders)),
        _READ: lambda: deserialize_bytes(jax_path.read_bytes()),
        _READ_ANNOTATED: lambda: export.deserialize(bytearray(jax_path.read_bytes())),
    }


def _read_memory(field: str) -> int:
    """Reads VmRSS or VmHWM of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field}")


def measure_here(side: str, step: str, folder: Path, orders: int) -> int:
    """Measures the peak memory of a step, above the memory before it."""
    call = _make_steps(side, folder, orders)[step]
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _read_memory("VmRSS")
    result = call()
    peak = _read_memory("VmHWM") - before
    del result
    return peak


def _measure_peak(side: str, step: str, folder: Path, orders: int) -> int | None:
    """Measures the peak memory of a step in a fresh process; None if the system lacks support."""
    arguments = [side, step, str(folder), str(orders)]
    command = [sys.executable, "-m", "benchmarks.files", "--child", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        return None
    return int(json.loads(process.stdout.splitlines()[-1]))


def _format_megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.1f} MB"


def _measure_model(
    name: str, make: Callable[[], Any], orders: int, rounds: int, folder: Path
) -> list[dict[str, Any]]:
    from jax2tf_bridge.serialization import deserialize, read_function, write_function

    exported = make()
    data = bytes(exported.serialize(vjp_order=orders))
    (folder / "model.bin").write_bytes(data)
    # Both files contain the same modules.
    portable = deserialize(data)
    write_function(folder / "model.jaxfn", portable, vjp_order=orders)
    function = read_function(folder / "model.jaxfn")
    assert function.module == exported.mlir_module_serialized
    assert replace(function, gradient=portable.gradient).in_avals == portable.in_avals
    sides = {side: _make_steps(side, folder, orders) for side in _SIDES}
    rows = []
    for step in _STEPS:
        _measure.print_progress(f"{name}, {step}")
        times = _measure.measure_interleaved(
            {side: sides[side][step] for side in _SIDES}, rounds=rounds, seconds_a_turn=0.05
        )
        row: dict[str, Any] = {"model": name, "step": step, "VJPs": orders}
        for side in _SIDES:
            row[f"{side}, s"] = _measure.Spread.of(times[side])
            row[f"{side}, memory"] = _measure_peak(side, step, folder, orders)
        row["ratio"] = _measure.compute_ratios(times, *_SIDES)
        sizes = [(folder / file).stat().st_size for file in ("model.jaxfn", "model.bin")]
        rows.append({**row, **dict(zip([f"{s}, bytes" for s in _SIDES], sizes, strict=True))})
    return rows


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=15)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        side, step, folder, orders = options.child
        print(json.dumps(measure_here(side, step, Path(folder), int(orders))))
        return
    measured = []
    for name, (make, orders) in _MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            measured += _measure_model(name, make, orders, options.rounds, Path(folder))
    rows = []
    for row in measured:
        texts = [row["model"], row["step"]]
        for side in _SIDES:
            texts.append(_measure.seconds_text(row[f"{side}, s"].median))
        texts.append(row["ratio"].ratio_text())
        for side in _SIDES:
            texts.append(_format_megabytes(row[f"{side}, memory"]))
        rows.append(texts)
    sizes = {
        row["model"]: " and ".join(f"{row[f'{side}, bytes']:,}" for side in _SIDES)
        for row in measured
    }
    _measure.report(
        "Files",
        ["modules", "step", *_SIDES, "x", *(f"memory, {side}" for side in _SIDES)],
        rows,
        measured,
        json_path=options.json,
        notes=[f"Bytes of the files of {name}: {text}." for name, text in sizes.items()],
    )


if __name__ == "__main__":
    main()
