"""The entry of every py_test: runs the test file that it is given under pytest."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]]))
