"""A user's typed code passes a strict type checker against the package, and wrong code fails."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

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
module: bytes = record.vjp().module
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


def _mypy(tmp_path: Path, code: str) -> tuple[bool, str]:
    file = tmp_path / "consumer.py"
    file.write_text(textwrap.dedent(code))
    package = Path(str(jax2tf_bridge.__file__)).parent.parent
    # Installed packages are found by their py.typed; those of a checkout have to be pointed at.
    installed = "site-packages" in package.parts
    environment = {**os.environ, **({} if installed else {"MYPYPATH": str(package)})}
    cache = tmp_path.parent / "mypy_cache"
    options = ["--strict", "--config-file=", f"--cache-dir={cache}", "--ignore-missing-imports"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--follow-imports=silent", str(file)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, done.stdout + done.stderr


def test_typed_consumer_passes(tmp_path: Path) -> None:
    passed, output = _mypy(tmp_path, RIGHT)
    assert passed, output


def test_wrong_consumers_fail_where_they_are_wrong(tmp_path: Path) -> None:
    lines = [line for line, _ in WRONG]
    head = [
        "import jax2tf_bridge",
        "from jax2tf_bridge import Target, convert, export, to_tf",
        "def f(x: object) -> object: return x",
    ]
    passed, output = _mypy(tmp_path, "\n".join([*head, *lines]))
    assert not passed
    for number, (line, error) in enumerate(WRONG, start=len(head) + 1):
        rows = [
            row for row in output.splitlines() if row.startswith(f"consumer.py:{number}: error")
        ]
        assert any(error in row for row in rows), f"{line}: {rows}\n{output}"
