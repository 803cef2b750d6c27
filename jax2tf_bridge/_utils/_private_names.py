"""Descriptions of the private names of other packages that the bridge depends on."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SeamName:
    """A private name of another package that the bridge depends on.

    Attributes:
      module: the module that has it.
      name: the name in that module.
      releases: the releases that have it.
      without: the consequence for the bridge in a release that lacks it.
    """

    module: str
    name: str
    releases: str
    without: str

    def get(self) -> Any:
        """Looks the object up; returns None in a release that lacks it."""
        try:
            return getattr(importlib.import_module(self.module), self.name, None)
        except ModuleNotFoundError as e:
            if not f"{self.module}.".startswith(f"{e.name}."):
                raise  # the module exists, but something that it imports does not
            return None

    def wrap(self, wrapper: type[Any]) -> bool:
        """Replaces a function by `wrapper(name, function)`, once and until the process ends.

        Code that looks the function up by name then calls the wrapper. Returns False in a release
        that lacks the function.
        """
        original = self.get()
        if original is None:
            return False
        if not isinstance(original, wrapper):
            setattr(importlib.import_module(self.module), self.name, wrapper(self.name, original))
        return True
