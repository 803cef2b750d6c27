"""Sources of the VJP of a portable function: stored, missing, or made on demand."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax2tf_bridge.errors import BridgeError, GradientError, InconclusiveShapeError

if TYPE_CHECKING:
    from jax2tf_bridge.portable._portable_function import PortableFunction


class Gradient(ABC):
    """A source of the VJP of a portable function."""

    @property
    @abstractmethod
    def vjp(self) -> PortableFunction | None:
        """The VJP if it exists already, else None."""

    @property
    def available(self) -> bool:
        """Returns whether a VJP exists or can be made (making it may still fail)."""
        return True

    @property
    def missing_because(self) -> str:
        """The reason why there is no VJP, as a clause; "" if there is one."""
        return ""

    def problem(self, name: str) -> str | None:
        """Returns why there is no VJP, if that is known without making it."""
        return None

    @abstractmethod
    def get(self, name: str) -> PortableFunction:
        """Returns the VJP of the function called `name`; makes it if necessary.

        Raises:
          GradientError: there is no VJP; the message gives the reason.
          InconclusiveShapeError: the VJP only works for some sizes; the message says which.
          PlatformError, UnsupportedByTargetError: the target cannot run the VJP.
          ShardingError: no mesh can express the VJP's sharding over devices.
        """

    def map_vjp(
        self, name: str, change: Callable[[PortableFunction], PortableFunction]
    ) -> Gradient:
        """Applies `change` to the VJP: at once if it exists, else when it is made.

        Args:
          name: the name of the differentiated function.
          change: returns a modified VJP.
        """
        if self.vjp is not None:
            return StoredGradient(change(self.vjp))
        if not self.available:
            return self

        def check() -> None:
            problem = self.problem(name)
            if problem is not None:
                raise GradientError(problem)

        return GradientOnDemand(lambda: change(self.get(name)), check=check)


@dataclass(frozen=True)
class NoGradient(Gradient):
    """A missing gradient.

    Attributes:
      because: the reason, as a clause.
    """

    because: str = "it was exported without one"

    @property
    def vjp(self) -> None:
        return None

    @property
    def available(self) -> bool:
        return False

    @property
    def missing_because(self) -> str:
        return self.because

    def problem(self, name: str) -> str:
        return f"{name} has no gradient: {self.because}."

    def get(self, name: str) -> PortableFunction:
        raise GradientError(self.problem(name))


@dataclass(frozen=True)
class StoredGradient(Gradient):
    """A gradient that exists already.

    Attributes:
      function: the VJP.
    """

    function: PortableFunction

    @property
    def vjp(self) -> PortableFunction:
        return self.function

    def get(self, name: str) -> PortableFunction:
        return self.function


class GradientOnDemand(Gradient):
    """A gradient that is made at the first request, once for all threads.

    It lives in the process that exported, loaded or read the function. Its pickle contains the VJP
    if that was made, and a NoGradient otherwise.
    """

    def __init__(
        self, make: Callable[[], PortableFunction], *, check: Callable[[], None] | None = None
    ) -> None:
        """Creates a gradient that calls `make` at the first request.

        Args:
          make: makes the VJP.
          check: a cheap check that raises GradientError or InconclusiveShapeError if `make` would
            fail. It must cache its failure, so that repeated checks do not trace again.
        """
        self._make, self._check = make, check
        self._vjp: PortableFunction | None = None
        self._failure: str | None = None
        self._lock = threading.Lock()

    @property
    def vjp(self) -> PortableFunction | None:
        return self._vjp

    def problem(self, name: str) -> str | None:
        """Returns why there is no VJP; after `get` has failed, the error of `get`."""
        with self._lock:
            if self._failure is not None:
                return self._failure
            try:
                if self._vjp is None and self._check is not None:
                    self._check()
            except (GradientError, InconclusiveShapeError) as e:
                return str(e)
            return None

    def get(self, name: str) -> PortableFunction:
        with self._lock:
            if self._vjp is None:
                try:
                    self._vjp = self._make()
                except BridgeError as e:
                    self._failure = str(e)
                    raise
            return self._vjp

    def __reduce__(self) -> tuple[Any, ...]:
        if (vjp := self.vjp) is not None:
            return StoredGradient, (vjp,)
        return NoGradient, (
            "the portable function was stored without the VJP of this order; export it with "
            "with_vjp(order)",
        )
