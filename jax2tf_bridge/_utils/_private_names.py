"""What a seam to another package's private names says of each name."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SeamName:
    """A private name: where it is, which releases have it, what happens without it."""

    module: str
    name: str
    releases: str
    without: str

    def get(self) -> Any:
        """The object, or None in a release that lacks it."""
        try:
            return getattr(importlib.import_module(self.module), self.name, None)
        except ModuleNotFoundError as e:
            if not f"{self.module}.".startswith(f"{e.name}."):
                raise  # it is there, and something that it needs is not
            return None
