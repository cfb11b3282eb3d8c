"""Folders over a connection of ``multiprocessing.connection``, piece by piece."""

from __future__ import annotations

import tarfile
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

PIECE = 16 << 20


def pack(folder: Path) -> IO[bytes]:
    """Everything below it, as one file without a name."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(folder, arcname=".")
    file.seek(0)
    return file


def send_packed(connection: Connection, file: IO[bytes]) -> None:
    """Hand it over, and close it."""
    with file:
        while piece := file.read(PIECE):
            connection.send_bytes(piece)
    connection.send_bytes(b"")


def receive_folder(connection: Connection, folder: Path) -> Path:
    """Create this folder and write the received files into it."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryFile() as file:
        while piece := connection.recv_bytes():
            file.write(piece)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            archive.extractall(folder, filter="data")
    return folder
