"""Loads, runs and differentiates the real models with TensorFlow alone.

python -m tests.models.consume_models EXPORTED REPORT [MODEL ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import tensorflow as tf

from tests.consumers.exchange import Report
from tests.consumers.one_by_one import one_by_one
from tests.consumers.own_operations import switch_off_xla
from tests.models.served import served_differences
from tests.plugins.blocked_imports import forbid_jax


def main(exported: Path, report_path: Path, *names: str) -> NoReturn:
    """Checks the models named, or all that were exported; exits with 0 when it came through."""
    forbid_jax()
    switch_off_xla()
    report = Report(report_path)
    python = "{}.{}.{}".format(*sys.version_info[:3])
    report.head({"tensorflow": tf.__version__, "numpy": np.__version__, "python": python})
    wanted = names or sorted(p.parent.name for p in exported.glob("*/model.json"))
    one_by_one(report, wanted, lambda name: served_differences(exported / name))
    sys.exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
