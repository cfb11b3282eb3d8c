"""Joining of a machine: one request over TLS, to the CA whose fingerprint the token carries."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from themis.errors import InputError
from themis.machines.agent.frames import Frames, Join, Joined, Refused
from themis.machines.agent.gpus import nvml_gpus, slot_size
from themis.machines.agent.identity import SERVER_NAME, Identity, read_token, save
from themis.trust.authority.contact import first_contact
from themis.trust.authority.contexts import client_context, in_words

TASKS = Path("/var/tmp/themis-agent")
"""Below it, folders of tasks and logs by the machine's name."""
ANSWER_S = 30.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
LABEL = re.compile(r"[A-Za-z0-9._-]{1,60}")
LABELS = ("rack", "gpu_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Options of a machine that joins.

    Attributes
    ----------
    name : empty for the host's name. ``gpus`` : mere slots instead of the GPUs that NVML finds; 0 for those.
    labels : ``rack``, ``gpu_type``. ``root`` : folder of tasks and logs, None for one below ``TASKS``.
    """

    name: str = ""
    gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    root: Path | None = None


def labels_of(texts: list[str]) -> dict[str, str]:
    """``rack=r1`` and the like.

    Raises
    ------
    InputError : something else.
    """
    out: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in LABELS or not LABEL.fullmatch(value):
            raise InputError(
                f"--label got {text!r}, expected rack=NAME or gpu_type=NAME, the name of letters, digits, dots, _ and -."
            )
        out[name] = value
    return out


def address_of(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``.

    Raises
    ------
    InputError : it is none.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"the service's address is {text!r}, expected HOST:PORT, as `themis agent token` prints it.")
    return host.strip("[]"), int(port)


def join(state: Path, address: str, token: str, wish: Wish) -> Identity:
    """Join the service at ``address``, and save its answer in ``state``.

    Raises
    ------
    InputError : the service refuses, cannot be reached or is another one; there are no GPUs; the machine joined before.
    ThemisError : no TLS connection.
    """
    host, port = address_of(address)
    secret, fingerprint = read_token(token)
    if (state / "machine.json").exists():
        raise InputError(
            f"this machine joined a service already: {state / 'machine.json'} is there. To join another one, stop its agent and "
            f"remove {state}."
        )
    name = wish.name or socket.gethostname().partition(".")[0]
    if not NAME.fullmatch(name):
        raise InputError(
            f"the machine's name is {name!r}, expected letters, digits, dots, _ and -, at most 60; give one with --name."
        )
    devices, gpu_type = _gpus(wish)
    request = Join(
        secret=secret,
        name=name,
        gpus=wish.gpus or len(devices),
        gpu_type=wish.labels.get("gpu_type", gpu_type),
        devices=devices,
        slot=0 if wish.gpus else slot_size(),
        rack=wish.labels.get("rack", ""),
    )
    try:
        authority = first_contact(host, port, fingerprint=fingerprint, name=SERVER_NAME)
        joined = asyncio.run(_ask(host, port, authority, request))
    except ssl.SSLError as error:
        raise in_words(error, host, port, SERVER_NAME) from None
    except (OSError, EOFError) as error:
        raise InputError(
            f"the service at {host}:{port} cannot be reached: {getattr(error, 'strerror', None) or 'it closed the connection'}. "
            "Check the address, and that the service listens there for machines (setting host)."
        ) from None
    identity = Identity(
        name=name,
        owner=joined.owner,
        host=host,
        port=port,
        gpus=request.gpus,
        gpu_type=request.gpu_type,
        root=str((wish.root or TASKS / name).absolute()),
        rack=joined.rack,
        devices=devices,
        slot=request.slot,
    )
    save(state, identity, authority, joined)
    return identity


async def _ask(host: str, port: int, authority: str, request: Join) -> Joined:
    reader, writer = await asyncio.open_connection(
        host, port, ssl=client_context(authority), server_hostname=SERVER_NAME
    )
    try:
        frames = Frames(reader, writer)
        await frames.say(request)
        answer = await asyncio.wait_for(frames.read_control(), ANSWER_S)
    finally:
        writer.transport.abort()
    if isinstance(answer, Refused):
        raise InputError(answer.reason)
    if not isinstance(answer, Joined):
        raise InputError(f"{host}:{port} answers with {type(answer).__name__}; is the same Themis installed there?")
    return answer


def _gpus(wish: Wish) -> tuple[tuple[str, ...], str]:
    """UUIDs and the type of the machine's GPUs; none where mere slots are wanted."""
    if wish.gpus:
        return (), "gpu"
    found = nvml_gpus()
    kinds = sorted({kind for _, kind in found})
    if len(kinds) > 1 and "gpu_type" not in wish.labels:
        raise InputError(
            f"this machine has GPUs of several types, {', '.join(kinds)}, and joins with one: choose it with --label gpu_type=TYPE."
        )
    kind = wish.labels.get("gpu_type", kinds[0])
    chosen = [device for device, of in found if of == kind] if len(kinds) > 1 else [device for device, _ in found]
    if not chosen:
        raise InputError(f"no GPU of this machine is a {kind}; found {', '.join(kinds)}.")
    return tuple(chosen), kind
