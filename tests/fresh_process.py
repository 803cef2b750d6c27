"""Runs code in a fresh interpreter, for what a test cannot try in its own process."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.plugins.quick_compilation import with_quick_flags

WITHOUT_JAX = """
import sys
class _Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "flax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, _Blocker())
"""


def complete_python(
    code: str, *args: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter, with `args` as sys.argv[1:], however it ends."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})},
    )


def run_python(
    code: str, *args: str, without_jax: bool = False, env: Mapping[str, str] | None = None
) -> str:
    """Runs code in a fresh interpreter, with `args` as sys.argv[1:]; returns what it prints."""
    text = (WITHOUT_JAX if without_jax else "") + textwrap.dedent(code)
    done = complete_python(text, *args, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_script(text: str, folder: Path) -> str:
    """Runs a script.py in a folder, where processes that it starts find it; returns its output."""
    (folder / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def several_devices(count: int) -> dict[str, str]:
    """Returns the variables of a process in which JAX has that many CPU devices."""
    flags = with_quick_flags(f"--xla_force_host_platform_device_count={count}")
    return {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
