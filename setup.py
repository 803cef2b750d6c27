"""Builds the distributions; pyproject.toml has their metadata and their packages.

The same sources and the same setuptools give the same bytes.
"""

from __future__ import annotations

import gzip
import os
import re
import runpy
import shutil
import tarfile
from io import BytesIO
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

SBOM = "release/jax2tf-bridge.cdx.json"
# The source archive has these files, the packages and PKG-INFO.
FILES = (
    *("CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md"),
    *("pyproject.toml", "setup.py", SBOM),
)
# PyPI shows the README without the files beside it: pictures and pages need whole addresses.
PYPI_LINKS = (
    (
        r'((?:src|srcset)="|!\[[^\]]*\]\()(?!https?:)',
        r"\1https://raw.githubusercontent.com/jax2tf-bridge/jax2tf-bridge/v{version}/",
    ),
    (
        r"\]\(([\w./-]+\.md)",
        r"](https://github.com/jax2tf-bridge/jax2tf-bridge/blob/v{version}/\1",
    ),
)


class SourceArchive(sdist):
    """Writes the archive without the users, modes and times of the files on this machine."""

    def make_distribution(self) -> None:
        """Writes one .tar.gz, whatever the option --formats says."""
        build_py = self.get_finalized_command("build_py")
        data = [Path(folder, n) for _, folder, _, names in build_py.data_files for n in names]
        paths = map(Path, (*FILES, *build_py.get_source_files(), *data))
        contents = {path.as_posix(): path.read_bytes() for path in paths}
        metadata = Path(self.get_finalized_command("egg_info").egg_info, "PKG-INFO")
        contents["PKG-INFO"] = metadata.read_bytes()
        seconds = int(os.environ["SOURCE_DATE_EPOCH"])
        folder = self.distribution.get_fullname()
        target = Path(self.dist_dir, f"{folder}.tar.gz")
        self.mkpath(self.dist_dir)
        with (
            target.open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=seconds) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as archive,
        ):
            for name, content in sorted(contents.items()):
                member = tarfile.TarInfo(f"{folder}/{name}")  # mode 0o644, user 0
                member.size, member.mtime = len(content), seconds
                archive.addfile(member, BytesIO(content))
        self.archive_files = [str(target)]


class Wheel(bdist_wheel):
    """Puts the SBOM into the wheel, and gives all files one mode."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        """Writes the .dist-info folder, with the SBOM."""
        super().egg2dist(egginfo_path, distinfo_path)
        folder = Path(distinfo_path, "sboms")
        folder.mkdir()
        shutil.copy(SBOM, folder)

    def write_wheelfile(self, *arguments: str) -> None:
        """Writes WHEEL, the last file but RECORD."""
        super().write_wheelfile(*arguments)
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


def readme_for_pypi() -> str:
    """Returns the README with links that work on PyPI."""
    version = runpy.run_path("jax2tf_bridge/_version.py")["__version__"]
    text = Path("README.md").read_text(encoding="utf-8")
    for pattern, replacement in PYPI_LINKS:
        text = re.sub(pattern, replacement.format(version=version), text)
    return text


# Without a given time, all files are from 1980, the first year of ZIP.
os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")
setup(
    cmdclass={"bdist_wheel": Wheel, "sdist": SourceArchive},
    long_description=readme_for_pypi(),
    long_description_content_type="text/markdown",
    # The default, ./build, collides with ./BUILD on case-insensitive file systems.
    options={"build": {"build_base": ".build"}},
)
