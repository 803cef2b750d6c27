"""The examples' command lines: how they are called, and options that are refused."""

import ast
import runpy
import sys
from pathlib import Path

import pytest

from examples.flax_to_tensorflow import train

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path for path in (ROOT / "examples").rglob("*.py") if "if __name__ ==" in path.read_text()
)

pytestmark = pytest.mark.checkout


NEEDS_NOTHING = ROOT / "examples" / "digits" / "main.py"
CALLS = [
    pytest.param(path, option, id=" ".join([path.relative_to(ROOT).as_posix(), *option]))
    for path in SCRIPTS
    for option in ([], ["--help"])
    if option or path != NEEDS_NOTHING
]


@pytest.mark.parametrize(("script", "option"), CALLS)
def test_it_says_how_it_is_called(
    script: Path,
    option: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), *option])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(script), run_name="__main__")
    assert stopped.value.code == (0 if option else 2)
    printed = capsys.readouterr()
    assert f"usage: {script.name} [-h]" in printed.out + printed.err
    if option:
        documented = ast.get_docstring(ast.parse(script.read_text())) or ""
        assert documented.splitlines()[0] in printed.out


def test_bad_steps_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # tests/consumers runs the example, where Flax is and where TensorFlow is.
    monkeypatch.setattr(sys, "argv", ["train.py", str(tmp_path / "digits"), "--steps", "0"])
    with pytest.raises(SystemExit) as stopped:
        train.main()
    assert stopped.value.code == 2
    assert "--steps must be at least 1" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
