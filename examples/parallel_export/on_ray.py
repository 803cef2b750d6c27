"""Exports on Ray, here in two processes on this machine.

To use other machines, pass the address of their cluster to ray.init.
"""

import argparse
import os
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

    import ray

    # ray.init starts processes, so it runs before JAX is imported. The workers find the module of
    # the functions through PYTHONPATH, and do not need an accelerator.
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": python_path, "JAX_PLATFORMS": "cpu"}},
    )
    sys.path.insert(0, str(ROOT))
    from examples.parallel_export.jobs import jobs, write
    from jax2tf_bridge.parallel import RayExecutor, export_many

    with RayExecutor(ray.remote) as executor:
        write(export_many(jobs(), executor=executor), folder)
    ray.shutdown()


if __name__ == "__main__":
    main()
