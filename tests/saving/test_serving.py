"""Instructions for TensorFlow Serving, and programs compiled ahead."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, save
from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.publishing import CACHE_FOLDER
from jax2tf_bridge.saving import BatchingParameters
from jax2tf_bridge.saving.buckets import Bucketing, make_bucketing

# Private: instructions for signatures that no saved model of the tests has, and requests for a
# model that TensorFlow saved.
from jax2tf_bridge.saving.serving import ServedSignature, _warm_up, precompile
from jax2tf_bridge.saving.serving._instructions import make_serving_instructions
from jax2tf_bridge.saving.serving._warm_up import WarmUpRequest, make_cache_environment, make_zeros
from jax2tf_bridge.saving.serving._warm_up_requests import make_bucket_requests
from jax2tf_bridge.signatures import ServedArray
from tests.fresh_process import run_python
from tests.saving.bucketed_functions import aval, named
from tests.saving.precompiling import in_this_process


def bucketing(
    inputs: dict[str, str] | None = None,
    outputs: dict[str, str] | None = None,
    buckets: dict[str, tuple[int, ...]] | None = None,
    **options: Any,
) -> Bucketing:
    return make_bucketing(
        "serving_default",
        {name: aval(shape) for name, shape in (inputs or {"x": "(b, 28)"}).items()},
        {name: aval(shape) for name, shape in (outputs or {"y": "(b, 10)"}).items()},
        buckets or {"b": (1, 8, 32)},
        **options,
    )


def served(bucketing: Bucketing, **options: Any) -> ServedSignature:
    """A signature without the user's own TensorFlow around it."""
    inputs = {name: ServedArray.of_aval(aval) for name, aval in bucketing.passed_inputs().items()}
    outputs = {name: ServedArray.of_aval(aval) for name, aval in bucketing.outputs.items()}
    return replace(ServedSignature(bucketing.name, inputs, outputs, bucketing), **options)


def reason_to_stay_apart(*signatures: ServedSignature) -> str:
    """Returns what the instructions say after "not joined"; there must be no batching."""
    made = make_serving_instructions("/m", "mlp", signatures)
    assert made.batching is None
    assert not any("batching" in word for word in made.command)
    (note,) = (note for note in made.notes if note.startswith("Requests are not joined"))
    return note.partition(" because ")[2]


def test_the_text_is_a_command_a_file_and_notes() -> None:
    text = str(make_serving_instructions("/models/my mlp", "mlp", [served(bucketing())], cores=6))
    assert (
        text
        == """\
Start TensorFlow Serving with

    tensorflow_model_server \\
        --port=8500 \\
        --rest_api_port=8501 \\
        --model_name=mlp \\
        '--model_base_path=/models/my mlp' \\
        --grpc_max_threads=256 \\
        --num_load_threads=2 \\
        --load_retry_interval_micros=1000000 \\
        --xla_cpu_compilation_enabled=true \\
        --enable_batching=true \\
        --batching_parameters_file=batching_parameters.txt

after writing to batching_parameters.txt

    max_batch_size { value: 32 }
    allowed_batch_sizes: 1
    allowed_batch_sizes: 8
    allowed_batch_sizes: 32
    batch_timeout_micros { value: 0 }
    num_batch_threads { value: 6 }
    max_enqueued_batches { value: 280 }

- --grpc_max_threads is how many gRPC requests may run or wait at once; TensorFlow Serving refuses \
more with "Server Threadpool Exhausted". By default it is 4 for each core.
- With --num_load_threads a rollback takes effect at once if a version cannot be loaded. By \
default TensorFlow Serving tries that version for five minutes, and loads no other.
- --load_retry_interval_micros is the time between two of these tries, a minute by default. If a \
version is removed while TensorFlow Serving begins to load it, no other is loaded until these \
tries end, whatever --num_load_threads is.
- Without --xla_cpu_compilation_enabled=true every request on a CPU fails: TensorFlow Serving \
compiles for CPUs only if it is told to.
- With batching, a request of more than 32 rows is refused; without the last two options it is \
not, and requests are not joined.
- max_enqueued_batches is the number of threads that take requests: 256 for gRPC and 24 for REST. \
Each thread waits with one request, so the queue is never full, even if each request fills a \
batch. If you change --grpc_max_threads, change both by the same number. By default the queue \
holds 10 batches, and TensorFlow Serving refuses what does not fit.
- A request of a wrong size also fails the requests that TensorFlow Serving joins with it: \
"Tensors ... from different tasks have different shapes". Callers who get this error can send \
their request again.
- A request of 0 rows waits until another request comes.
"""
    )


def test_the_command_line_survives_a_shell() -> None:
    environment = {"TF_XLA_FLAGS": "--a=/x y --b=true"}
    made = make_serving_instructions(
        "/models/my mlp", "mlp", [served(bucketing())], environment=environment
    )
    words = shlex.split(made.command_line().replace("\\\n", ""))
    assert words == ["TF_XLA_FLAGS=--a=/x y --b=true", *made.command]


def test_a_folder_of_programs_with_a_space() -> None:
    (flags,) = make_cache_environment(Path("/my models/m")).values()
    assert flags.split(" --tf")[0] == '--tf_xla_persistent_cache_directory="/my models/m"'
    assert '"' not in "".join(make_cache_environment(Path("/models/m")).values())


def test_models_that_were_not_lowered_for_the_cpu() -> None:
    made = make_serving_instructions("/m", "mlp", [served(bucketing())], platforms=["cuda"])
    assert "--xla_cpu_compilation_enabled=true" not in made.command
    assert not any("CPU" in note for note in made.notes)


def test_the_notes_name_what_rest_lacks() -> None:
    plain = served(bucketing(), defaults=("x",))
    assert make_serving_instructions("/m", "mlp", [plain]).notes[-1] == (
        "The REST API does not fill in defaults, so its callers also pass x of serving_default."
    )
    half = {"scale": ServedArray("float16", ()), "x": ServedArray("float32", (None,))}
    small = {"y": ServedArray("bfloat16", (None,)), "labels": ServedArray("string", (None,))}
    both = [served(bucketing()), served(bucketing(), name="embed", inputs=half, outputs=small)]
    assert make_serving_instructions("/m", "mlp", both).notes[-1] == (
        "The REST API has no float16 and no bfloat16, so these signatures work over gRPC only: "
        "embed (scale, y)."
    )


def test_a_note_says_which_release_reads_the_programs() -> None:
    made = make_serving_instructions("/m", "mlp", environment=make_cache_environment(Path("/m/c")))
    assert made.notes[-1] == (
        "TF_XLA_FLAGS names the programs that precompile stored. They are for the TensorFlow "
        "release that stored them; another one compiles when it loads the model."
    )


def test_a_large_machine_keeps_the_threads_of_tensorflow_serving() -> None:
    made = make_serving_instructions("/m", "mlp", [served(bucketing())], cores=100)
    assert "--grpc_max_threads=400" in made.command
    assert made.batching is not None
    assert made.batching.max_enqueued_batches == 800


def test_signatures_with_other_buckets_share_one_file() -> None:
    other = served(bucketing(buckets={"b": (4, 64)}))
    made = make_serving_instructions("/m", "mlp", [served(bucketing()), other], cores=2)
    assert made.batching == BatchingParameters(
        (1, 4, 8, 32, 64), num_batch_threads=2, max_enqueued_batches=264
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (bucketing({"x": "(3, b)"}), "x: float32[3,b] does not begin with a bucketed size"),
        (
            bucketing(outputs={"y": "(b, 10)", "total": "()"}),
            "total: float32[] does not begin with a bucketed size",
        ),
        (
            bucketing({"x": "(b, 3)", "scale": "()"}),
            "scale: float32[] does not begin with a bucketed size",
        ),
        (
            bucketing({"x": "(2*b, 3)"}, oversize="as is"),
            "x: float32[2*b,3] does not begin with a bucketed size",
        ),
        (
            bucketing({"x": "(n, l)"}, {"y": "(n,)"}, {"l": (16, 64)}, oversize="as is"),
            "x: float32[n,l] does not begin with a bucketed size",
        ),
        (
            bucketing({"x": "(b, b)"}, {"y": "(b,)"}, oversize="as is"),
            "x: float32[b,b] has the number of rows twice",
        ),
        (
            bucketing({"x": "(b, 3)", "z": "(c, 3)"}, {"y": "(b,)"}, {"b": (4,), "c": (4,)}),
            "its inputs and outputs do not all begin with the same size",
        ),
    ],
)
def test_requests_that_cannot_be_joined(given: Bucketing, reason: str) -> None:
    for signatures in ([served(given)], [served(given), served(bucketing())]):
        assert reason_to_stay_apart(*signatures) == f"of serving_default: {reason}."


def test_a_signature_without_buckets_keeps_requests_apart() -> None:
    plain = replace(served(bucketing()), name="embed", bucketing=None)
    assert reason_to_stay_apart(served(bucketing()), plain) == "of embed: it has no buckets."
    assert make_serving_instructions("/m", "mlp").batching is None
    assert "Requests are not joined" not in str(make_serving_instructions("/m", "mlp"))


TEXT_BUCKETS: dict[str, tuple[int, ...]] = {"b": (1, 8), "l": (16, 64)}


def text_model(any_padding: bool = True, **options: Any) -> ServedSignature:
    given = bucketing(buckets=TEXT_BUCKETS, **options)
    return served(replace(given, any_padding=any_padding))


def test_lengths_that_tensorflow_serving_may_pad() -> None:
    dense = served(bucketing(), name="dense")
    # Where no length is open there is nothing to pad, so the second model changes nothing.
    for signatures in (
        [text_model(inputs={"x": "(b, l)"})],
        [text_model(inputs={"x": "(b, l)"}), dense],
    ):
        made = make_serving_instructions("/m", "mlp", signatures)
        assert made.batching is not None
        assert made.batching.pad_variable_length_inputs
        assert "pad_variable_length_inputs: true" in str(made)
        assert "also pads requests of a wrong size" in str(made)
        assert "also fails the requests" not in str(made)
    assert "pad_variable_length_inputs" not in str(make_serving_instructions("/m", "mlp", [dense]))


@pytest.mark.parametrize(
    ("signature", "size", "reason"),
    [
        # TensorFlow Serving pads with the first number of an input, and fills no mask.
        (
            text_model(any_padding=False, inputs={"x": "(b, l)"}),
            "l",
            "it would pad with the first number of each input, and that may change results",
        ),
        (
            text_model(inputs={"x": "(b, l)"}, outputs={"y": "(b, l)"}),
            "l",
            "it would not slice the padding off y: float32[b,l]",
        ),
        (text_model(inputs={"x": "(b, l, n)"}), "n", "n has no buckets"),
        (served(bucketing(inputs={"x": "(b, 2*k)"})), "k", "k has no buckets"),
    ],
)
def test_requests_of_different_lengths_are_not_joined(
    signature: ServedSignature, size: str, reason: str
) -> None:
    lengths = "l, n" if size == "n" else size
    assert reason_to_stay_apart(signature, served(bucketing(), name="dense")) == (
        f"of serving_default: requests choose the size {lengths} beside their rows, and "
        f"TensorFlow Serving fails where it joins different ones; {reason}."
    )


def test_lengths_around_the_users_own_functions_are_not_joined() -> None:
    rows = served(bucketing(), is_preprocessed=True, is_postprocessed=True)
    words = ServedArray("string", (None, None))
    text = ServedArray("string", (None,))
    assert make_serving_instructions("/m", "mlp", [replace(rows, inputs={"text": text})]).batching
    for inputs, outputs, reason in [
        ({"words": words}, {"y": text}, "words: string[?,?] has an open size beside its rows"),
        ({"text": text}, {"y": words}, "y: string[?,?] has an open size beside its rows"),
        ({"text": ServedArray("string", ())}, {"y": text}, "text: string[] has no open rows"),
        ({"text": text}, {"y": ServedArray("string", None)}, "y: string[...] has no open rows"),
    ]:
        made = reason_to_stay_apart(replace(rows, inputs=inputs, outputs=outputs))
        assert made == f"of serving_default: {reason}."


def test_requests_whose_rows_may_influence_each_other_are_not_joined() -> None:
    for options, reason in (
        ({"mask": "mask"}, "a mask says which rows are real, so rows may influence each other"),
        (
            {"unchecked": ["b"]},
            "unchecked_padding names b, so the independence of rows was not checked",
        ),
    ):
        made = bucketing(inputs={"x": "(b, 28)", "mask": "(b,)"}, **options)
        assert reason_to_stay_apart(served(made)) == f"of serving_default: {reason}."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[WarmUpRequest, ...]]:
    """A SavedModel with buckets, and a request for each."""
    weights = np.ones((28, 10), np.float32)
    function = named(lambda x: x @ weights, np.zeros((4, 28), np.float32))
    call, buckets = function.pad_to_buckets({"b": (2, 4)}), function.bucketing({"b": (2, 4)})
    module = tf.Module()
    module.f = tf.function(
        lambda x: call({"x": x}),
        input_signature=[tf.TensorSpec((None, 28), tf.float32, name="x")],
        autograph=False,
    )
    path = tmp_path_factory.mktemp("a model")
    tf.saved_model.save(module, str(path), signatures={"f": module.f})
    return path, make_bucket_requests(buckets)


RUN = """
import sys
import tensorflow as tf

f = tf.saved_model.load(sys.argv[1]).signatures["f"]
print([f(x=tf.ones((n, 28)))["output_0"].shape.as_list() for n in map(int, sys.argv[2:])])
"""


@pytest.fixture(scope="module")
def cache(model: tuple[Path, tuple[WarmUpRequest, ...]]) -> Path:
    """Compiles the model, and returns the folder of the programs."""
    path, requests = model
    # One for each bucket, as sessions run it and as Python does.
    assert precompile(path, requests) == len(list((path / CACHE_FOLDER).iterdir())) == 4
    return path / CACHE_FOLDER


@pytest.mark.slow
def test_a_second_process_compiles_nothing(
    model: tuple[Path, tuple[WarmUpRequest, ...]], cache: Path
) -> None:
    path, _ = model
    files = {file.name: file.stat().st_mtime_ns for file in cache.iterdir()}
    # Unless the cache is read only, TensorFlow writes each program that it compiles.
    writing = {
        name: value.replace(" --tf_xla_persistent_cache_read_only=true", "")
        for name, value in make_cache_environment(cache).items()
    }
    printed = run_python(RUN, str(path), "1", "3", "4", env=writing)
    assert printed == "[[1, 10], [3, 10], [4, 10]]"
    assert {file.name: file.stat().st_mtime_ns for file in cache.iterdir()} == files


@pytest.mark.slow
def test_examples_of_open_sizes_are_compiled_as_they_are(tmp_path: Path) -> None:
    x = np.ones((3, 28), np.float32)
    signature = Signature(
        lambda x: x @ x.T, args=[x], polymorphic_shapes="(b, _)", example=[{"x": x}, {"x": x[:1]}]
    )
    saved = save(tmp_path / "model", {"f": signature}, precompile=True)
    (setting,) = saved.serving.environment.values()
    folder = tmp_path / "model" / CACHE_FOLDER
    files = sorted(folder.iterdir())
    writing = {"TF_XLA_FLAGS": setting.replace(" --tf_xla_persistent_cache_read_only=true", "")}
    printed = run_python(RUN, str(tmp_path / "model"), "1", "3", env=writing)
    assert printed == "[[1, 1], [3, 3]]"
    assert sorted(folder.iterdir()) == files
    run_python(RUN, str(tmp_path / "model"), "2", env=writing)
    assert len(list(folder.iterdir())) == len(files) + 1


@pytest.mark.slow
def test_a_damaged_program_is_noticed_so_it_was_read(
    model: tuple[Path, tuple[WarmUpRequest, ...]], cache: Path, tmp_path: Path
) -> None:
    path, _ = model
    for file in cache.iterdir():
        (tmp_path / file.name).write_bytes(b"damaged")
    with pytest.raises(AssertionError, match=r"damaged|parse|corrupt|Unable"):
        run_python(RUN, str(path), "1", env=make_cache_environment(tmp_path))


def test_the_cache_lies_in_the_model(
    model: tuple[Path, tuple[WarmUpRequest, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, requests = model
    copy = shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns("xla_cache"))
    monkeypatch.setenv("TF_XLA_FLAGS", "--another=1")
    monkeypatch.setenv("PYTHONPATH", "/packages")
    environments = in_this_process(monkeypatch)
    cache = copy / CACHE_FOLDER
    cache.mkdir(parents=True)
    (cache / "of another version").touch()
    assert precompile(copy, requests[:1]) == 1
    (variables,) = environments
    flag = f"--tf_xla_persistent_cache_directory={cache}"
    assert variables["TF_XLA_FLAGS"] == f"--another=1 {flag}"
    assert variables["PYTHONPATH"].endswith(f"{os.pathsep}/packages")
    read_only = "--tf_xla_persistent_cache_read_only=true"
    assert make_cache_environment(cache) == {"TF_XLA_FLAGS": f"{flag} {read_only}"}


def test_a_model_that_does_not_run(
    model: tuple[Path, tuple[WarmUpRequest, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = model
    in_this_process(monkeypatch)
    wrong = WarmUpRequest("f", {"x": make_zeros((2, 29), "float32")})
    with pytest.raises(SavingError) as caught:
        precompile(path, [wrong])
    assert str(caught.value).startswith(f"{path} could not be run to compile it ahead: ")
    assert "Error: " in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(SavingError, match="could not be run to compile it ahead: KeyError: 'g'"):
        precompile(path, [WarmUpRequest("g", {})])


@pytest.mark.parametrize(
    ("ended", "told"), [((3, ""), "it ended with 3"), ((1, "a trace\nthe error\n"), "the error")]
)
def test_a_process_that_fails(
    ended: tuple[int, str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, stderr = ended
    done = subprocess.CompletedProcess([], code, "", stderr)
    monkeypatch.setattr(_warm_up, "subprocess", SimpleNamespace(run=lambda *_, **__: done))
    with pytest.raises(SavingError, match=f"to compile it ahead: {told}$"):
        precompile(tmp_path, [])
