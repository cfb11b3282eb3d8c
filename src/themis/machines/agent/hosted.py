"""The machine's side of ``themis fleet``: what the service asks for over ssh, one verb a call.

``python -m themis.machines.agent.hosted VERB`` reads a request (JSON) from stdin, so that a token is never an argument,
and prints one line: ``THEMIS:`` and an answer as JSON. A login shell may print lines of its own before it.

    FOLDER/versions/<digest>/    an environment with this package, as the service sent it
    FOLDER/NAME/state/           the machine's token (``identity``), only for this account
    FOLDER/NAME/agent.log        what the agent wrote where systemd does not keep it

Standard library alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from themis.errors import InputError, ThemisError
from themis.machines.agent.gpus import nvml_gpus
from themis.machines.agent.identity import SERVER_NAME, load, write
from themis.machines.agent.joining import TASKS, Wish, join
from themis.machines.agent.locks import locked
from themis.machines.agent.messages import build
from themis.machines.agent.system import UMASK
from themis.machines.agent.systemd_unit import install, uninstall
from themis.trust.authority.contact import first_contact

MARK = "THEMIS:"
"""Begin of the line with the answer."""
REACH_S = 5.0
END_S = 10.0
KEEP = 3
"""Versions that stay: supervisors of gangs that run use the files of theirs."""
MODULE = "themis.machines.agent.remote"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request of the service to a machine that it hosts an agent on.

    Attributes
    ----------
    name, gpus, labels : properties of the machine, as in ``joining.Wish``. ``folder`` : FOLDER. ``tasks`` : folder of
        its tasks; empty: below ``TASKS``.
    version : digest of the package that the agent is to run. ``owner`` : id of the service.
    addresses, port : where the service can be reached, best address first. ``fingerprint`` : that of its authority.
    token : a join token, for ``join``.
    """

    name: str
    folder: str
    version: str
    owner: str
    addresses: tuple[str, ...]
    port: int
    fingerprint: str
    gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    tasks: str = ""
    token: str = ""

    @property
    def home(self) -> Path:
        """FOLDER/NAME."""
        return Path(self.folder) / self.name

    @property
    def state(self) -> Path:
        """Folder of the machine's token."""
        return self.home / "state"

    @property
    def root(self) -> Path:
        """Folder of the agent's tasks."""
        return Path(self.tasks) if self.tasks else TASKS / self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Answer of a machine to a request.

    Attributes
    ----------
    joined : name of the machine that it joined as, empty if it did not join. ``owner`` : id of its service.
    address : address at which the agent connects to the service.
    gpus, gpu_type, gpu_error : number and type of its GPUs, or the reason why it has none.
    reach, reach_error : address at which the service answers from the machine, or the reason why it does not.
    running : process id of the agent, 0 for none. ``version`` : version that the agent runs. ``boot`` : systemd | none,
        the starter of the agent at boot.
    """

    joined: str = ""
    owner: str = ""
    address: str = ""
    gpus: int = 0
    gpu_type: str = ""
    gpu_error: str = ""
    reach: str = ""
    reach_error: str = ""
    running: int = 0
    version: str = ""
    boot: str = "none"
    error: str = ""


def look(request: Request) -> Seen:
    """The machine as it is; changes nothing."""
    joined = owner = address = gpu_error = kind = ""
    with contextlib.suppress(InputError):
        machine = load(request.state)
        joined, owner, address = machine.name, machine.owner, f"{machine.host}:{machine.port}"
    count = request.gpus
    if not count:
        try:
            found = nvml_gpus()
            count, kind = len(found), found[0][1]
        except InputError as error:
            gpu_error = str(error)
    reach, why = _reach(request)
    pid, version = agent(request)
    return Seen(
        joined=joined,
        owner=owner,
        address=address,
        gpus=count,
        gpu_type=kind or "gpu",
        gpu_error=gpu_error,
        reach=reach,
        reach_error=why,
        running=pid,
        version=version,
        boot="systemd" if systemd() else "none",
    )


def bring(request: Request) -> Seen:
    """Join, if there is a token, and run the agent of the wanted version; an agent of another version is replaced.

    Raises
    ------
    ThemisError : the service refuses, or the machine has no GPUs.
    """
    with _alone(request):
        if request.token:
            _join(request)
        pid, version = agent(request)
        if _moved(request) or (pid and version != request.version):
            _stop(request)
            pid = 0
        if not pid:
            _start(request)
        _prune(request)
    return look(request)


def _join(request: Request) -> None:
    """Join; the token of before is replaced only by another one.

    Raises
    ------
    ThemisError : the service refuses, and this machine has not joined it before.
    """
    fresh = request.home / "joining"
    shutil.rmtree(fresh, ignore_errors=True)
    wish = Wish(name=request.name, gpus=request.gpus, labels=request.labels, root=request.root)
    try:
        join(fresh, f"{_reach(request)[0] or request.addresses[0]}:{request.port}", request.token, wish)
    except ThemisError:
        # Another call may have joined it a moment ago, and used the name.
        if look(request).owner != request.owner:
            raise
    else:
        _stop(request)
        shutil.rmtree(request.state, ignore_errors=True)
        fresh.rename(request.state)


def _moved(request: Request) -> bool:
    """Note where the service is now, if it does not answer where it was; returns whether that changed."""
    machine = load(request.state)
    known = replace(
        request, addresses=(machine.host, *request.addresses) if machine.port == request.port else request.addresses
    )
    found = _reach(known)[0]
    if not found or (found, request.port) == (machine.host, machine.port):
        return False
    moved = replace(machine, host=found, port=request.port)
    write(request.state / "machine.json", json.dumps(asdict(moved), indent=1))
    return True


def end(request: Request) -> Seen:
    """Stop the agent, and remove what belongs to this machine: token, log, tasks; versions too that no other machine uses."""
    with _alone(request):
        if systemd():
            uninstall()
        _stop(request)
        shutil.rmtree(request.root, ignore_errors=True)
        shutil.rmtree(request.home, ignore_errors=True)
        folder = Path(request.folder)
        if not any(path.is_dir() and path.name != "versions" for path in folder.iterdir()):
            shutil.rmtree(folder / "versions", ignore_errors=True)
        for path in (folder, *(() if request.tasks else (request.root.parent,))):
            with contextlib.suppress(OSError):
                path.rmdir()  # if the folder is empty
    return Seen()


# ---- the agent's process ---------------------------------------------------------------------------------------------


def agent(request: Request) -> tuple[int, str]:
    """Process of the machine's agent and the version that it runs; (0, "") where none runs."""
    words = [MODULE.encode(), b"--state", str(request.state).encode()]
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if command[2:5] == words:
                return int(pid), Path(os.fsdecode(command[0])).parents[1].name
    return 0, ""


def systemd() -> bool:
    """True if systemd runs here."""
    return Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None


def _start(request: Request) -> None:
    python = str(Path(request.folder) / "versions" / request.version / "bin" / "python")
    if systemd():
        # A session of ssh may have no manager of the user's units; the service then starts the agent again after a boot.
        with contextlib.suppress(InputError, OSError, subprocess.SubprocessError):
            install(request.state, python)
            return
    with open(request.home / "agent.log", "ab") as log:
        subprocess.Popen(
            [python, "-m", MODULE, "--state", str(request.state)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )


def _stop(request: Request) -> None:
    """End the agent's two processes. Gangs run on: their supervisors hold the lease."""
    pid, _ = agent(request)
    _end(pid)
    lock = request.root / "agent.lock"
    with contextlib.suppress(OSError, ValueError):
        if locked(lock):
            _end(int(lock.read_text()))


def _end(pid: int) -> None:
    if not pid:
        return
    until = time.monotonic() + END_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)  # with SIGTERM the jobs of a machine with notice would end
        while _lives(pid) and time.monotonic() < until:
            time.sleep(0.05)
        if _lives(pid):
            os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    """True if the process runs; an unreaped process that has ended has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def _prune(request: Request) -> None:
    """Remove all versions except the newest few."""
    versions = [path for path in (Path(request.folder) / "versions").glob("[!.]*") if path.name != request.version]
    for path in sorted(versions, key=lambda path: path.stat().st_mtime)[: -(KEEP - 1)]:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _alone(request: Request) -> Iterator[None]:
    """One call at a time for a machine."""
    request.home.mkdir(parents=True, exist_ok=True)
    with open(request.home / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _reach(request: Request) -> tuple[str, str]:
    """The first address at which the service's authority answers, or why none does."""
    wrong = []
    for host in request.addresses:
        try:
            first_contact(host, request.port, fingerprint=request.fingerprint, name=SERVER_NAME, timeout_s=REACH_S)
        except (ThemisError, OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            wrong.append(f"{host}:{request.port}: {reason.rstrip('.')}")
        else:
            return host, ""
    return "", "; ".join(wrong)


VERBS = {"look": look, "bring": bring, "end": end}


def main() -> int:
    """One verb; exit code 0, also where the answer is an error."""
    os.umask(UMASK)
    try:
        request: Request = build(Request, json.loads(sys.stdin.read()))
        answer = VERBS[sys.argv[1]](request)
    except ThemisError as error:
        answer = Seen(error=str(error))
    except OSError as error:
        answer = Seen(error=f"{error.filename or 'the machine'}: {error.strerror}.")
    print(MARK + json.dumps(asdict(answer)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
