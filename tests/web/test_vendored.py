"""Libraries that the console brings are those of their packages, with their licences."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import themis.service.web

VENDOR = Path(themis.service.web.__file__).parent / "static" / "vendor"


def test_every_vendored_file_has_its_checksum_and_every_library_its_licence() -> None:
    listed = dict(reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    there = {path.name: sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir() if path.name != "SHA256SUMS"}
    assert there == listed
    libraries = {name.partition(".")[0] for name in there}
    assert all("MIT" in (VENDOR / f"{name}.LICENSE").read_text() for name in libraries)
