"""Exports in processes that the bridge starts.

python examples/parallel_export/own_workers.py FOLDER
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from examples.parallel_export.jobs import jobs, write
    from jax2tf_bridge.exporting import export_many

    write(export_many(jobs(), workers=2), Path(sys.argv[1]))


if __name__ == "__main__":
    main()
