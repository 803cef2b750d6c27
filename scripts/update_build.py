#!/usr/bin/env python3
"""Writes BUILD anew from the files and their imports; with --check, only says if it differs."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main() -> None:
    """Writes or checks BUILD."""
    from tests.house.build_file import BuildFile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it differs")
    options = parser.parse_args()
    build, wanted = ROOT / "BUILD", BuildFile().text()
    if build.exists() and build.read_text() == wanted:
        print("BUILD is up to date")
    elif options.check:
        sys.exit("BUILD differs from what is on disk: run scripts/update_build.py")
    else:
        build.write_text(wanted)
        print("BUILD is written anew")


if __name__ == "__main__":
    main()
