"""Many exports in processes of the bridge: results as exported here, and every failure by name."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import AUTO, PortableFunction, Target, export, serialize
from jax2tf_bridge.errors import (
    DTypeError,
    ExportManyError,
    GradientError,
    InconclusiveShapeError,
    JobError,
    NotPicklableError,
    TargetError,
    WorkerDiedError,
)
from jax2tf_bridge.parallel import ExportJob, ExportWorkers, export_many

# Private: sets any option of JAX within a block.
from jax2tf_bridge.parallel._configuration import use_configuration
from tests.fresh_process import run_script
from tests.parallel import functions
from tests.parallel.functions import Layer, Point, WrongSize

X = np.ones((4, 2), np.float32)
LAYER = Layer(np.ones((2, 3), np.float32), np.ones(3, np.float32))


@pytest.fixture(scope="module")
def workers() -> Iterator[ExportWorkers]:
    with ExportWorkers(2) as made:
        yield made


def _captured() -> Any:
    captured = jnp.ones((2, 2))
    return lambda x: jax.jit(jnp.sin)(x @ captured)


ON_CPU = ["cpu"]
JOBS = {
    "static": ExportJob(functions.dense, [X]),
    "symbolic": ExportJob(functions.dense, [X], polymorphic_shapes="(b, 2)", platforms=ON_CPU),
    "two gradients": ExportJob(
        functions.dense, [X], polymorphic_shapes="(b, 2)", platforms=["cpu", "tpu"], vjp_order=2
    ),
    "found by itself": ExportJob(functions.double, [X], polymorphic_shapes=AUTO, platforms=ON_CPU),
    "inferred": ExportJob(
        functions.halves,
        [X],
        polymorphic_shapes="(b, _)",
        polymorphic_constraints=AUTO,
        platforms=ON_CPU,
    ),
    "newer": ExportJob(functions.double, [X], target=Target.tensorflow("2.19"), platforms=ON_CPU),
    "by keyword": ExportJob(functions.softmax, [X], {"scale": np.float32(2)}, platforms=ON_CPU),
    "types": ExportJob(functions.layer, [LAYER, X], platforms=ON_CPU),
    "jitted": ExportJob(functions.jitted, [X], platforms=ON_CPU),
    "of JAX": ExportJob(jax.nn.relu, [X], vjp_order=1, platforms=ON_CPU),
    "static argument": ExportJob(
        jax.jit(functions.power, static_argnums=1), [X, 3], platforms=ON_CPU
    ),
    "captured": ExportJob(_captured(), [X], platforms=["cuda"]),
    "key": ExportJob(
        lambda key: jax.random.normal(key, (3,)), [jax.random.key(0)], platforms=ON_CPU
    ),
    "abstract": ExportJob(
        functions.double, [jax.ShapeDtypeStruct((2,), jnp.bfloat16)], platforms=ON_CPU
    ),
}


def _exported_here(job: ExportJob) -> PortableFunction:
    return export(
        job.function,
        polymorphic_shapes=job.polymorphic_shapes,
        polymorphic_constraints=job.polymorphic_constraints,
        platforms=job.platforms,
        target=job.target,
    )(*job.args, **job.kwargs)


def test_functions_are_those_of_this_process(workers: ExportWorkers) -> None:
    """Byte for byte: but for the frames of the caller, which are in the locations of a module."""
    with use_configuration({"jax_traceback_in_locations_limit": 0}):
        portables = export_many(JOBS, executor=workers)
        assert list(portables) == list(JOBS)
        for name, job in JOBS.items():
            here = serialize(_exported_here(job), vjp_order=job.vjp_order)
            assert serialize(portables[name]) == here, name


def test_types_are_those_of_this_process(workers: ExportWorkers) -> None:
    """Although they are not registered for files."""
    portable = export_many([ExportJob(functions.layer, [LAYER, X])], executor=workers)["layer"]
    result = portable.out_tree.unflatten(iter("ab"))
    assert result == Point("a", Layer("b", None))
    assert portable.in_tree.children[0].flatten((LAYER, X))[0] is LAYER.kernel


def test_gradients_are_those_that_were_asked_for(workers: ExportWorkers) -> None:
    jobs = {str(n): ExportJob(functions.dense, [X], vjp_order=n) for n in (0, 1)}
    portables = export_many(jobs, executor=workers)
    assert portables["1"].vjp().out_avals[0].shape == (4, 2)
    with pytest.raises(GradientError, match="vjp_order=0"):
        portables["0"].vjp()


def test_configuration_of_jax_goes_along(workers: ExportWorkers) -> None:
    """Also into the reading of what a function captured."""
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        wide = jnp.ones((2, 2), jnp.float64)
        jobs = [ExportJob(lambda x: x @ wide, [np.ones((3, 2))], name="wide")]
        portable = export_many(jobs, executor=workers)["wide"]
        assert str(portable.out_avals[0]) == "float64[3,2]"
        with use_configuration({"jax_traceback_in_locations_limit": 0}):
            far = export_many(jobs, executor=workers)["wide"].module
            assert far == _exported_here(jobs[0]).module
    narrow = export_many([ExportJob(functions.double, [np.ones(3)])], executor=workers)["double"]
    assert str(narrow.out_avals[0]) == "float32[3]"


def _failing() -> dict[str, ExportJob]:
    return {
        "raises": ExportJob(functions.raises, [X]),
        "good": ExportJob(functions.double, [X]),
        "unsendable": ExportJob(functions.raises_unsendable, [X]),
        "exits": ExportJob(functions.exits, [X]),
        "halves": ExportJob(functions.halves, [X], polymorphic_shapes="(b, _)"),
        "traced": ExportJob(lambda x: float(x[0, 0]), [X]),
        "platform": ExportJob(functions.double, [X], platforms=["cpuu"]),
        "dtype": ExportJob(functions.double, [np.array(["text"])]),
        "lock": ExportJob(lambda x: (functions.LOCK, x)[1], [X]),
        "captured lock": ExportJob(_with_captured_lock(), [X]),
        "no function": ExportJob(1, [X]),  # type: ignore[arg-type]
        "also good": ExportJob(functions.jitted, [X]),
    }


def _with_captured_lock() -> Any:
    my_lock = threading.Lock()

    def guarded(x: Any) -> Any:
        with my_lock:
            return x

    return guarded


@pytest.fixture(scope="module")
def failed(workers: ExportWorkers) -> ExportManyError:
    with pytest.raises(ExportManyError) as caught:
        export_many(_failing(), executor=workers)
    return caught.value


def test_failing_jobs_do_not_lose_the_others(failed: ExportManyError) -> None:
    # A module that can be imported is sent by its name, its locks with it.
    assert list(failed.results) == ["good", "lock", "also good"]
    assert all(isinstance(portable, PortableFunction) for portable in failed.results.values())
    assert list(failed.errors) == [name for name in _failing() if name not in failed.results]
    assert str(failed).startswith("9 of 12 exports failed:\n  - The export of 'raises' failed (at ")
    assert failed.exceptions == tuple(failed.errors.values())


def test_exceptions_come_back_as_what_they_were(failed: ExportManyError) -> None:
    error = failed.errors["raises"]
    assert isinstance(error, JobError)
    assert (error.job, error.output) == ("raises", "looking at the size\n")
    assert "functions.py:" in str(error)
    assert str(error).endswith("(raises)): WrongSize: the size is 4")
    assert isinstance(error.__cause__, WrongSize)
    assert error.__cause__.size == 4
    assert "raise WrongSize(size=x.shape[0])" in error.__cause__.__notes__[-1]


def test_the_bridges_errors_keep_their_attributes(failed: ExportManyError) -> None:
    cause = failed.errors["halves"].__cause__
    assert isinstance(cause, InconclusiveShapeError)
    assert cause.requirements == ("b >= 2",)
    assert cause.counterexample == {"b": 1}
    assert isinstance(failed.errors["platform"].__cause__, TargetError)
    assert isinstance(failed.errors["dtype"].__cause__, DTypeError)
    assert isinstance(failed.errors["traced"].__cause__, jax.errors.ConcretizationTypeError)
    assert isinstance(failed.errors["exits"].__cause__, SystemExit)


def test_exceptions_that_cannot_be_sent_come_back_as_text(failed: ExportManyError) -> None:
    error = failed.errors["unsendable"]
    assert error.__cause__ is None
    assert "WrongSizes: <unlocked _thread.lock" in str(error)
    assert "raise WrongSizes(threading.Lock())" in str(error)


def test_a_function_that_cannot_be_sent_names_what_is_to_blame(failed: ExportManyError) -> None:
    error = failed.errors["captured lock"]
    assert isinstance(error, NotPicklableError)
    assert error.culprit.endswith("my_lock")
    assert str(error).startswith("The export of 'captured lock': ")


def test_what_is_no_function_is_a_failed_job(failed: ExportManyError) -> None:
    assert "'no function' failed: FunctionError: ExportJob expected a JAX function" in str(
        failed.errors["no function"]
    )


def test_groups_can_be_taken_apart(failed: ExportManyError) -> None:
    part, rest = failed.split(NotPicklableError)
    assert isinstance(part, ExportManyError)
    assert isinstance(rest, ExportManyError)
    assert list(part.errors) == ["captured lock"]
    assert list(rest.results) == list(failed.results)


def test_what_functions_print_is_shown_and_disturbs_nothing(
    workers: ExportWorkers, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = {f"job {i}": ExportJob(functions.prints, [X]) for i in range(4)}
    assert list(export_many(jobs, executor=workers)) == list(jobs)
    printed = capsys.readouterr()
    assert printed.out == ""
    for name in jobs:
        lines = ["from Python", "\x00\x01 from C", "''"]
        assert "".join(f"[{name}] {line}\n" for line in lines) in printed.err


def test_two_threads_share_workers(workers: ExportWorkers) -> None:
    found: list[dict[str, PortableFunction]] = []

    def many() -> None:
        found.append(export_many([ExportJob(functions.double, [X])] * 3, executor=workers))

    threads = [threading.Thread(target=many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [list(portables) for portables in found] == [["double", "double_2", "double_3"]] * 3


@pytest.mark.costly
def test_progress_is_shown(workers: ExportWorkers, capsys: pytest.CaptureFixture[str]) -> None:
    export_many([ExportJob(functions.double, [X])] * 3, executor=workers, progress=True)
    assert "exporting:   0%" in capsys.readouterr().err
    export_many([ExportJob(functions.double, [X])], executor=workers)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_functions_of_scripts_and_of_modules_beside_them(tmp_path: Path) -> None:
    """Neither is installed; the script is not run again."""
    (tmp_path / "beside.py").write_text("def triple(x):\n    return x * 3\n")
    printed = run_script(
        """
import collections, dataclasses
import jax, numpy as np
from jax2tf_bridge.errors import ExportManyError
from jax2tf_bridge.parallel import ExportJob, ExportWorkers, export_many
import beside

print("run")
Pair = collections.namedtuple("Pair", "a b")

@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    kernel: jax.Array

@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Forgotten:
    kernel: jax.Array

class Mine(Exception):
    pass

def register():
    jax.tree_util.register_dataclass(Layer, data_fields=["kernel"], meta_fields=[])

def shift(x):
    return Pair(beside.triple(x), Layer(x + 1))

def apply(layer, x):
    return layer.kernel @ x

def fails(x):
    raise Mine("as it was")

x = np.ones((2, 2), np.float32)
jobs = {
    "triple": ExportJob(beside.triple, [x]),
    "apply": ExportJob(apply, [Layer(x), x]),
    "shift": ExportJob(shift, [x]),
    "forgotten": ExportJob(apply, [Forgotten(x), x]),
    "fails": ExportJob(fails, [x]),
}
with ExportWorkers(1, initializer=register) as workers:
    try:
        export_many(jobs, executor=workers)
    except ExportManyError as error:
        records = error.results
        print(list(records))
        assert "of Forgotten are registered as pytrees there" in str(error.errors["forgotten"])
        assert "ExportWorkers(initializer=register)" in str(error.errors["forgotten"])
        assert type(error.errors["fails"].__cause__) is Mine
print(records["shift"].out_tree.unflatten(iter([1, 2])))
""",
        tmp_path,
    )
    assert printed.splitlines() == [
        "run",
        "['triple', 'apply', 'shift']",
        "Pair(a=1, b=Layer(kernel=2))",
    ]


@pytest.mark.slow
def test_a_process_that_dies_is_reported_and_replaced(workers: ExportWorkers) -> None:
    """Two processes end and are replaced, so that other tests can share the workers."""
    jobs = {
        "left": ExportJob(functions.dies, [X]),
        "crashed": ExportJob(functions.crashes, [X]),
        "good": ExportJob(functions.double, [X]),
    }
    with pytest.raises(ExportManyError) as caught:
        export_many(jobs, executor=workers)
    assert list(caught.value.results) == ["good"]
    errors: dict[str, Any] = dict(caught.value.errors)
    assert all(isinstance(error, WorkerDiedError) for error in errors.values())
    assert {name: error.exit_code for name, error in errors.items()} == {"left": 3, "crashed": -11}
    assert str(errors["left"]) == (
        "The process that exported 'left' ended with exit code 3. It had printed:\nabout to leave"
    )
    assert "was ended by SIGSEGV" in str(errors["crashed"])
    assert "in crashes" in errors["crashed"].output
