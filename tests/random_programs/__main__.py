"""Runs random programs: `python -m tests.random_programs --programs N --seed S --way WAY`."""

from __future__ import annotations

import os

from tests.plugins.quick_compilation import compile_quickly

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
compile_quickly()

from tests.random_programs.running import main  # noqa: E402

if __name__ == "__main__":  # not in the process that main() starts
    main()
