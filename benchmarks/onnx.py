"""Sixteen real models in ONNX Runtime on one thread: time of a call and size, against jax2onnx."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import io
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import _measure
from tests.models.export_models import named  # first: it chooses the backend of Keras

import jax  # isort: skip
import numpy as np
import onnxruntime

from jax2tf_bridge import Signature, save_onnx
from tests.models.comparing import compare
from tests.models.model import Built, Model
from tests.program_cases.reference import crossing

_ALTERNATIVE = "jax2onnx"
_INSTALL = (
    f"{_ALTERNATIVE} is not installed. To compare with it: pip install {_ALTERNATIVE}==0.17.1"
)
_MAX_ERROR_LENGTH = 80


def _find_version() -> str | None:
    try:
        return importlib.metadata.version(_ALTERNATIVE)
    except importlib.metadata.PackageNotFoundError:
        return None


def _write_model(model: Model, built: Built, path: Path) -> None:
    params = () if built.params is None else (built.params,)
    results = jax.eval_shape(built.function, *params, *built.example)
    names = [f"result_{i}" for i in range(len(jax.tree_util.tree_leaves(results)))]
    shapes = list(model.polymorphic_shapes)
    signature = Signature(
        built.function, args=built.example, polymorphic_shapes=shapes, output_names=names
    )
    save_onnx(path, signature, params=built.params, verify=False)


def _write_alternative(built: Built, path: Path) -> None:
    """Writes a model by jax2onnx, with the sizes of the example: most fail with open sizes."""
    convert = importlib.import_module(_ALTERNATIVE).to_onnx
    function = built.function
    if built.params is not None:
        weights = jax.tree_util.tree_map(_as_jax_array, built.params)
        function = functools.partial(built.function, weights)
    leaves, tree = jax.tree_util.tree_flatten(tuple(built.example))

    def of_leaves(*leaves: Any) -> Any:
        return function(*jax.tree_util.tree_unflatten(tree, leaves))

    with contextlib.redirect_stdout(io.StringIO()):
        model = convert(of_leaves, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves])
    path.write_bytes(model.SerializeToString())


def _as_jax_array(leaf: Any) -> Any:
    return jax.numpy.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


class _ModelCall:
    """A call of a model with the example."""

    def __init__(self, path: Path, built: Built) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        names = [each.name for each in self._session.get_inputs()]
        arrays = map(_as_input, jax.tree_util.tree_leaves(tuple(built.example)))
        self._feed = dict(zip(names, arrays, strict=True))

    def __call__(self) -> Any:
        return self._session.run(None, self._feed)


def _as_input(leaf: Any) -> Any:
    array = crossing(leaf)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def measure_model(model: Model, folder: Path, rounds: int, *, compares: bool) -> dict[str, Any]:
    """Measures a model; compares it with jax2onnx's, if that is installed."""
    built = model.build()
    ours, theirs = folder / f"{model.name}.onnx", folder / f"{model.name}.other.onnx"
    _write_model(model, built, ours)
    calls: dict[str, Any] = {"bridge": _ModelCall(ours, built)}
    error = "" if compares else "-"
    if compares:
        try:
            _write_alternative(built, theirs)
            calls[_ALTERNATIVE] = _ModelCall(theirs, built)
            calls[_ALTERNATIVE]()
        except Exception as e:  # jax2onnx raises errors of any type for what it lacks
            calls.pop(_ALTERNATIVE, None)
            error = f"fails: {type(e).__name__}: {e}".replace("\n", " ")[:_MAX_ERROR_LENGTH]
    if _ALTERNATIVE in calls:
        got, want = ([np.asarray(x) for x in call()] for call in calls.values())
        names = [str(i) for i in range(len(got))]
        differences = list(compare("", names, got, want, max(model.tolerance, 1e-3)))
        if differences:
            raise RuntimeError(f"{model.name}: {differences}")
    times = _measure.measure_interleaved(calls, rounds=rounds)
    sizes = {"bridge": ours.stat().st_size}
    if _ALTERNATIVE in calls:
        sizes[_ALTERNATIVE] = theirs.stat().st_size
    return {"model": model.name, "times": times, "sizes": sizes, "error": error}


def _make_row(measured: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    spreads = {who: _measure.Spread.of(times) for who, times in measured["times"].items()}
    texts = [_measure.seconds_text(each.median) for each in spreads.values()]
    sizes = [f"{size / 1e6:.3g} MB" for size in measured["sizes"].values()]
    row = [measured["model"], texts[0], sizes[0]]
    facts: dict[str, Any] = {"model": measured["model"], "seconds": spreads["bridge"]}
    facts["size"] = measured["sizes"]["bridge"]
    if measured["error"]:
        return [*row, measured["error"].replace("|", "/"), "", ""], facts
    ratio = _measure.compute_ratios(measured["times"], "bridge", _ALTERNATIVE)
    facts["ratio"] = ratio
    return [*row, texts[1], sizes[1], ratio.ratio_text()], facts


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=31)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="the models; all by default")
    options = parser.parse_args()
    version = _find_version()
    logging.disable(logging.WARNING)  # jax2onnx logs what it cannot import
    rows, measured = [], []
    with tempfile.TemporaryDirectory() as folder:
        for model in named(options.models):
            _measure.print_progress(model.name)
            compares = version is not None
            found = measure_model(model, Path(folder), options.rounds, compares=compares)
            row, facts = _make_row(found)
            rows.append(row)
            measured.append(facts)
            jax.clear_caches()
    other = _ALTERNATIVE if version is None else f"{_ALTERNATIVE} {version}"
    _measure.report(
        "Real models in ONNX Runtime",
        ["model", "call", "size", f"{other}: call", "size", f"x {_ALTERNATIVE}"],
        rows,
        measured,
        json_path=options.json,
        notes=[_INSTALL] if version is None else [f"onnxruntime {onnxruntime.__version__}."],
    )


if __name__ == "__main__":
    main()
