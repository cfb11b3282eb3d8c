"""Text that only the holder of a key can read, and that cannot be changed: AES-GCM with a random nonce."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE = 12
"""Bytes of the nonce, as AES-GCM has it."""


class Broken(ValueError):
    """The text was changed, or sealed with another key or for another purpose."""


def key_of(secret: str, purpose: str) -> bytes:
    """A key from a random secret of at least 128 bits; another one for each purpose."""
    return hashlib.sha256(f"themis {purpose}\0{secret}".encode(errors="surrogatepass")).digest()


def seal(key: bytes, purpose: str, value: dict[str, Any]) -> str:
    """A value as text for addresses and cookies."""
    nonce = os.urandom(NONCE)
    data = AESGCM(key).encrypt(nonce, json.dumps(value).encode(), purpose.encode())
    return base64.urlsafe_b64encode(nonce + data).decode().rstrip("=")


def unseal(key: bytes, purpose: str, text: str) -> dict[str, Any]:
    """The value.

    Raises
    ------
    Broken : this key and this purpose did not seal it.
    """
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        value: dict[str, Any] = json.loads(AESGCM(key).decrypt(data[:NONCE], data[NONCE:], purpose.encode()))
    except (ValueError, binascii.Error, InvalidTag):
        raise Broken("the text was not sealed here") from None
    return value
