"""Exports on a Dask cluster, here two processes on this machine.

To use other machines, pass the address of their scheduler to Client. Their processes need the
bridge, JAX, and the module that defines the functions.
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


# Dask's processes import this file, and must not run it.
if __name__ == "__main__":
    main()
