"""`jax2tf-bridge serve-check --load`: its requests, its report, and a load without a server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Padding, Processing, Signature, measure_load, save
from jax2tf_bridge.errors import BridgeError, ShapeError
from jax2tf_bridge.saved_model import SIDECAR, read_saved_model
from jax2tf_bridge.saving import read_instructions
from jax2tf_bridge.serve_checking import LoadOptions

# Private: what a report says of measurements that no machine gives twice, and a caller that ends.
from jax2tf_bridge.serve_checking.load._measure import _end_process, _run_callers
from jax2tf_bridge.serve_checking.load._report import (
    LoadReport,
    MeasuredAnswers,
    MeasuredRuntime,
    make_report,
    plot_percentiles,
)
from jax2tf_bridge.serve_checking.load._requests import LoadPlan, LoadRequest, plan_load
from jax2tf_bridge.serve_checking.load._servers import BatchCount, ServerMetrics, parse_metrics
from tests.cli.conftest import Ok, Run
from tests.saving.text_classifier import PARAMS as TEXT_PARAMS
from tests.saving.text_classifier import signature as text_signature

TABLE = np.arange(400, dtype=np.float32).reshape(50, 8)


def doubled(x: Any) -> Any:
    return 2 * x


def pooled(ids: Any, mask: Any) -> Any:
    return (jnp.asarray(TABLE)[ids] * mask[..., None]).sum(1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saves models with buckets, without them, with lengths, and with strings."""
    folder = tmp_path_factory.mktemp("models")
    x, ids = np.ones((2, 3), np.float32), np.ones((2, 4), np.int32)
    rows = Signature(doubled, args=[x], polymorphic_shapes="(b, 3)")
    save(folder / "rows" / "1", rows, buckets={"b": [1, 8]}, vjp_order=0)
    even = Signature(
        lambda x: x.reshape(x.shape[0] // 2, 2, 3),
        args=[x],
        polymorphic_shapes="(b, 3)",
        polymorphic_constraints=["mod(b, 2) == 0"],
    )
    save(folder / "even", even, vjp_order=0)
    text = Signature(
        pooled,
        args=[ids, ids],
        polymorphic_shapes="(b, n)",
        padding=Padding(mask="mask", pad_values={"ids": 1}),
    )
    save(folder / "text", text, buckets={"b": [2], "n": [4, 8]}, vjp_order=0)
    strings = Signature(
        doubled,
        args=[np.ones(2, np.float32)],
        polymorphic_shapes="(b,)",
        processing=Processing(
            preprocess=lambda text: tf.strings.to_number(text),
            inputs={"text": tf.TensorSpec([None], tf.string)},
        ),
    )
    save(folder / "strings", strings, vjp_order=0)
    return folder


def plan(folder: Path, sizes: Any = None, example: Any = None, signature: str | None = None) -> Any:
    return plan_load(read_saved_model(folder), signature, sizes, example, 0)


def test_requests_have_all_sizes_up_to_the_largest_bucket(models: Path) -> None:
    made = plan(models / "rows" / "1")
    assert (made.signature, made.batch, made.buckets) == ("serving_default", "b", {"b": (1, 8)})
    assert [request.sizes for request in made.requests] == [{"b": n} for n in range(1, 9)]
    assert [request.inputs["x"].shape for request in made.requests] == [(n, 3) for n in range(1, 9)]
    assert made.requests[0].inputs["x"].dtype == np.float32


def test_requests_have_the_declared_sizes_as_often_as_they_occur(models: Path) -> None:
    made = plan(models / "rows" / "1", {"b": [20, 1, 1]})
    assert [request.sizes["b"] for request in made.requests] == [1, 1, 20]


def test_requests_of_a_model_without_buckets(models: Path) -> None:
    made = plan(models / "even")
    assert [request.sizes["b"] for request in made.requests] == [*range(2, 33, 2)]
    assert made.buckets == {}


def test_requests_of_several_sizes(models: Path) -> None:
    made = plan(models / "text", {"n": [3, 8]})
    assert [tuple(request.sizes.values()) for request in made.requests] == [
        *((3, 1), (3, 2), (8, 1), (8, 2))
    ]
    # Buckets fill the mask, and no id is padding.
    assert [*made.requests[0].inputs] == ["ids"]
    assert all((request.inputs["ids"] != 1).all() for request in made.requests)


def test_many_sizes_are_thinned_out(models: Path) -> None:
    sizes = [
        request.sizes["b"]
        for request in plan(models / "rows" / "1", {"b": range(1, 1001)}).requests
    ]
    assert (len(sizes), sizes[0], sizes[-1]) == (256, 1, 1000)
    assert len(plan(models / "text", {"b": range(1, 101), "n": range(1, 101)}).requests) == 256


def test_requests_repeat_an_example(models: Path) -> None:
    example = {"x": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]}
    (request,) = plan(models / "rows" / "1", {"b": [3]}, example).requests
    assert request.inputs["x"].tolist() == [[1, 2, 3], [4, 5, 6], [1, 2, 3]]


def test_inputs_that_rest_does_not_take() -> None:
    for dtype in (np.float16, np.complex64, np.uint16):
        with pytest.raises(BridgeError) as caught:
            LoadRequest({}, {"x": np.ones(1, dtype)}).encode_json("f")
        assert str(caught.value) == (
            f"x is {np.dtype(dtype)}, which TensorFlow Serving's REST API does not take. Use gRPC: "
            "pip install grpcio, and pass protocol='gRPC'."
        )
    encoded = LoadRequest({}, {"x": np.array([b"\xff", "é"], object)}).encode_json("f")
    assert json.loads(encoded)["inputs"] == {"x": [{"b64": "/w=="}, "é"]}


def test_inputs_of_the_users_own_functions_come_from_examples(models: Path) -> None:
    (request,) = plan(models / "strings", None, {"text": ["1", "2"]}).requests
    assert json.loads(request.encode_json("f")) == {
        "signature_name": "f",
        "inputs": {"text": ["1", "2"]},
    }
    with pytest.raises(BridgeError) as caught:
        plan(models / "strings")
    assert str(caught.value) == (
        f"{models / 'strings'} does not say which values serving_default takes, and has no "
        "warm-up requests for it. Pass values of its inputs with example."
    )
    made = plan(models / "strings", {"b": [3, 1]}, {"text": ["1", "2"]})
    assert [list(request.inputs["text"]) for request in made.requests] == [["1"], ["1", "2", "1"]]
    assert ([request.sizes for request in made.requests], made.batch) == ([{"b": 1}, {"b": 3}], "b")
    with pytest.raises(ShapeError, match="the inputs have no size 'n'"):
        plan(models / "strings", {"n": [1]}, {"text": ["1"]})
    with pytest.raises(ShapeError, match=r"example: it has no rows to repeat\. Pass"):
        plan(models / "strings", {"b": [1]}, {"text": []})


def test_texts_of_warm_up_requests_are_repeated(tmp_path: Path) -> None:
    save(
        tmp_path / "m",
        text_signature(example={"text": ["good film"]}),
        params=TEXT_PARAMS,
        buckets={"b": [1, 4], "l": [2]},
        vjp_order=0,
    )
    made = plan(tmp_path / "m", {"b": [4, 2]})
    assert made.buckets == {"b": (1, 4)}
    assert [len(request.inputs["text"]) for request in made.requests] == [2, 4]
    assert {text for request in made.requests for text in request.inputs["text"]} == {b"good film"}


def test_a_model_without_a_sidecar_gets_its_warm_up_requests(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "rows" / "1", tmp_path / "1")
    (tmp_path / "1" / SIDECAR).unlink()
    with pytest.raises(ShapeError, match="variables of its inputs are not known, so requests can"):
        plan(tmp_path / "1", {"b": [1]})
    made = plan(tmp_path / "1")
    assert [request.inputs["x"].shape for request in made.requests] == [(1, 3), (8, 3)]
    assert (made.buckets, made.batch) == ({}, None)
    instructions = read_instructions(read_saved_model(tmp_path / "1"))
    assert instructions.batching is None
    assert "--xla_cpu_compilation_enabled=true" in instructions.command


@pytest.mark.parametrize(
    ("model", "sizes", "example", "signature", "text"),
    [
        ("rows/1", {"c": [1]}, None, None, "sizes: the inputs have no size 'c'. There are: b."),
        ("rows/1", {"b": [0]}, None, None, "sizes: b: expected integers of at least 1. Got: 0"),
        ("rows/1", {"b": [2.5]}, None, None, "sizes: b: expected integers of at least 1. Got: 2.5"),
        ("rows/1", {"b": range(1, 10**12)}, None, None, "sizes: b: expected at most 100000 sizes"),
        (
            "rows/1",
            {"b": [1, 10**9]},
            None,
            None,
            "sizes: a request with b=1000000000 would have 12.0 GB, and TensorFlow takes at "
            "most 2.1 GB",
        ),
        ("rows/1", {"b": []}, None, None, "sizes: b: expected integers of at least 1. Got: none"),
        ("even", {"b": [2, 3]}, None, None, "sizes: b=3 does not satisfy mod(b, 2) == 0."),
        (
            *("rows/1", None, {"y": [[1]]}, None),
            "example: serving_default has no input 'y'. There are: x.",
        ),
        (
            *("rows/1", None, {"x": [[1]]}, None),
            "example: x of serving_default is float32[?,3]. Got the shape [1,1]",
        ),
        (
            *("rows/1", None, {"x": [[1, 2, 3], [4]]}, None),
            "example: x of serving_default is float32[?,3]. Got [[1, 2, 3], [4]]",
        ),
        (
            *("rows/1", None, {"x": [["a", "b", "c"]]}, None),
            "example: x of serving_default is float32[?,3]. Got [['a', 'b', 'c']]",
        ),
        (
            "rows/1",
            None,
            None,
            "serve",
            "has no signature 'serve'. There are: serving_default.",
        ),
    ],
)
def test_requests_that_do_not_fit(
    model: str, sizes: Any, example: Any, signature: str | None, text: str, models: Path
) -> None:
    with pytest.raises(BridgeError) as caught:
        plan(models / model, sizes, example, signature)
    assert str(caught.value).removeprefix(f"{models / model} ") == text


METRICS = """\
# TYPE :tensorflow:core:xla_compilations counter
:tensorflow:core:xla_compilations{} 4
:tensorflow:core:persistent_cache_load_count{} 1
# TYPE :tensorflow:core:xla_compilation_time_usecs counter
:tensorflow:core:xla_compilation_time_usecs{} 974374
:tensorflow:serving:batching_session:padding_size_bucket{execution_batch_size="8",le="1"} 1
:tensorflow:serving:batching_session:padding_size_sum{execution_batch_size="32"} 7.5e+01
:tensorflow:serving:batching_session:padding_size_count{execution_batch_size="32"} 10
:tensorflow:serving:batching_session:padding_size_sum{execution_batch_size="8"} 5
:tensorflow:serving:batching_session:padding_size_count{execution_batch_size="8"} 4
"""
"""Some lines of the metrics of TensorFlow Serving 2.19."""


def test_metrics_of_a_server() -> None:
    metrics = parse_metrics(METRICS)
    assert metrics == ServerMetrics(3, 0.974374, 1, (BatchCount(8, 4, 5), BatchCount(32, 10, 75)))
    earlier = ServerMetrics(2, 0.5, 1, (BatchCount(8, 4, 5), BatchCount(32, 1, 0)))
    assert metrics.since(earlier).batches == (BatchCount(32, 9, 75),)
    assert (metrics.since(earlier).compiles, metrics.since(earlier).programs_read) == (1, 0)
    assert parse_metrics("") == ServerMetrics(0, 0.0)


def make(
    buckets: dict[str, tuple[int, ...]],
    sizes: list[int],
    milliseconds: list[float],
    **changes: Any,
) -> LoadReport:
    """Makes a report of a request of each size, called one after another."""
    requests = tuple(LoadRequest({"b": size}, {}) for size in sizes)
    seconds = np.array(milliseconds) / 1e3
    begins = np.cumsum([0, *seconds[:-1]])
    failures = changes.pop("failures", {})
    answers = MeasuredAnswers(np.arange(len(seconds)).astype(float), begins, seconds, failures)
    runtime = MeasuredRuntime(
        **{
            "name": "TensorFlow Serving",
            "program": "/bin/server",
            "protocol": "gRPC",
            "at_load": ServerMetrics(2, 0.5),
            "metrics": ServerMetrics(0, 0.0),
            "peak_bytes": 384_000_000,
            **changes,
        }
    )
    load = LoadPlan("serving_default", requests, buckets, "b")
    return make_report("rows/1", load, 4, runtime, answers)


def test_the_text_of_a_report() -> None:
    report = make({"b": (1, 8)}, [1, 2, 4, 8], [1.0, 2.0, 2.0, 5.0])
    assert str(report) == (
        "rows/1: serving_default in TensorFlow Serving, called by gRPC\n"
        "(/bin/server)\n"
        "\n"
        "load        4 callers for 0.0 s, b=1 to 8\n"
        "requests    4 answered, 0 failed\n"
        "throughput  400 requests per second\n"
        "latency     p50 2 ms, p90 4.1 ms, p99 4.91 ms, longest 5 ms\n"
        "compiles    2 while loading, 0 during the load\n"
        "memory      384.0 MB at the peak\n"
        "\n"
        "  bucket  requests  padding   p50      p99\n"
        "  b=1            1      0 %  1 ms     1 ms\n"
        "  b=8            3     42 %  2 ms  4.94 ms\n"
        "  all            4     40 %\n"
        "\n"
        "Better buckets for requests of these sizes: --buckets b=2,8\n"
        "With them, 25 % of the computed elements would be padding instead of 40 %."
    )
    assert report.ok
    assert json.loads(json.dumps(report.as_json()))["by_bucket"][1] == {
        "bucket": {"b": 8},
        "requests": 3,
        "padding": pytest.approx(10 / 24),
        "p50_ms": pytest.approx(2),
        "p99_ms": pytest.approx(4.94),
    }


def test_the_text_of_a_report_on_a_server_that_joins_requests() -> None:
    batches = (BatchCount(1, 2, 0), BatchCount(8, 1, 2))
    metrics = ServerMetrics(3, 1.25, 2, batches)
    text = str(make({"b": (1, 8)}, [1, 8], [1, 1], metrics=metrics, joins_requests=True))
    assert text.endswith(
        "compiles    2 while loading, 3 during the load, which took 1.2 s\n"
        "            2 programs were read from the compile cache\n"
        "memory      384.0 MB at the peak\n"
        "\n"
        "The server joined requests to these batches:\n"
        "  rows  batches  padding\n"
        "  1           2      0 %\n"
        "  8           1     25 %\n"
        "  all         3     20 %"
    )


def test_a_report_without_buckets_suggests_some() -> None:
    text = str(make({}, [1, 2, 30], [1, 1, 1], protocol=None, name="TensorFlow 2.21.0"))
    assert text.startswith(
        "rows/1: serving_default in TensorFlow 2.21.0, called in a session, no server\n"
    )
    assert text.endswith(
        "The signature has no buckets, so XLA compiles each size. For these sizes: "
        "--buckets b=1,2,30\n"
        "With them, 0 % of the computed elements would be padding."
    )


def test_sizes_above_the_largest_bucket_are_shown_apart() -> None:
    report = make({"b": (8,)}, [4, 40], [1, 3])
    assert report.padding is None
    lines = str(report).splitlines()
    assert lines[-6:-3] == [
        "  b=8              1     50 %  1 ms  1 ms",
        "  b=larger         1        -  3 ms  3 ms",
        "  all              2        -",
    ]
    assert lines[-2:] == [
        "Better buckets for requests of these sizes: --buckets b=40",
        "With them, 45 % of the computed elements would be padding.",
    ]


def test_failed_requests_are_counted_and_shown() -> None:
    failures = {"INVALID_ARGUMENT: too large": 3, "UNAVAILABLE: gone": 1}
    report = make({"b": (8,)}, [4], [1], failures=failures)
    assert not report.ok
    assert report.problem == "rows/1: 4 of 5 requests failed: INVALID_ARGUMENT: too large"
    assert (
        "requests    1 answered, 4 failed\n"
        "            3 failed: INVALID_ARGUMENT: too large\n"
        "            1 failed: UNAVAILABLE: gone\n"
    ) in str(report)
    nothing = make({"b": (8,)}, [4], [], failures={"gone": 1})
    assert "requests    0 answered, 1 failed" in str(nothing)
    assert nothing.as_json()["p99_ms"] is None
    assert ET.fromstring(nothing.plot()) is not None
    assert make({"b": (8,)}, [4], []).problem == "rows/1: no request was answered in time"


def test_a_plot_shows_percentiles() -> None:
    root = ET.fromstring(plot_percentiles("a < b", "c & d", np.linspace(1, 90, 1000)))
    name = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{name}text")]
    assert texts[:2] == ["a < b", "c & d"]
    assert {"0 %", "50 %", "90 %", "99 %", "99.9 %"} <= {*texts}
    assert "99.99 %" not in texts  # one request of a thousand is the slowest
    assert {"45.5 ms", "81.1 ms", "89.1 ms"} <= {*texts}
    assert {"latency in milliseconds", "1", "100"} <= {*texts}
    (line,) = root.iter(f"{name}polyline")
    places = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert places == sorted(places, key=lambda place: (place[0], -place[1]))
    assert all(0 <= x <= 720 and 0 <= y <= 420 for x, y in places)
    same = ET.fromstring(plot_percentiles("one", "", np.array([2.0])))
    assert len([*same.iter(f"{name}polyline")]) == 1


@pytest.mark.slow
def test_a_load_in_a_session(ok: Ok, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORFLOW_MODEL_SERVER", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    words = ["--load", "--seconds", "0.3", "--callers", "3", "--sizes", "b=1,5..6"]
    printed = ok("serve-check", models / "rows" / "1", *words, "--json", "--plot", "latency.svg")
    facts = json.loads(printed)
    assert facts["runtime"] == f"TensorFlow {tf.__version__}"
    assert (facts["protocol"], facts["callers"], facts["failures"]) == (None, 3, {})
    # A warm-up request for each bucket.
    assert (facts["compiles_at_load"], facts["compiles"]) == (2, 0)
    assert [each["bucket"]["b"] for each in facts["by_bucket"]] == [1, 8]
    assert facts["requests"] == sum(each["requests"] for each in facts["by_bucket"]) > 3
    assert facts["padding"] == pytest.approx(1 - 12 / 17)
    assert facts["suggested_buckets"] == {"b": [1, 6]}
    assert 0 < facts["p50_ms"] <= facts["p99_ms"] <= facts["max_ms"]
    assert 0.3 <= facts["seconds"] < 30
    assert facts["peak_bytes"] > 10**8
    assert (
        f"{facts['requests']:,} answered requests, TensorFlow 2." in Path("latency.svg").read_text()
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--callers", "2", "--plot", "a.svg"],
            "--callers, --plot are for a load test: add --load",
        ),
        (["--load", "--sizes", "b=1", "--sizes", "b=2"], "--sizes: b is given twice"),
        (["--load", "--plot", "a.png"], "--plot writes SVG only, so it cannot write a.png. Name"),
        (
            ["--load", "--sizes", "b=1..1000000000"],
            "argument --sizes: 'b=1..1000000000' has 1000000000 sizes; at most 100000 are possible",
        ),
        (
            ["--load", "--sizes", "b=1...3"],
            "argument --sizes: 'b=1...3' is not of the form NAME=N,N..N, as b=1,4..8",
        ),
        (
            ["--load", "--seconds", "0"],
            "--seconds: expected a finite number of more than 0 seconds. Got: 0.0",
        ),
        (["--load", "--seconds", "x"], "argument --seconds: expected a number. Got: 'x'"),
        (
            ["--load", "--protocol", "REST", "--python", "python3"],
            "--protocol is for TensorFlow Serving, and --python runs the model without it. Remove "
            "one of the two.",
        ),
    ],
)
def test_options_that_do_not_fit(words: list[str], text: str, run: Run, models: Path) -> None:
    ended = run("serve-check", models / "rows" / "1", *words)
    assert ended.code == 2
    assert ended.error.startswith(text)


def test_servers_that_do_not_start(run: Run, models: Path) -> None:
    words = ["serve-check", models / "rows" / "1", "--load", "--server"]
    ended = run(*words, "/missing/server")
    assert (ended.code, ended.error) == (
        1,
        "/missing/server cannot be started: No such file or directory.",
    )
    failing = Path("server")
    failing.write_text("#!/bin/sh\necho no AVX\nexit 3\n")
    failing.chmod(0o755)
    with pytest.raises(BridgeError) as caught:
        measure_load(models / "rows" / "1", server=failing.absolute())
    assert str(caught.value) == (
        f"{failing.absolute()} ended with 3 before it had loaded the model: no AVX"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"callers": 0}, "callers: expected an integer from 1 to 10000. Got: 0"),
        ({"callers": 10**9}, "callers: expected an integer from 1 to 10000. Got: 1000000000"),
        ({"callers": "4"}, "callers: expected an integer from 1 to 10000. Got: '4'"),
        ({"callers": 2.5}, "callers: expected an integer from 1 to 10000. Got: 2.5"),
        ({"seconds": np.inf}, "seconds: expected a finite number of more than 0 seconds. Got: inf"),
        ({"seconds": "1"}, "seconds: expected a finite number of more than 0 seconds. Got: '1'"),
        ({"protocol": "grpc"}, "protocol: expected gRPC or REST. Got: 'grpc'"),
        ({"signature": 3}, "signature: expected a name. Got: 3"),
        (
            {"example": [[1]]},
            "example: expected values by name, or a list of such mappings. Got: [[1]]",
        ),
        (
            {"example": "x.npz"},
            "example: expected values by name, or a list of such mappings. Got: 'x.npz'",
        ),
        ({"sizes": [1, 8]}, "sizes: expected lists by dimension variable. Got: [1, 8]"),
        ({"sizes": {"b": 8}}, "sizes: expected lists by dimension variable. Got: {'b': 8}"),
    ],
)
def test_options_of_another_kind(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BridgeError) as caught:
        measure_load("rows/1", **options)
    assert str(caught.value) == text


def test_numbers_of_numpy_become_json() -> None:
    options = LoadOptions(callers=np.int64(2), seconds=np.float32(1.5))  # type: ignore[arg-type]
    assert json.dumps([options.callers, options.seconds]) == "[2, 1.5]"


def test_a_caller_that_ends_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "callers-0.log"
    log.write_text("Killed")
    ended = [sys.executable, "-c", "print('ready')"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(ended, **pipes)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.wait()
        with pytest.raises(BridgeError, match=r"^The model cannot be called: Killed$"):
            _run_callers([process], tmp_path)
    finally:
        _end_process(process)
