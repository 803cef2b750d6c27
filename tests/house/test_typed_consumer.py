"""A user's typed code passes a strict type checker against the package, and wrong code fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jax2tf_bridge

RIGHT = """
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax2tf_bridge import PortableFunction, Target, convert, export, to_tf
from shape_poly import parse_dimension, solve_dimensions


def double(x: jax.Array) -> jax.Array:
    return x * 2


record: PortableFunction = export(double, polymorphic_shapes=["b, 3"])(jnp.ones((1, 3)))
platforms: tuple[str, ...] = record.platforms
module: bytes = record.vjp().module.data
again: Callable[..., Any] = to_tf(record, with_gradient=False)
there: Callable[..., Any] = convert(double, target=Target.tensorflow("2.17"))
size: int = solve_dimensions([(parse_dimension("2*b"),)], [(6,)])["b"]
"""

WRONG = [
    ("export(f, polymorphic_shape='b')", "Unexpected keyword argument"),
    ("export(f, target='2.17')", 'Argument "target"'),
    ("to_tf(f)", 'Argument 1 to "to_tf"'),
    ("convert(3)", 'Argument 1 to "convert"'),
    ("Target.tensorflow(2.17)", 'Argument 1 to "tensorflow"'),
    ("jax2tf_bridge.no_such_name", "Module has no attribute"),
    ("n: int = Target.widest()", "Incompatible types in assignment"),
]


HEAD = """
import jax2tf_bridge
from jax2tf_bridge import Target, convert, export, to_tf
def f(x: object) -> object: return x
"""
# mypy skips the types of JAX and NumPy, which would be most of what it reads.
SETTINGS = """
[mypy]
strict = True
ignore_missing_imports = True
follow_imports = silent
[mypy-jax.*,numpy.*]
follow_imports = skip
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Runs mypy on both consumers at once."""
    folder = tmp_path_factory.mktemp("consumers")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(HEAD + "\n".join(line for line, _ in WRONG))
    (folder / "settings.ini").write_text(SETTINGS)
    package = Path(str(jax2tf_bridge.__file__)).parent.parent
    # Installed packages are found by their py.typed; those of a checkout have to be pointed at.
    installed = "site-packages" in package.parts
    environment = {**os.environ, **({} if installed else {"MYPYPATH": str(package)})}
    options = ["--config-file=settings.ini", f"--cache-dir={folder / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.slow
def test_typed_consumer_passes(output: list[str]) -> None:
    assert [row for row in output if not row.startswith("wrong.py:")] == output[-1:]
    assert output[-1].endswith("in 1 file (checked 2 source files)")


@pytest.mark.parametrize(("number", "line", "error"), [(n, *row) for n, row in enumerate(WRONG)])
def test_wrong_consumer_fails_where_it_is_wrong(
    output: list[str], number: int, line: str, error: str
) -> None:
    start = f"wrong.py:{HEAD.count(chr(10)) + number + 1}: error"
    rows = [row for row in output if row.startswith(start)]
    assert any(error in row for row in rows), f"{line}: {rows}\n{output}"
