"""Ray as an executor of concurrent.futures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class RayExecutor(Executor):
    """Calls functions as tasks of Ray, for `export_many`.

    Args:
      remote: `ray.remote`, or with options as `ray.remote(num_cpus=2)`. The bridge itself does not
        import Ray.

    Ray's processes need the bridge, JAX, and the modules that the functions are from; and
    runtime_env={"env_vars": {"JAX_PLATFORMS": "cpu"}} keeps them off accelerators.
    """

    def __init__(self, remote: Callable[..., Any]) -> None:
        self._remote = remote
        self._lock = threading.Lock()
        self._functions: dict[Any, Any] = {}
        self._futures: set[Future[Any]] = set()
        self._is_shut_down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Calls a function as a task; Ray pickles it, its arguments and its result.

        Raises:
          RuntimeError: the executor was shut down.
          TypeError: Ray cannot pickle the arguments.
        """
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("this RayExecutor was shut down, and takes no further calls")
            if fn not in self._functions:
                self._functions[fn] = self._remote(fn)
            task = self._functions[fn]
        future = cast("Future[T]", task.remote(*args, **kwargs).future())
        with self._lock:
            self._futures.add(future)
        future.add_done_callback(self._forget)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no further calls; Ray itself goes on.

        Args:
          wait: whether to return only when what was submitted is done.
          cancel_futures: whether futures that are not done are cancelled; their tasks go on.
        """
        with self._lock:
            self._is_shut_down = True
            pending = list(self._futures)
        for future in pending:
            if cancel_futures:
                future.cancel()
            if wait:
                # What it raised is for whom it was submitted.
                future.exception() if not future.cancelled() else None

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)
