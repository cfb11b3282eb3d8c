"""Placeholders such as ``{lr}`` in commands, variables and folders, filled for each job of an array or a sweep.

``{name}`` is the app's name, ``{index}`` the job's number, the others are parameters. ``{{`` and ``}}`` stand for braces;
``${VAR}`` and braces around anything but a name stay unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

from themis.faults import did_you_mean
from themis.jobs.file_errors import Findings
from themis.jobs.readers import RESERVED
from themis.jobs.spec import Submission, Trial, Value

_PLACE = re.compile(r"\$\{[^}]*\}|\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")


def place(text: str, name: str, trial: Trial) -> str:
    """The text with its placeholders filled."""
    values = {**{key: shown(value) for key, value in trial.parameters.items()}, "index": str(trial.index), "name": name}

    def fill(found: re.Match[str]) -> str:
        if found[1]:
            return values[found[1]]
        return found[0][0] if found[0] in ("{{", "}}") else found[0]

    return _PLACE.sub(fill, text)


def shown(value: Value) -> str:
    """A parameter's value in a command: text unchanged, true, false and numbers as in JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def parameter_env(spec: Submission, trial: Trial) -> dict[str, str]:
    """Additional environment variables of a job of an array or a sweep."""
    if spec.kind == "job":
        return {}
    out = {"THEMIS_INDEX": str(trial.index)}
    if trial.parameters:
        out["THEMIS_PARAMS"] = json.dumps(dict(trial.parameters))
        out |= {f"THEMIS_PARAM_{name.upper()}": shown(value) for name, value in trial.parameters.items()}
    return out


def check_places(
    command: tuple[str, ...], env: Mapping[str, str], folder: str, parameters: Collection[str], findings: Findings
) -> None:
    """Add a fault for every unknown placeholder."""
    known = [*parameters, *RESERVED]
    for key, texts in (("command", command), ("env", env.values()), ("checkpoint_dir", (folder,))):
        for text in texts:
            for found in _PLACE.finditer(text):
                if found[1] and found[1] not in known:
                    findings.add(
                        (key,),
                        f"key {key!r}: unknown placeholder {found[0]!r}.{did_you_mean(found[1], known)} Known: "
                        f"{', '.join(sorted(known))}; write {{{{ and }}}} for literal braces.",
                    )
