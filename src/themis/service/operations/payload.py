"""Archive that ``themis fleet`` sends to machines: this package, and the pure packages that its agent uses.

It is made from the files that are installed here, from a wheel or a checkout: machines need no package index, and
run the version of the service.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import themis

PURE = ("nvidia-ml-py", "fsspec")
"""Distributions without compiled files: the first finds GPUs; copies of checkpoints need the second, if it is installed here."""


@dataclass(frozen=True, slots=True)
class Payload:
    """An archive (tar.gz) and the SHA-256 of its contents."""

    archive: bytes
    digest: str

    def version(self, python: str) -> str:
        """Name of the environment that it becomes with this interpreter (path and version)."""
        return hashlib.sha256(f"{self.digest} {python}".encode()).hexdigest()[:16]


@cache
def payload() -> Payload:
    """Pack it; equal files give equal bytes."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, path in sorted(_files().items()):
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    import gzip

    content = plain.getvalue()
    return Payload(gzip.compress(content, 6, mtime=0), hashlib.sha256(content).hexdigest())


def _files() -> dict[str, Path]:
    """Files by their path below site-packages."""
    package = Path(themis.__file__).parent
    out = {
        f"themis/{path.relative_to(package)}": path
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for name in PURE:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
                out[str(file)] = path
    return out
