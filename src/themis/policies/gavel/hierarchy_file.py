"""Hierarchies described in YAML.

    policy: fairness              # between the members: fairness or fifo
    members:
      - name: product
        weight: 2
        policy: fairness          # between its jobs: fairness, fifo or finish_time_fairness
        users: [ann, bob]
      - name: research
        policy: fifo
        users: ["*"]              # everybody who is listed nowhere

An entity has ``members`` or ``users``. Users that no entity lists are an entity of their own next to the root's
members, ``others``, with weight 1 and fairness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from themis.errors import InputError, UnknownName
from themis.model.units import Int
from themis.policies.gavel.hierarchy import Entity, SharingRule
from themis.yaml_text import BadYaml, Document, one_document
from themis.yaml_text import Path as Keys

EVERYBODY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityPlan:
    """An entity as described: names instead of rows."""

    name: str
    rule: SharingRule = SharingRule.FAIRNESS
    weight: float = 1.0
    members: tuple[EntityPlan, ...] = ()
    users: tuple[str, ...] = ()

    def leaves(self) -> Iterator[EntityPlan]:
        """Entities that list users."""
        if not self.members:
            yield self
        for member in self.members:
            yield from member.leaves()

    def entity(self, jobs: Mapping[str, Int]) -> Entity:
        """Build an entity, with the rows of jobs of each leaf, by its name."""
        members = tuple(member.entity(jobs) for member in self.members)
        rows = jobs.get(self.name, np.zeros(0, dtype=np.int64)) if not members else np.zeros(0, dtype=np.int64)
        return Entity(name=self.name, rule=self.rule, weight=self.weight, members=members, jobs=rows)


def read_plan(path: Path) -> EntityPlan:
    """Read a hierarchy.

    Raises
    ------
    InputError : the file cannot be read, or has an invalid entity; the message names it and the expected form.
    """
    try:
        document = one_document(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read hierarchy {str(path)!r}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"cannot read hierarchy {str(path)!r}: it is not text in UTF-8.") from None
    except BadYaml as error:
        where = f", line {error.line}" if error.line else ""
        raise InputError(f"{path}{where}: {error.problem}.") from None
    plan = _plan(document, document.data, (), "root", path)
    if plan.users:
        plan = EntityPlan(name="root", members=(plan,))
    names, seen = [leaf.name for leaf in plan.leaves()], [user for leaf in plan.leaves() for user in leaf.users]
    for kind, values in (("entity", names), ("user", seen)):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise InputError(f"{path}: {kind} {twice[0]!r} is there twice, expected once.")
    if EVERYBODY not in seen and "others" not in names:
        others = EntityPlan(name="others", users=(EVERYBODY,))
        plan = EntityPlan(name=plan.name, rule=plan.rule, weight=plan.weight, members=(*plan.members, others))
    return plan


def by_user(weights: Mapping[str, float]) -> EntityPlan:
    """The plan without a file: every user is an entity of its weight, by name; fairness between and within them."""
    members = (
        EntityPlan(name=f"user {name}", weight=weight, users=(name,)) for name, weight in sorted(weights.items())
    )
    return EntityPlan(name="root", members=tuple(members))


def jobs_of(plan: EntityPlan, user_of_job: Sequence[str], order: Int) -> dict[str, Int]:
    """Rows of jobs of each leaf, by its name, in ``order``."""
    leaf_of = {user: leaf.name for leaf in plan.leaves() for user in leaf.users}
    fallback = leaf_of.get(EVERYBODY, "others")
    rows: dict[str, list[int]] = {}
    for j in order.tolist():
        rows.setdefault(leaf_of.get(user_of_job[j], fallback), []).append(j)
    return {name: np.array(at, dtype=np.int64) for name, at in rows.items()}


def _plan(document: Document, raw: Any, keys: Keys, default: str, path: Path) -> EntityPlan:
    line = document.line(keys)
    where = f"{path}, line {line}" if line else str(path)
    if not isinstance(raw, dict):
        raise InputError(
            f"{where}: entity {default!r} is {raw!r}, expected name, weight, policy, and members or users."
        )
    name = _name(document, raw.get("name", default), (*keys, "name"), f"{where}: name of entity {default!r}")
    known = ("name", "weight", "policy", "members", "users")
    for key in raw:
        if key not in known:
            raise UnknownName(f"key of entity {name!r} in {where}", str(key), known)
    rule, weight = str(raw.get("policy", SharingRule.FAIRNESS)), raw.get("weight", 1.0)
    if rule not in set(SharingRule):
        raise UnknownName(f"policy of entity {name!r} in {where}", rule, [str(r) for r in SharingRule])
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < float("inf"):
        raise InputError(f"{where}: entity {name!r} has weight {weight!r}, expected a number above 0.")
    members, users = raw.get("members", []), raw.get("users", [])
    if not isinstance(members, list) or not isinstance(users, list) or bool(members) == bool(users):
        raise InputError(f"{where}: entity {name!r} needs a list of either members or users.")
    if members and rule == SharingRule.FINISH_TIME_FAIRNESS:
        raise InputError(f"{where}: entity {name!r} shares between entities by {rule}, which is for users' jobs only.")
    return EntityPlan(
        name=name,
        rule=SharingRule(rule),
        weight=float(weight),
        members=tuple(
            _plan(document, member, (*keys, "members", i), f"{name}.{i + 1}", path) for i, member in enumerate(members)
        ),
        users=tuple(
            _name(document, user, (*keys, "users", i), f"{where}: a user of entity {name!r}")
            for i, user in enumerate(users)
        ),
    )


def _name(document: Document, value: Any, keys: Keys, what: str) -> str:
    """A name as written: ``007`` and ``true`` are valid user names."""
    text = document.texts.get(keys, value) if value is not None else value
    if not isinstance(text, str) or not text:
        raise InputError(f"{what} is {value!r}, expected a name.")
    return text
