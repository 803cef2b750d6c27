"""Runs a program of a page, and kills the process that scores a certain row, once.

    python -m tests.scoring.run_program PROGRAM [ID]

It runs in an environment with the engine. The file `died` in the working directory says that it
happened.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax2tf_bridge
from jax2tf_bridge.scoring import RowScorer


class MortalScorer(RowScorer):
    """Scorer whose process dies when it has scored the row of an id, the first time."""

    def score(self, rows: Any, **options: Any) -> Any:
        results = super().score(rows, **options)
        self._die_of([row["id"] for row in rows])
        return results

    def score_columns(self, columns: Any, **options: Any) -> Any:
        results = super().score_columns(columns, **options)
        self._die_of(list(columns["id"]))
        return results

    def _die_of(self, ids: list[Any]) -> None:
        deadly = os.environ.get("DEADLY_ROW")
        if deadly is None or deadly not in map(str, ids):
            return
        try:
            with open(os.environ["DIED"], "x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    program = Path(sys.argv[1])
    if len(sys.argv) > 2:
        os.environ["DEADLY_ROW"], os.environ["DIED"] = sys.argv[2], str(Path("died").absolute())
        from tests.scoring.run_program import MortalScorer as Importable

        jax2tf_bridge.RowScorer = Importable
    # In this module, so that engines pickle its functions by value, as in a script.
    exec(compile(program.read_text(), str(program), "exec"), globals())
