"""export_many checks its jobs before any process is started."""

from concurrent.futures import Executor, Future
from typing import Any

import jax
import numpy as np
import pytest

from jax2tf_bridge.errors import ExportError, ExportManyError, FunctionError
from jax2tf_bridge.parallel import ExportJob, ExportWorkers, export_many
from tests.parallel.functions import double, jitted, softmax


class _Here(Executor):
    """Calls at once, in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


X = np.ones((2, 3), np.float32)


def test_names_are_the_functions_and_differ() -> None:
    jobs = [
        ExportJob(double, [X]),
        ExportJob(double, [X]),
        ExportJob(double, [X], name="double_2"),
        ExportJob(jitted, [X]),
        ExportJob(lambda x: x, [X]),
    ]
    portables = export_many(jobs, executor=_Here())
    assert list(portables) == ["double", "double_3", "double_2", "jitted", "<lambda>"]
    assert portables["double_3"].name == "double"


def test_a_mapping_names_the_jobs() -> None:
    jobs = {"b": ExportJob(double, [X], name="other"), "a": ExportJob(double, [X])}
    assert list(export_many(jobs, executor=_Here())) == ["b", "a"]


def test_no_jobs_start_nothing() -> None:
    assert export_many([]) == {}


def test_two_jobs_of_one_name_are_an_error() -> None:
    jobs = [ExportJob(double, [X], name="f"), ExportJob(jitted, [X], name="f")]
    with pytest.raises(ExportError, match="Several jobs have the name 'f'"):
        export_many(jobs)


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        ([double], r"Job 0 must be an ExportJob. Got: a function. Write ExportJob\(double, args="),
        ({"a": 1}, r"The job 'a' must be an ExportJob. Got: a int\."),
        (ExportJob(double, [X]), r"takes a list of jobs. Pass \[job\]"),
        (double, r"takes a list of jobs. Pass \[ExportJob\(f, args=\[...\]\)\]"),
        (None, "takes a list of jobs"),
    ],
)
def test_what_is_no_job_is_an_error(jobs: Any, text: str) -> None:
    with pytest.raises(FunctionError, match=text):
        export_many(jobs)


def test_arguments_are_given_as_a_list() -> None:
    with pytest.raises(FunctionError, match=r"as a list, args=\[x\]. Got: a ndarray"):
        ExportJob(double, X)  # type: ignore[arg-type]
    with pytest.raises(FunctionError, match=r"as a dict, kwargs={'x': x}\. Got: a list"):
        ExportJob(double, [X], [X])  # type: ignore[arg-type]


def test_keys_of_arguments_that_jax_cannot_sort() -> None:
    job = ExportJob(double, [{1: X, "a": X}])
    with pytest.raises(ExportManyError) as caught:
        export_many([job], executor=_Here())
    assert "argument x is a dict with keys that JAX cannot sort" in str(
        caught.value.errors["double"]
    )


def test_options_of_own_processes_do_not_go_with_an_executor() -> None:
    with pytest.raises(ExportError, match="cannot be combined with executor"):
        export_many([ExportJob(double, [X])], executor=_Here(), workers=2)


def test_executors_are_those_of_concurrent_futures() -> None:
    with pytest.raises(ExportError, match=r"must be a .* Got: 3\. Pass ExportWorkers\(\), or"):
        export_many([ExportJob(double, [X])], executor=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, -1, True, 1.5])
def test_there_is_at_least_one_worker(workers: Any) -> None:
    with pytest.raises(ExportError, match=r"at least 1\. Got: "):
        export_many([ExportJob(double, [X])], workers=workers)
    with pytest.raises(ExportError, match=r"at least 1\. Got: "):
        ExportWorkers(workers)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(({"timeout": t}, "a number of seconds above 0, or None") for t in (0, "5", np.nan)),
        ({"initializer": 3}, "initializer must be a function, or None. Got: 3."),
        ({"environment": {"A": 1}}, r"environment must be a dict of texts, as .* Got: {'A': 1}."),
        ({"environment": ["A"]}, r"environment must be a dict of texts, as .* Got: \['A'\]."),
    ],
)
def test_options_of_workers_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ExportError, match=text):
        ExportWorkers(**options)


def test_options_of_workers_may_be_numpys_numbers() -> None:
    ExportWorkers(np.int64(1), timeout=np.float32(0.5)).shutdown()  # type: ignore[arg-type]


def test_arrays_are_not_sent() -> None:
    """Only their shapes and dtypes are, and the values of static arguments."""
    found = []

    class Looking(_Here):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            found.append(args[0].job)
            return super().submit(fn, *args, **kwargs)

    power = jax.jit(lambda x, exponent: x**exponent, static_argnums=1)
    export_many(
        [
            ExportJob(power, [{"x": X}["x"], 3]),
            ExportJob(softmax, [X], {"scale": np.float32(2)}),
            ExportJob(jax.random.uniform, [jax.random.key(0)]),
        ],
        executor=Looking(),
    )
    assert found[0].args == (jax.ShapeDtypeStruct((2, 3), np.float32), 3)
    assert found[1].kwargs == {"scale": jax.ShapeDtypeStruct((), np.float32)}
    assert found[2].args == (jax.ShapeDtypeStruct((), jax.random.key(0).dtype),)
