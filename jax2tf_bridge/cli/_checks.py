"""`jax2tf-bridge verify` and `serve-check`: run a SavedModel, and compare the results."""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax2tf_bridge._utils import PlotLine, plot_latency
from jax2tf_bridge.cli._commands import (
    NOT_NEGATIVE,
    POSITIVE,
    Command,
    UsageError,
    UserCodeError,
    add_json,
    check_names,
    check_output,
    import_reference,
    print_json,
    read_example,
    read_exported_path,
    search_current_folder_first,
    split_assignment,
)
from jax2tf_bridge.cli._console import (
    Console,
    format_for_command_line,
    quiet_tensorflow,
    show_report,
)
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.saved_model import needs_x64, read_sidecar
from jax2tf_bridge.serve_checking import (
    DEFAULT_CALLERS,
    DEFAULT_SECONDS,
    MAX_SIZES,
    LoadOptions,
    run_measure_load,
    run_serve_check,
)
from jax2tf_bridge.storage import as_path

if TYPE_CHECKING:
    from jax2tf_bridge.verifying import Latency

_DEFAULT_ROUNDS = 20
"""Default number of calls that are measured at each size."""

_VERIFY = """\
Compares a SavedModel in TensorFlow with the JAX function that it came from: values and gradients,
at sizes drawn from its symbolic shapes; with --latency also how long calls take.
With --runtime, it compares the values of a model that was converted from the SavedModel.
With --locate, it names the first line of the function whose value differs.
Needs JAX and TensorFlow, and the runtime."""

_VERIFY_EXAMPLES = """\
exit code 1 if something differs by more than the tolerance

examples:
  jax2tf-bridge verify predict/1 --against model:predict
  jax2tf-bridge verify predict/1 --against model:predict --samples 20 --gradients 5
  jax2tf-bridge verify predict/1 --against model:predict --batch-sizes 1,4,16 --plot latency.svg
  jax2tf-bridge verify predict/1 --against model:predict --runtime litert --model model.tflite
  jax2tf-bridge verify predict/1 --against model:predict --locate"""

_SERVE_CHECK = """\
Loads and runs a SavedModel with another TensorFlow release, in an environment that it makes and
keeps, and compares the results with those of the TensorFlow that is installed here, if any.
Needs neither JAX nor TensorFlow here.
With --load, it serves the model instead, sends requests from several callers at once, and measures
the answers. That needs TensorFlow here; --tensorflow and --python name one that takes the place of
TensorFlow Serving."""

_SERVE_CHECK_EXAMPLES = """\
exit code 1 if the model does not load or run there, or gives other numbers; with --load, if a
request fails

examples:
  jax2tf-bridge serve-check predict/1 --tensorflow 2.17
  jax2tf-bridge serve-check predict/1 --python ~/serving/bin/python --json
  jax2tf-bridge serve-check predict/1 --load --callers 32 --sizes b=1..16 --plot latency.svg"""

_LOAD_OPTIONS = (
    "callers",
    "seconds",
    "sizes",
    "signature",
    "example",
    "protocol",
    "server",
    "plot",
)
"""Options that need --load."""


def _add_verify_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", type=read_exported_path, metavar="DIR", help="the SavedModel of save()"
    )
    parser.add_argument(
        "--against",
        required=True,
        metavar="module:function",
        help="the JAX function, imported from the current folder or an installed package; or the "
        "callable model, if the model was saved as the weights",
    )
    parser.add_argument(
        "--params-like",
        metavar="module:object",
        help="an object with the structure of the saved weights, or a function that makes one; by "
        "default the command looks for one beside the function",
    )
    parser.add_argument("--signature", metavar="NAME", help="by default serving_default")
    parser.add_argument(
        "--samples", type=POSITIVE, default=5, metavar="N", help="number of sizes (default 5)"
    )
    parser.add_argument(
        "--gradients",
        type=NOT_NEGATIVE,
        default=1,
        metavar="N",
        help="number of these sizes at which to compare gradients (default 1); they take most of "
        "the time",
    )
    parser.add_argument(
        "--seed", type=NOT_NEGATIVE, default=0, metavar="N", help="seed of the sizes and values"
    )
    parser.add_argument(
        "--tolerance",
        type=_read_tolerance,
        metavar="X",
        help="maximum difference of floats, relative to the largest number of their array, or to "
        "a tenth of the largest gradient if that is more; by default 1e-12 for float64, 1e-4 for "
        "float32, 1e-2 for float16, 6e-2 for bfloat16",
    )
    parser.add_argument(
        "--locate",
        action="store_true",
        help="if an output differs, find the first line of the function whose value differs",
    )
    parser.add_argument(
        "--runtime",
        choices=("tensorflow", "litert", "onnx", "openvino", "tfjs"),
        default="tensorflow",
        help="what runs the model (default tensorflow); all others compare values only",
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="PATH",
        help="the model that --runtime runs, converted from the SavedModel: a .tflite file for "
        "litert, an .onnx file for onnx, the folder of a graph model for tfjs; openvino takes an "
        ".xml or .onnx file, or by default the SavedModel",
    )
    parser.add_argument(
        "--latency", action="store_true", help="also measure how long calls take, which takes time"
    )
    parser.add_argument(
        "--batch-sizes",
        type=_read_sizes,
        metavar="N,N",
        help="sizes at which to measure latency; by default powers of 2 up to 128",
    )
    parser.add_argument(
        "--rounds",
        type=NOT_NEGATIVE,
        metavar="N",
        help="number of calls to measure at each size (default 20)",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="measure latency, and draw it over size"
    )
    add_json(parser, "print the results as JSON")


def _read_tolerance(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a finite number of at least 0. Got: {text}")
    return number


def _read_sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({POSITIVE(part) for part in text.split(",")}))


def _add_serve_check_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=read_exported_path, metavar="DIR", help="the SavedModel")
    parser.add_argument(
        "--tensorflow",
        metavar="RELEASE",
        help="the release, as 2.17 or 2.17.1; by default that of --python",
    )
    parser.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="an interpreter with TensorFlow to run it with; by default one in the cache, "
        "~/.cache/jax2tf-bridge, which is made by uv or pip when it is first needed",
    )
    add_json(parser, "print the results as JSON")
    load = parser.add_argument_group("options for --load")
    load.add_argument(
        "--load", action="store_true", help="serve the model, call it, and measure the answers"
    )
    load.add_argument(
        "--callers",
        type=POSITIVE,
        metavar="N",
        help="number of callers; each sends a request as soon as it has an answer (default 8)",
    )
    load.add_argument(
        "--seconds", type=float, metavar="T", help="time for which they call (default 10)"
    )
    load.add_argument(
        "--sizes",
        action="append",
        type=_read_load_sizes,
        metavar="NAME=N,N..N",
        help="sizes of the requests, as b=1,1,8 or b=1..32; a size that is repeated is sent more "
        "often. By default all sizes up to the largest bucket. Once per name",
    )
    load.add_argument("--signature", metavar="NAME", help="by default serving_default")
    load.add_argument(
        "--example",
        type=as_path,
        metavar="FILE",
        help="a .npz or .json file with values of inputs by name, in place of random ones",
    )
    load.add_argument(
        "--protocol",
        choices=("gRPC", "REST"),
        help="by default gRPC if grpcio is installed here, else REST",
    )
    load.add_argument(
        "--server",
        metavar="PATH",
        help="the path of TensorFlow Serving; by default that in TENSORFLOW_MODEL_SERVER, or on "
        "the PATH; without one, TensorFlow runs the model here",
    )
    load.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw the latencies over their percentiles"
    )


def _read_load_sizes(text: str) -> tuple[str, tuple[int, ...]]:
    """Reads NAME=N,N..N.

    >>> _read_load_sizes("b=1,1,6..8")
    ('b', (1, 1, 6, 7, 8))
    """
    try:
        name, values = split_assignment(text)
        ranges: list[tuple[int, int]] = []
        for part in values.split(","):
            first, dots, last = part.partition("..")
            ranges.append((int(first), int(last if dots else first) + 1))
    except ValueError:
        ranges = []
    count = sum(max(0, stop - start) for start, stop in ranges)
    if count == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=N,N..N, as b=1,4..8")
    if count > MAX_SIZES:
        raise argparse.ArgumentTypeError(
            f"{text!r} has {count} sizes; at most {MAX_SIZES} are possible"
        )
    return name, tuple(itertools.chain.from_iterable(itertools.starmap(range, ranges)))


def _verify(options: argparse.Namespace, console: Console) -> None:
    quiet_tensorflow(debug=options.debug, is_timed=_count_rounds(options) > 0)
    _check_plot(options)
    if not _count_rounds(options):
        _compile_quickly()
    with console.loading("JAX", "verify"):
        import jax2tf_bridge.loading  # noqa: F401
    import jax

    if not as_path(options.directory).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(options.directory))
    contents = read_sidecar(options.directory)
    if contents is not None and needs_x64(contents[1]):
        jax.config.update("jax_enable_x64", True)
    with console.loading("TensorFlow", "verify"):
        from jax2tf_bridge.verifying import check_runtime, choose_signature, verify
    if contents is not None:
        try:
            choose_signature(options.signature, list(contents[0].signatures))
            check_runtime(options.runtime, options.model, _count_rounds(options))
        except BridgeError as e:
            raise UsageError(format_for_command_line(e.args[0], options)) from e
    with search_current_folder_first():
        with console.step(f"importing {options.against}"):
            function = import_reference(options.against, "--against")
            if not callable(function):
                raise UsageError(
                    f"--against: {options.against} must be a function. Got: "
                    f"{type(function).__name__}"
                )
            params_like = _import_params_like(options)
        try:
            with console.step(f"comparing {options.directory} with {options.against}"):
                report = verify(
                    options.directory,
                    function,
                    signature=options.signature,
                    samples=options.samples,
                    gradients=options.gradients,
                    tolerance=options.tolerance,
                    seed=options.seed,
                    params_like=params_like,
                    rounds=_count_rounds(options),
                    batch_sizes=options.batch_sizes or (),
                    name=options.against,
                    locate=options.locate,
                    runtime=options.runtime,
                    model=options.model,
                )
        except (BridgeError, OSError):
            raise
        except (Exception, SystemExit) as e:
            if type(e).__module__.startswith("tensorflow"):
                raise
            raise UserCodeError(f"running {options.against} or {options.directory}", e) from e
    if options.plot is not None:
        title = f"{options.directory.absolute().name}: latency of {report.signature}"
        variable = report.latency_over or "size"
        plot = _plot_over_sizes(title, variable, report.latencies)
        options.plot.write_text(plot, encoding="utf-8")
    _show_report(report, options)


def _show_report(report: Any, options: argparse.Namespace) -> None:
    """Prints the report of a check, and raises if the check found a problem."""
    if options.json:
        print_json(report.as_json())
    else:
        show_report(str(report))
    if report.problem is not None:
        raise BridgeError(report.problem)


def _check_plot(options: argparse.Namespace) -> None:
    if options.plot is None:
        return
    check_output(options.plot, "--plot")
    if options.plot.suffix != ".svg":
        raise UsageError(
            f"--plot writes SVG only, so it cannot write {options.plot}. Name the file "
            f"{options.plot.with_suffix('.svg').name}"
        )


def _compile_quickly() -> None:
    """Makes XLA compile quickly; JAX and TensorFlow read the setting when they start."""
    if not sys.modules.keys().isdisjoint(("jax", "tensorflow")):
        return
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in ("--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"):
        if flag.partition("=")[0] not in flags:
            flags = f"{flags} {flag}".strip()
    os.environ["XLA_FLAGS"] = flags


def _count_rounds(options: argparse.Namespace) -> int:
    """Returns the number of calls to measure at each size: 0 without --latency."""
    measures = options.latency or options.batch_sizes is not None or options.plot is not None
    if options.rounds == 0 and measures:
        raise UsageError(
            "--rounds 0 measures nothing. Remove it, or remove --latency, --plot and --batch-sizes"
        )
    if options.rounds is not None:
        return int(options.rounds)
    return _DEFAULT_ROUNDS if measures else 0


def _import_params_like(options: argparse.Namespace) -> Any:
    if options.params_like is None:
        return None
    import jax

    params = import_reference(options.params_like, "--params-like")
    if callable(params) and jax.tree_util.all_leaves([params]):
        try:
            params = params()
        except (Exception, SystemExit) as e:
            raise UserCodeError(f"calling {options.params_like}", e) from e
    return params


def _plot_over_sizes(title: str, variable: str, points: Sequence[Latency]) -> str:
    places = [math.log2(point.size or 1) for point in points]
    lines = []
    for name, times in (
        ("JAX, jitted", [point.jax_ms for point in points]),
        ("SavedModel", [point.saved_model_ms for point in points]),
    ):
        line = list(zip(places, times, strict=True))
        lines.append(PlotLine(line, name, [(place, time, "") for place, time in line]))
    ticks = [(place, str(point.size or 1)) for place, point in zip(places, points, strict=True)]
    return plot_latency(title, lines, ticks, across=variable, up="milliseconds, median")


def _serve_check(options: argparse.Namespace, console: Console) -> None:
    if options.load:
        _measure_load(options, console)
        return
    needless = [f"--{name}" for name in _LOAD_OPTIONS if getattr(options, name) is not None]
    if needless:
        verb = "is" if len(needless) == 1 else "are"
        raise UsageError(f"{', '.join(needless)} {verb} for a load test: add --load")
    outcome = run_serve_check(options.directory, options.tensorflow, options.python, console.step)
    _show_report(outcome, options)


def _measure_load(options: argparse.Namespace, console: Console) -> None:
    _check_plot(options)
    sizes = options.sizes or []
    check_names("--sizes", [name for name, _ in sizes])
    try:
        load_options = LoadOptions(
            callers=options.callers or DEFAULT_CALLERS,
            seconds=DEFAULT_SECONDS if options.seconds is None else options.seconds,
            sizes=dict(sizes) or None,
            signature=options.signature,
            example=None if options.example is None else read_example(options.example),
            protocol=options.protocol,
            server=options.server,
            tensorflow=options.tensorflow,
            python=options.python,
        )
    except BridgeError as e:
        raise UsageError(format_for_command_line(e.args[0], options)) from e
    with console.loading("TensorFlow", "serve-check --load"), _without_onednn():
        import jax2tf_bridge.saving  # noqa: F401

        sys.modules["tensorflow"].constant(0)  # this reads the variable
    report = run_measure_load(options.directory, load_options, console.step)
    if options.plot is not None:
        options.plot.write_text(report.plot(), encoding="utf-8")
    _show_report(report, options)


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    """Starts TensorFlow without oneDNN, about which it prints a note; later processes use it."""
    name = "TF_ENABLE_ONEDNN_OPTS"
    old_value = os.environ.get(name)
    os.environ.setdefault(name, "0")
    try:
        yield
    finally:
        if old_value is None:
            del os.environ[name]


VERIFY = Command(
    "verify",
    "compare a SavedModel with its JAX function",
    _VERIFY,
    _VERIFY_EXAMPLES,
    _add_verify_options,
    _verify,
)
SERVE_CHECK = Command(
    "serve-check",
    "run a SavedModel in another TensorFlow, or under load",
    _SERVE_CHECK,
    _SERVE_CHECK_EXAMPLES,
    _add_serve_check_options,
    _serve_check,
)
