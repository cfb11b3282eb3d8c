"""A GPU type that no machine has is refused with those that there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import request, world

from themis.errors import InputError
from themis.service.api.submission import submit


def test_a_type_that_no_machine_has_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with world(tmp_path, 4) as w:
        asked = request("x")
        asked.jobs[0].gpu_types.append("A100")
        (kind,) = w.arbiter.state.gpu_types
        with pytest.raises(
            InputError, match=f"'j0' asks for a GPU of type A100, which no machine has. The machines have {kind}"
        ):
            w.ask(lambda a: submit(a, asked))
        asked.jobs[0].gpu_types.append(kind)
        w.ask(lambda a: submit(a, asked))
