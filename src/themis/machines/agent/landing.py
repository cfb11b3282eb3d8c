"""Unpack the package on a machine, as ``themis fleet`` sends it: ``python -c THIS FOLDER VERSION < archive``.

Makes FOLDER/versions/VERSION, an environment without pip whose interpreter is the one that runs this, and which also finds the
packages of that one. It is whole or not there. Standard library alone, and no other file of this package: the machine has none yet.
"""

import os
import shutil
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path


def land(folder: Path, version: str) -> None:
    """Make the version from the archive on stdin."""
    os.umask(0o022)
    target, draft = folder / "versions" / version, folder / "versions" / f".{version}.{os.getpid()}"
    draft.parent.mkdir(parents=True, exist_ok=True)
    try:
        venv.create(draft, symlinks=True)
        packages = next(draft.glob("lib/python*/site-packages"))
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as archive:
            archive.extractall(packages)
        outer = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        (packages / "outer.pth").write_text(
            "".join(f"import site; site.addsitedir({path!r})\n" for path in sorted(outer))
        )
        (draft / "whole").touch()
        if not (target / "whole").exists():
            shutil.rmtree(target, ignore_errors=True)
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


if __name__ == "__main__":
    try:
        land(Path(sys.argv[1]), sys.argv[2])
    except OSError as error:
        print(f"THEMIS:{error.errno} {error.strerror}: {error.filename or sys.argv[1]}", flush=True)
    else:
        print("THEMIS:0", flush=True)
