"""ExportWorkers: an executor whose processes start late, die alone, and end with this one."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jax2tf_bridge.errors import JobError, NotPicklableError, WorkerDiedError
from jax2tf_bridge.parallel import ExportJob, ExportWorkers, export_many
from tests.fresh_process import several_devices
from tests.parallel import functions
from tests.parallel.functions import environment_of, process_of, sleeps

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and process numbers of POSIX")


@pytest.fixture(scope="module")
def workers() -> Iterator[ExportWorkers]:
    def initializer() -> None:
        functions.INITIALIZED.append("by the workers")

    environment = {"OF_THE_WORKER": "yes", "XLA_FLAGS": several_devices(2)["XLA_FLAGS"]}
    with ExportWorkers(1, environment=environment, initializer=initializer) as made:
        yield made


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat", encoding="utf-8") as status:
        return status.read().rpartition(")")[2].split()[0] != "Z"


def _ends(process: int) -> bool:
    """Waits for a process to end, within a time that no healthy one needs."""
    for _ in range(300):
        if not _is_alive(process):
            return True
        time.sleep(0.1)
    return False


def test_functions_are_called_in_one_process_again_and_again(workers: ExportWorkers) -> None:
    first, second = (workers.submit(process_of).result() for _ in range(2))
    assert first == second != os.getpid()


def test_any_function_can_be_called(workers: ExportWorkers) -> None:
    factor = np.arange(3)

    def scaled(x: int, *, more: int) -> Any:
        return factor * x + more

    assert workers.submit(scaled, 2, more=1).result().tolist() == [1, 3, 5]


def test_exceptions_are_raised_as_they_were(workers: ExportWorkers) -> None:
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        workers.submit(lambda: 1 / 0).result()
    with pytest.raises(NotPicklableError, match="lock"):
        workers.submit(threading.Lock).result()


def test_after_a_call_that_cannot_be_sent_the_process_goes_on(workers: ExportWorkers) -> None:
    before = workers.submit(process_of).result()
    lock = threading.Lock()
    with pytest.raises(NotPicklableError, match="lock"):
        workers.submit(lambda: lock).result()
    assert workers.submit(process_of).result() == before


def test_workers_have_the_environment_and_no_accelerator(workers: ExportWorkers) -> None:
    assert workers.submit(environment_of, "OF_THE_WORKER").result() == "yes"
    assert workers.submit(environment_of, "PATH").result() == os.environ["PATH"]
    assert workers.submit(environment_of, "JAX_PLATFORMS").result() == "cpu"


def test_the_initializer_is_called_once_in_a_worker(workers: ExportWorkers) -> None:
    found = [workers.submit(lambda: functions.INITIALIZED).result() for _ in range(2)]
    assert found == [["by the workers"]] * 2
    assert functions.INITIALIZED == []


def test_calls_see_the_configuration_of_the_thread(workers: ExportWorkers) -> None:
    with jax.enable_x64(True):
        wide = workers.submit(lambda: jax.numpy.ones(1))
    assert str(wide.result().dtype) == "float64"
    assert str(workers.submit(lambda: jax.numpy.ones(1)).result().dtype) == "float32"


def test_the_secret_of_a_worker_is_not_in_its_command(workers: ExportWorkers) -> None:
    process = workers.submit(process_of).result()
    with open(f"/proc/{process}/cmdline", encoding="utf-8") as command:
        words = command.read().split("\0")
    assert words[1:4] == ["-P", "-X", "faulthandler"]
    assert [word for word in words[5:] if word] == []


@pytest.mark.slow
def test_a_call_that_takes_too_long_is_ended_and_kill_ends_what_runs() -> None:
    x = np.ones(2, np.float32)
    workers = ExportWorkers(1, timeout=2)
    first = workers.submit(process_of)
    late = workers.submit(sleeps, x)
    after = workers.submit(process_of)
    with pytest.raises(JobError, match=r"'sleeps' took longer than 2 s, and its process was"):
        late.result()
    process = after.result()
    assert process != first.result()

    running, waiting = workers.submit(time.sleep, 600), workers.submit(process_of)
    while not running.running():
        time.sleep(0.01)
    workers.kill()
    with pytest.raises(WorkerDiedError, match="was ended by SIGKILL, as the system does if memory"):
        running.result()
    with pytest.raises(CancelledError):
        waiting.result()
    assert _ends(process)


def test_a_worker_that_cannot_start_says_why() -> None:
    with ExportWorkers(1, environment={"JAX_ENABLE_X64": "neither"}) as workers:
        with pytest.raises(WorkerDiedError, match=r"while it started\. It had printed:") as caught:
            workers.submit(process_of).result()
        assert "neither" in caught.value.output


@pytest.mark.costly
def test_an_initializer_that_fails_is_named() -> None:
    def initializer() -> None:
        raise KeyError("missing")

    with ExportWorkers(1, initializer=initializer) as workers:
        future: Future[Any] = workers.submit(process_of)
        with pytest.raises(JobError, match="The workers' initializer failed") as caught:
            future.result()
        assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.slow
def test_shutdown_can_cancel_what_has_not_begun() -> None:
    workers = ExportWorkers(1)
    first = workers.submit(time.sleep, 1)
    rest = [workers.submit(process_of) for _ in range(3)]
    while not first.running():
        time.sleep(0.01)
    workers.shutdown(cancel_futures=True)
    assert first.result() is None
    assert all(future.cancelled() for future in rest)


@pytest.mark.costly
def test_a_forgotten_executor_leaves_no_process_and_no_thread() -> None:
    before = set(threading.enumerate())
    future = ExportWorkers(1, timeout=float("inf")).submit(process_of)
    (thread,) = set(threading.enumerate()) - before
    process = future.result()  # the call was made, although nobody has the executor
    assert _ends(process)
    thread.join(30)
    assert not thread.is_alive()
    with pytest.raises(ProcessLookupError):  # it is no zombie, either
        os.kill(process, 0)


_PARENT = """
import os, signal, sys, time, numpy as np
from jax2tf_bridge.parallel import ExportJob, ExportWorkers, export_many

# A shell that runs the tests in the background ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)

def sleeps(x):
    with open(sys.argv[1], "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1], sys.argv[1] + ".done")
    time.sleep(600)


def run(x, path=sys.argv[1]):
    sys.argv = ["", path]
    sleeps(x)

export_many([ExportJob(run, [np.ones(2)])], workers=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_is_left_behind_a_parent_that_ends(how: signal.Signals, tmp_path: Path) -> None:
    """In the middle of an export that would take for ever."""
    path = tmp_path / "process"
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    done = path.with_suffix(".done")
    for _ in range(600):
        if done.exists() or parent.poll() is not None:
            break
        time.sleep(0.1)
    worker = int(done.read_text())
    assert _is_alive(worker)
    parent.send_signal(how)
    _, printed = parent.communicate(timeout=240)
    assert parent.returncode == -how
    assert ("KeyboardInterrupt" in printed) == (how is signal.SIGINT)
    assert _ends(worker)


@pytest.mark.costly
def test_ctrl_c_ends_the_processes_of_an_export(tmp_path: Path) -> None:
    path = tmp_path / "process"

    def sleeps(x: Any) -> None:
        path = Path(os.environ["PATH_FOR_THE_PROCESS"])
        path.with_suffix(".begun").write_text(str(os.getpid()))
        path.with_suffix(".begun").rename(path)
        time.sleep(600)

    def press() -> None:
        while not path.exists():
            time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presser = threading.Thread(target=press, daemon=True)
    presser.start()
    # A shell that runs the tests in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = {"PATH_FOR_THE_PROCESS": str(path)}
    try:
        with pytest.raises(KeyboardInterrupt):
            export_many([ExportJob(sleeps, [np.ones(2)])], workers=1, environment=environment)
    finally:
        signal.signal(signal.SIGINT, before)
    assert _ends(int(path.read_text()))


def test_ctrl_c_in_a_terminal_is_for_the_parent_alone(workers: ExportWorkers) -> None:
    process = workers.submit(process_of).result()
    os.kill(process, signal.SIGINT)
    assert workers.submit(process_of).result() == process


def test_export_many_leaves_given_workers_running(workers: ExportWorkers) -> None:
    before = workers.submit(process_of).result()
    export_many([ExportJob(lambda x: x + 1, [np.ones(2)])] * 2, executor=workers)
    assert workers.submit(process_of).result() == before


@pytest.mark.costly
def test_workers_may_have_devices_that_this_process_lacks(workers: ExportWorkers) -> None:
    def sharded(x: Any) -> Any:
        mesh = jax.sharding.Mesh(np.array(jax.devices()), "i")
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
        return jax.lax.with_sharding_constraint(x, sharding)

    assert len(jax.devices()) == 1
    portable = export_many([ExportJob(jax.jit(sharded), [np.ones(4)])], executor=workers)["sharded"]
    assert portable.module.nr_devices == 2


@pytest.mark.slow
def test_shutdown_lets_calls_finish_and_takes_no_more() -> None:
    workers = ExportWorkers(1)
    futures = [workers.submit(process_of) for _ in range(3)]
    workers.shutdown()
    assert len({future.result() for future in futures}) == 1
    assert _ends(futures[0].result())
    with pytest.raises(RuntimeError, match="were shut down"):
        workers.submit(process_of)
