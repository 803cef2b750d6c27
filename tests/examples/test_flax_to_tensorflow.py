"""The example's options; tests/consumers runs it, where Flax is and where TensorFlow is."""

import sys
from pathlib import Path

import pytest

from examples.flax_to_tensorflow import train

pytestmark = pytest.mark.checkout


def test_bad_steps_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", str(tmp_path / "digits"), "--steps", "0"])
    with pytest.raises(SystemExit) as stopped:
        train.main()
    assert stopped.value.code == 2
    assert "--steps must be at least 1" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
