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

# A file of the bridge is on disk when it is written (fsync), one of JAX's need not be.  JAX takes
# bytes too, but deserialize is annotated with bytearray, into which what was read must be copied.
_SERIALIZE, _WRITE, _READ, _READ_ANNOTATED = (
    "serialize",
    "write a file",
    "read a file (JAX: as bytes)",
    "read a file (JAX: as bytearray)",
)
_STEPS = (_SERIALIZE, _WRITE, _READ, _READ_ANNOTATED)
_SIDES = ("bridge", "jax.export")


def _small() -> Any:
    """A model with its gradient, of which the modules take 10 kB."""
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


def _large() -> Any:
    """A function of which the module holds 50 MB of weights."""
    import jax
    import numpy as np

    weights = np.random.default_rng(0).standard_normal(50 * 2**18).astype(np.float32)
    x = jax.ShapeDtypeStruct(weights.shape, np.float32)
    return jax.export.export(jax.jit(lambda x: x * weights))(x)


_MODELS: dict[str, tuple[Callable[[], Any], int]] = {"10 kB": (_small, 1), "50 MB": (_large, 0)}


def _steps(side: str, folder: Path, orders: int) -> dict[str, Callable[[], Any]]:
    """The steps of one side, in this process, on the files that are in the folder."""
    own, other = folder / "model.jaxfn", folder / "model.bin"
    if side == "bridge":
        from jax2tf_bridge.serialization import read_function, serialize, write_function

        portable = read_function(own)
        serialize(
            replace(portable, module=replace(portable.module, data=b""))
        )  # imports what writing needs
        read = functools.partial(read_function, own)
        return {
            _SERIALIZE: lambda: serialize(portable),
            _WRITE: lambda: write_function(folder / "written.jaxfn", portable),
            _READ: read,
            _READ_ANNOTATED: read,
        }
    from jax import export

    # A VJP that was read is not traced again when it is written.
    exported = export.deserialize(bytearray(other.read_bytes()))
    bytes_are_taken: Any = export.deserialize
    return {
        _SERIALIZE: lambda: exported.serialize(vjp_order=orders),
        _WRITE: lambda: (folder / "written.bin").write_bytes(exported.serialize(vjp_order=orders)),
        _READ: lambda: bytes_are_taken(other.read_bytes()),
        _READ_ANNOTATED: lambda: export.deserialize(bytearray(other.read_bytes())),
    }


def _memory(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field}")


def measure_here(side: str, step: str, folder: Path, orders: int) -> int:
    """The peak of memory during a step, above what the process had before."""
    call = _steps(side, folder, orders)[step]
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _memory("VmRSS")
    kept = call()
    peak = _memory("VmHWM") - before
    del kept
    return peak


def _peak(side: str, step: str, folder: Path, orders: int) -> int | None:
    """The same in a fresh process; None where the system does not tell."""
    arguments = [side, step, str(folder), str(orders)]
    command = [sys.executable, "-m", "benchmarks.files", "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    return int(json.loads(done.stdout.splitlines()[-1]))


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.1f} MB"


def _model(
    name: str, make: Callable[[], Any], orders: int, rounds: int, folder: Path
) -> list[dict[str, Any]]:
    from jax2tf_bridge.serialization import deserialize, read_function, write_function

    exported = make()
    data = bytes(exported.serialize(vjp_order=orders))
    (folder / "model.bin").write_bytes(data)
    # The same modules in both files.
    portable = deserialize(data)
    write_function(folder / "model.jaxfn", portable, vjp_order=orders)
    found = read_function(folder / "model.jaxfn")
    assert found.module == exported.mlir_module_serialized
    assert replace(found, gradient=portable.gradient).in_avals == portable.in_avals
    sides = {side: _steps(side, folder, orders) for side in _SIDES}
    rows = []
    for step in _STEPS:
        _measure.progress(f"{name}, {step}")
        times = _measure.interleaved(
            {side: sides[side][step] for side in _SIDES}, rounds=rounds, seconds_a_turn=0.05
        )
        row: dict[str, Any] = {"model": name, "step": step, "VJPs": orders}
        for side in _SIDES:
            row[f"{side}, s"] = _measure.Spread.of(times[side])
            row[f"{side}, memory"] = _peak(side, step, folder, orders)
        row["ratio"] = _measure.ratios(times, *_SIDES)
        sizes = [(folder / file).stat().st_size for file in ("model.jaxfn", "model.bin")]
        rows.append({**row, **dict(zip([f"{s}, bytes" for s in _SIDES], sizes, strict=True))})
    return rows


def main() -> None:
    parser = _measure.parser(__doc__, rounds=15)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        side, step, folder, orders = options.child
        print(json.dumps(measure_here(side, step, Path(folder), int(orders))))
        return
    measured = []
    for name, (make, orders) in _MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            measured += _model(name, make, orders, options.rounds, Path(folder))
    rows = []
    for row in measured:
        texts = [row["model"], row["step"]]
        for side in _SIDES:
            texts.append(_measure.seconds_text(row[f"{side}, s"].median))
        texts.append(row["ratio"].ratio_text())
        for side in _SIDES:
            texts.append(_megabytes(row[f"{side}, memory"]))
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
