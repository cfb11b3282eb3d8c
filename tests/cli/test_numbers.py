"""Numbers and names that no message to the arbiter can carry."""

from __future__ import annotations

import pytest

from themis.client.client import Client
from themis.errors import InputError


def test_what_no_message_can_carry_is_named() -> None:
    with Client(address="127.0.0.1:1", token="t", timeout_s=0.1) as client:
        with pytest.raises(InputError, match=r"gpus_min is 99999999999, expected a whole number from 1 to 1000000\.$"):
            client.run(["true"], gpus=99999999999, hours=1)
        with pytest.raises(InputError, match=r" retries is 99999999999,"):
            client.run(["true"], retries=99999999999)
        with pytest.raises(InputError, match=r" job is 99999999999,"):
            list(client.logs("a", job=99999999999))
        with pytest.raises(InputError, match=r"app has text that is not UTF-8\.$"):
            client.show("\udcff")
