"""Exports on a cluster of Dask, here one of two processes on this machine.

For other machines, Client takes the address of their scheduler. Their processes need the bridge,
JAX, and the module that the functions are from.
"""

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
    from dask.distributed import Client, LocalCluster

    from examples.parallel_export.jobs import jobs, write
    from jax2tf_bridge.parallel import export_many

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        write(export_many(jobs(), executor=client.get_executor()), folder)


# The processes of Dask import this file.
if __name__ == "__main__":
    main()
