"""Identity of a machine of the fleet and of its service: a folder with its token, and join tokens.

STATE/machine.json     name, GPUs, address of the service
STATE/authority.pem    authority that it trusts
STATE/token            its token (0600), replaced as a whole
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from themis.errors import InputError
from themis.machines.agent.frames import Joined
from themis.machines.agent.locks import inhabited
from themis.machines.agent.messages import ProtocolError, build

SERVER_NAME = "themis-fleet"
"""The name in the service's certificate. A machine dials an address that may change; it trusts one authority, for this name."""
_SECRET, _PRINT = 16, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One machine of a fleet.

    Attributes
    ----------
    name, rack, gpus, gpu_type, devices, slot : of the machine, as it joined. ``owner`` : id of the service.
    host, port : where the service listens. ``root`` : folder of the agent's tasks and logs.
    """

    name: str
    owner: str
    host: str
    port: int
    gpus: int
    gpu_type: str
    root: str
    rack: str = ""
    devices: tuple[str, ...] = ()
    slot: int = 0


def state_folder() -> Path:
    """Default folder of a machine's state: root's is below /var/lib."""
    chosen = os.environ.get("THEMIS_AGENT_DIR")
    if chosen:
        return Path(chosen)
    return Path("/var/lib/themis-agent") if os.geteuid() == 0 else Path.home() / ".themis-agent"


def save(state: Path, identity: Identity, authority: str, joined: Joined) -> None:
    """Save them, atomically under power loss: ``machine.json`` is written last."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    state.chmod(0o700)
    write(state / "authority.pem", authority)
    renew(state, joined.token)
    write(state / "machine.json", json.dumps(dataclasses.asdict(identity), indent=1))


def renew(state: Path, token: str) -> None:
    """Replace the machine's token."""
    write(state / "token", token)


def token_of(state: Path) -> str:
    """The machine's token; empty where it has none, which the service refuses."""
    try:
        return (state / "token").read_text().strip()
    except OSError:
        return ""


def load(state: Path) -> Identity:
    """The machine that a folder is of.

    Raises
    ------
    InputError : none joined from there, or the file cannot be read.
    """
    path = state / "machine.json"
    try:
        found: Identity = build(Identity, json.loads(path.read_text()))
    except FileNotFoundError:
        raise InputError(
            f"this machine has not joined a service: {path} is not there. `themis agent token` on the service prints the command "
            "that joins it."
        ) from None
    except (OSError, ValueError, ProtocolError) as error:
        raise InputError(f"{path} cannot be read ({error}); remove {state}, and join the machine again.") from None
    return found


def relocate(state: Path, root: Path) -> None:
    """Keep this machine's tasks and logs in another folder from now on.

    Raises
    ------
    InputError : none joined from there, or its agent or its jobs still run in the folder of before.
    """
    machine, new = load(state), str(root.absolute())
    if new == machine.root:
        return
    if inhabited(Path(machine.root)):
        raise InputError(
            f"--root is {new}, and the agent of machine {machine.name}, or one of its jobs, still runs in {machine.root}; wait "
            "until they ended, or leave out --root."
        )
    write(state / "machine.json", json.dumps(dataclasses.asdict(dataclasses.replace(machine, root=new)), indent=1))


def write(path: Path, text: str) -> None:
    """A file that only this account reads, as a whole or not at all."""
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


# ---- join tokens -------------------------------------------------------------------------------------------------------


def make_token(fingerprint: str) -> tuple[str, str]:
    """A new join token and its secret; ``fingerprint`` : SHA-256 of the authority's certificate, as hex."""
    secret = os.urandom(_SECRET)
    return base64.urlsafe_b64encode(secret + bytes.fromhex(fingerprint)).decode().rstrip("="), secret.hex()


def read_token(token: str) -> tuple[str, str]:
    """The secret and the authority's fingerprint of a join token, both as hex.

    Raises
    ------
    InputError : it is none.
    """
    try:
        data = base64.b64decode(token.strip() + "=" * (-len(token.strip()) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != _SECRET + _PRINT:
        raise InputError(
            "--token is not a join token; paste the line that `themis agent token` prints on the service, all of it."
        )
    return data[:_SECRET].hex(), data[_SECRET:].hex()
