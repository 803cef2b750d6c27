"""Prints modules as MLIR, in another process, where JAX is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 120
_MAX_CHARACTERS = 200_000
_MAX_MODULES = 50
_PROGRAM = """\
import sys
from pathlib import Path
from jax2tf_bridge.from_jax.stablehlo import write_texts
write_texts(Path(sys.argv[1]), int(sys.argv[2]))
"""


@dataclass(frozen=True)
class ModuleTexts:
    """Modules as text.

    Attributes:
      texts: the text of each module; None without one.
      missing_because: why there are no texts, and what helps; "" if there are some.
    """

    texts: tuple[str | None, ...]
    missing_because: str = ""


def module_texts(modules: Sequence[bytes | memoryview | None]) -> ModuleTexts:
    """Prints modules as text.

    A separate process and a time limit are used because MLIR may hang or crash on damaged bytes.

    Args:
      modules: portable artifacts; None for modules that need no text.
    """
    if not modules:
        return ModuleTexts(())
    if importlib.util.find_spec("jax") is None:
        return ModuleTexts(
            (None,) * len(modules),
            "The modules' text is shown where JAX is installed: "
            "pip install 'jax2tf-bridge[jax]', and inspect it again with --html.",
        )
    with tempfile.TemporaryDirectory(prefix="jax2tf-bridge-") as place:
        folder = Path(place)
        for i, module in enumerate(modules[:_MAX_MODULES]):
            if module is not None:
                (folder / f"{i}.module").write_bytes(module)
        problem = _run(folder)
        texts = tuple(_read(folder / f"{i}.text") for i in range(len(modules)))
    if not any(texts) and modules:
        return ModuleTexts(texts, problem or "The installed JAX cannot read the modules.")
    return ModuleTexts(texts)


def _run(folder: Path) -> str:
    """Writes the texts; returns an error text, or ""."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "JAX_PLATFORMS": "cpu",
    }
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(folder), str(_MAX_CHARACTERS)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"JAX did not print the modules within {_SECONDS} seconds."
    if ended.returncode:
        return "JAX failed while it printed the modules: they are damaged, or JAX is."
    return ""


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None
