"""The command in this process: exit code, stdout, stderr."""

from __future__ import annotations

import pytest
from command import Command, Ended

from themis.cli import main


@pytest.fixture
def themis(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run ``themis`` with these arguments."""
    monkeypatch.delenv("THEMIS_DEBUG", raising=False)

    def run(*args: object) -> Ended:
        capfd.readouterr()
        code: object = 0
        try:
            main([str(arg) for arg in args])
        except SystemExit as end:
            code = end.code or 0
        said = capfd.readouterr()
        assert isinstance(code, int)
        return Ended(code=code, out=said.out, err=said.err)

    return run
