"""Runs a program of a page, and kills the process that scores a certain row, once.

    python -m tests.scoring.run_program PROGRAM [ID]

It runs in an environment with the engines, in a folder with `x.npy`, and writes the scores of a
table to `scores.json`. The file `died` says that a process died.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import jax2tf_bridge
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.scoring import RowScorer

TABLE, DIED = Path("table.parquet"), Path("died")


class MortalScorer(RowScorer):
    """Scorer whose process dies when it has scored the row of an id, the first time."""

    def score(self, rows: Any, **options: Any) -> Any:
        results = super().score(rows, **options)
        _die_once([row["id"] for row in rows])
        return results

    def score_columns(self, columns: Any, **options: Any) -> Any:
        results = super().score_columns(columns, **options)
        _die_once(columns["id"])
        return results


def _die_once(ids: Any) -> None:
    if os.environ["DEADLY_ROW"] in map(str, ids):
        try:
            Path(os.environ["DIED"]).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def _write_table() -> None:
    x = np.load("x.npy")
    columns = {"id": np.arange(len(x)), "x": pa.array(list(x), pa.list_(pa.float32()))}
    parquet.write_table(pa.table(columns), TABLE, row_group_size=100)


def _collect_scores() -> None:
    """Writes the rows of all files, also those that are there twice."""
    folders = [folder for folder in Path().glob("*-scores") if folder.is_dir()]
    rows = [row for folder in folders for row in parquet.read_table(folder).to_pylist()]
    Path("scores.json").write_text(json.dumps(rows, default=lambda array: array.tolist()))


def _score_table() -> None:
    """Writes the scores of an Arrow table, and the errors of two with nulls."""
    scorer, table = RowScorer("models/dense"), parquet.read_table(TABLE)
    np.save("arrow.npy", scorer.score_columns(table)["scores"])
    errors = []
    for row in (None, [None] * 16):
        array = pa.array([[1.0] * 16, row], pa.list_(pa.float32()))
        try:
            scorer.score_columns(pa.table({"x": array}))
        except BridgeError as error:
            errors.append(str(error))
    Path("arrow.txt").write_text("\n".join(errors))


if __name__ == "__main__":
    program, *deadly = sys.argv[1:]
    if deadly:
        os.environ["DEADLY_ROW"], os.environ["DIED"] = deadly[0], str(DIED.absolute())
        # Imported again, since the engines send its name, and this module is __main__ here.
        from tests.scoring import run_program

        jax2tf_bridge.RowScorer = run_program.MortalScorer  # type: ignore[misc]
        jax2tf_bridge.scoring.RowScorer = run_program.MortalScorer  # type: ignore[misc]
    if not TABLE.exists():
        _write_table()
    if Path(program).name == "on_ray.py":
        import ray

        # As ray.data would, without the dashboard's processes.
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    # In this module, so that the engines send its functions as those of a script.
    exec(compile(Path(program).read_text(), program, "exec"), globals())
    _collect_scores()
    if Path(program).name == "on_ray.py":
        _score_table()
