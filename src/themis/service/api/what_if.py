"""A what-if of the running service, answered by a separate process: simulations take seconds of CPU time.

As a program: one line of JSON and then the state on standard input, the answer as JSON on standard output; exit code 2 and a
sentence on standard error where the question does not fit the state.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from themis.core.state import State
from themis.errors import InputError, ThemisError
from themis.model.units import Seconds
from themis.schema import messages as schema
from themis.service.api.submission import Limit
from themis.service.engine.kept_copies import journal_of
from themis.service.engine.present import of_journal
from themis.sim import dump
from themis.sim.forward import question
from themis.sim.forward.answer import answer
from themis.sim.forward.question import CURRENT, HORIZON_S, Question

NICENESS = 10
"""The service and its jobs come first."""
SIMULATE_S, LEARN_S = 8.0, 4.0
"""Time limits of a question's simulations, and of those of the past that calibrate intervals."""
LONGEST_S = 180.0
"""Maximum seconds that the process runs before it is terminated."""
SIMULATIONS, MOST_SIMULATIONS = 20, 100
MOST_NAMED = 16
"""Maximum number of policies, and of machines or apps, in a request."""
MOST_APPS = 2000


def question_of(request: schema.WhatIfRequest) -> Question:
    """The question in a request.

    Raises
    ------
    InputError : a number is out of range.
    """
    if not 0 <= request.simulations <= MOST_SIMULATIONS:
        raise InputError(f"simulations is {request.simulations}, expected 0 (for {SIMULATIONS}) to {MOST_SIMULATIONS}.")
    for name in ("policies", "add_gpus", "remove", "without"):
        if len(getattr(request, name)) > MOST_NAMED:
            raise InputError(f"{name} has {len(getattr(request, name))} entries, expected at most {MOST_NAMED}.")
    return Question(
        policies=tuple(request.policies) or (CURRENT,),
        add=tuple(request.add_gpus),
        remove=tuple(request.remove),
        without=tuple(request.without),
        horizon_s=request.horizon_s or HORIZON_S,
        seeds=range(request.simulations or SIMULATIONS),
        arrivals=not request.no_arrivals,
    )


def check(state: State, asked: Question) -> None:
    """Refuse what does not fit the state before a process is started for it; changes nothing.

    Raises
    ------
    InputError, UnknownName : as ``sim.forward.answer.answer``.
    """
    if not state.apps.active[: state.apps.size].any():
        raise InputError("no app is in the system, so there is nothing to forecast.")
    question.check_policies(state, asked.policies)
    question.changes(state, asked)


def ask(home: Path, state: bytes, now: Seconds, asked: Question) -> dict[str, Any]:
    """The answer, as ``Answer.to_dict`` has it.

    Parameters
    ----------
    state : a dump, ``now`` : its instant in seconds of the journal.

    Raises
    ------
    InputError : the question does not fit the state. ``Limit`` : it takes too long.
    """
    given = json.dumps({"home": str(home), "now": now, "asked": {**asdict(asked), "seeds": list(asked.seeds)}})
    command = [sys.executable, "-P", "-m", "themis.service.api.what_if"]
    try:
        done = subprocess.run(
            command, input=given.encode() + b"\n" + state, capture_output=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Limit(
            f"the what-if took longer than {LONGEST_S:g} s. Ask for fewer policies, or a shorter horizon."
        ) from None
    if done.returncode == 2:
        raise InputError(done.stderr.decode(errors="replace").strip())
    if done.returncode != 0:
        raise RuntimeError(f"the what-if ended with exit code {done.returncode}: {done.stderr[-500:]!r}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def reply(found: dict[str, Any], epoch: Seconds, user: str | None) -> schema.WhatIfReply:
    """The answer as a message; ``user`` : owner of the shown apps, None for all."""
    out = schema.WhatIfReply(
        now=epoch + found["now"],
        cases=[schema.WhatIfCase(**case) for case in found["cases"]],
        **{
            name: found[name]
            for name in ("policy", "changes", "horizon_s", "simulations", "arrivals", "basis", "columns", "calibrated")
        },
    )
    for app in found["apps"]:
        if user in (None, app["user"]):
            times = [schema.WhatIfTimes(**one) for one in app["forecasts"]]
            row = schema.WhatIfApp(
                app=app["app"], name=app["name"], user=app["user"], state=app["state"], forecasts=times
            )
            out.apps.append(row)
    return out


def main() -> int:
    """Answer one question."""
    os.nice(NICENESS)
    given = json.loads(sys.stdin.buffer.readline())
    state = dump.parse(sys.stdin.buffer.read())
    try:
        with journal_of(Path(given["home"])) as journal:
            present = of_journal(journal, now=given["now"], state=state)
        found = answer(present, Question(**given["asked"]), allowed_s=SIMULATE_S, learn_s=LEARN_S, most_apps=MOST_APPS)
    except ThemisError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found.to_dict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
