"""Exports in processes that the bridge starts."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Runs with the options of the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files are written")
    folder: Path = parser.parse_args().folder

    sys.path.insert(0, str(ROOT))
    from examples.parallel_export.jobs import jobs, write
    from jax2tf_bridge.parallel import export_many

    write(export_many(jobs(), workers=2), folder)


if __name__ == "__main__":
    main()
