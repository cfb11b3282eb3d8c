"""Send the files of a folder to the service, once for each content: ``PUT /v1/bundles/{sha256}``."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from themis.client.home import read_endpoint, read_token
from themis.client.web import connection_to
from themis.errors import InputError, counted
from themis.machines.bundles.pack import MIB, Packed, pack

TIMEOUT_S = 60.0
"""Timeout in seconds for a piece of the upload, and for the reply: the service writes the file to its disk before it
replies."""
SHARED = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "lustre",
        "ceph",
        "gpfs",
        "beegfs",
        "9p",
        "virtiofs",
        "afs",
        "orangefs",
        "pvfs2",
        "glusterfs",
        "gfs2",
    ]
)
"""File systems that several machines mount."""
OWN_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.portal", "fuse.gvfsd-fuse", "fuse.lxcfs"})
DEFAULT_MOST = 512 << 20
"""Bytes of a bundle, where a service does not say."""


class Sender:
    """Transfer of folders to the service of a data directory, each once.

    Parameters
    ----------
    most : maximum bytes of a bundle, as the service has it (``InfoReply``).
    say : called with a sentence about each upload.
    """

    def __init__(self, home: Path, most: int = 0, say: Callable[[str], object] = lambda _: None) -> None:
        self.home, self.most, self.say = home, most or DEFAULT_MOST, say
        self._sent: dict[str, str] = {}

    def send(self, folder: str) -> str:
        """Send a folder; returns the SHA-256 of its files.

        Raises
        ------
        InputError : the folder has too much or cannot be read, or the service cannot take it.
        """
        if folder not in self._sent:
            packed = pack(Path(folder), self.most)
            try:
                self._sent[folder] = self._deliver(packed, folder)
            finally:
                packed.path.unlink(missing_ok=True)
        return self._sent[folder]

    def _deliver(self, packed: Packed, folder: str) -> str:
        for name in packed.skipped:
            self.say(f"{name} is not sent: it is a socket, a pipe or a device.")
        if self._ask("GET", packed)[0] != 200:
            status, sentence = self._ask("PUT", packed)
            if status != 201:
                raise InputError(sentence or f"the service does not take files (status {status}); update it.")
            much = f"{counted(packed.files, 'file')}, {packed.bytes / MIB:.1f} MiB"
            self.say(f"Sent {folder}: {much}.")
        return packed.sha256

    def _ask(self, verb: str, packed: Packed) -> tuple[int, str]:
        """Status of a request about these files, and the sentence of a refusal."""
        address = read_endpoint(self.home).http
        headers = {"Authorization": f"Bearer {read_token(self.home)}", "Connection": "close"}
        connection = connection_to(self.home, address, TIMEOUT_S)
        try:
            if verb == "PUT":
                headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(packed.bytes)}
                with open(packed.path, "rb") as file:
                    # A refusal may come before all is sent, and can be read.
                    with suppress(BrokenPipeError, ConnectionResetError):
                        connection.request(verb, f"/v1/bundles/{packed.sha256}", file, headers)
                    reply = connection.getresponse()
            else:
                connection.request(verb, f"/v1/bundles/{packed.sha256}", None, headers)
                reply = connection.getresponse()
            found = json.loads(reply.read() or b"{}")
            return reply.status, str(found.get("error", "")) if isinstance(found, dict) else ""
        except (OSError, HTTPException, ValueError) as error:
            raise InputError(f"the files cannot be sent to {address}: {error}. Try again.") from None
        finally:
            connection.close()


def sent(sender: Sender, folder: Path | str, cwd: Path | str | None = None) -> dict[str, str]:
    """Send a folder, for a program that runs in the copy: its ``bundle`` and ``cwd``, ``/`` where that is not in it."""
    root, here = os.path.abspath(folder), os.path.abspath(cwd or os.getcwd())
    below = here == root or here.startswith(f"{root.rstrip('/')}/")
    return {"bundle": sender.send(root), "cwd": inside(here, root) if below else "/"}


def only_here(folder: str) -> bool:
    """True if other machines are unlikely to have a folder: it is on a disk of this machine that NFS does not export.

    A home folder, the root and folders of temporary files are never sent unasked.
    """
    folder = os.path.realpath(folder)
    if folder in {"/", "/tmp", "/var/tmp", "/root", os.path.realpath(os.path.expanduser("~"))}:
        return False
    kind, exported = "", []
    with suppress(OSError, ValueError, IndexError):
        best = ""
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            first, _, rest = line.partition(" - ")
            at = first.split()[4].encode().decode("unicode_escape")
            if _below(folder, at) and len(at) >= len(best):
                best, kind = at, rest.split()[0]
    with suppress(OSError):
        exported = [line.split("\t")[0].split(" ")[0] for line in Path("/var/lib/nfs/etab").read_text().splitlines()]
    shared = kind in SHARED or (kind.startswith("fuse.") and kind not in OWN_FUSE)
    return not shared and not any(_below(folder, at) for at in exported if at)


def _below(folder: str, top: str) -> bool:
    return folder == top or folder.startswith(f"{top.rstrip('/')}/")


def inside(workdir: str, folder: str) -> str:
    """A working directory as a path in the files that are sent, ``/`` for the folder itself.

    Raises
    ------
    InputError : it is not in the folder.
    """
    below = posixpath.relpath(workdir, folder)
    if below == ".." or below.startswith("../"):
        raise InputError(f"the working directory {workdir!r} is not in {folder!r}, the folder that is sent.")
    return "/" if below == "." else f"/{below}"
