"""What publish() wrote, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from jax2tf_bridge.saving._report import SavedModel
from jax2tf_bridge.saving.publishing._publish import NewVersion


@dataclass(frozen=True)
class Published:
    """A version of a model that `publish` wrote; it prints as text for people.

    Attributes:
      version: its number.
      path: its directory.
      saved: what `save` gives of it; None where only the weights are new.
      graph_of: the directory of the version before, whose graph it shares, where only the weights
        are new; else None.
      removed: the numbers of the versions that were removed for it.
      notes: what did not go well after it was there, for people.
    """

    version: int
    path: Path
    saved: SavedModel | None = None
    graph_of: Path | None = None
    removed: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @staticmethod
    def anew(made: NewVersion[SavedModel]) -> Published:
        """Of a model that was saved as the new version."""
        saved = replace(made.result, path=made.path)
        return Published(made.version, made.path, saved, None, made.removed, made.notes)

    @staticmethod
    def with_weights(made: NewVersion[Path]) -> Published:
        """Of other weights for the graph of a version."""
        return Published(made.version, made.path, None, made.result, made.removed, made.notes)

    def __str__(self) -> str:
        lines = [f"version {self.version}: {self.path}"]
        if self.saved is not None:
            lines += str(self.saved).splitlines()[1:]
        if self.graph_of is not None:
            lines.append(f"  new weights for the graph of version {self.graph_of.name}")
        if self.removed:
            lines.append(f"  removed: {', '.join(map(str, self.removed))}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])
