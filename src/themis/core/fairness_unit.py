"""The unit of fairness: whether apps, users or groups have equal shares, and what an app's weight then is (decision 0020).

    apps      its own weight times its user's and its group's, as it was submitted
    users     its user's times its group's weight, divided among that user's contending apps by their own weights
    groups    its group's weight, divided among the group's users by theirs, and then as above; a user without a group is one

An app contends while it is neither over nor held. Whenever that changes, or the unit does, weights change with it. N_avg of an app
is the mean over its life of (sum of weights / its own), so the integral behind it is brought to the new weight: what it was
until now stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from themis.core.state import State
from themis.errors import UnknownName
from themis.model.events import FairnessSet, UserWeightsSet
from themis.model.settings import BETWEEN
from themis.model.units import Float, Int


def set_unit(state: State, event: FairnessSet) -> None:
    """Set the unit of fairness from now on."""
    if event.between not in BETWEEN:
        raise UnknownName("unit of fairness", event.between, BETWEEN)
    state.between = event.between
    state.groups = groups_of(event)
    reweigh(state)
    t = state.apps
    state.accounts = {}
    for a in state.active_apps().tolist():
        joined(state, a)
        since, weight, capacity, before = state.accounts[int(t.user[a])]
        had = float(t.attained[a] + t.leased[a] * (state.now - t.since[a]))
        state.accounts[int(t.user[a])] = since, weight, capacity, before - had


def set_weights(state: State, event: UserWeightsSet) -> None:
    """The apps of these users that are not over have other weights from now on."""
    t, weights = state.apps, dict(event.users)
    users = {state.users[name]: weight for name, weight in weights.items() if name in state.users}
    for a in state.active_apps().tolist():
        weight = users.get(int(t.user[a]))
        if weight is None:
            continue
        given = float(t.own[a]) * weight
        if t.held[a] and state.between == "apps":
            # Its integral keeps the value from the time of the hold.
            t.contention_0[a] *= given / t.weight[a]
            t.weight[a] = given
        t.given[a] = given
    reweigh(state)


def joined(state: State, a: int) -> None:
    """Account for an app's arrival: a user's account opens with the first app and closes with the last one."""
    t, user = state.apps, int(state.apps.user[a])
    others = state.active_apps()
    if user not in state.accounts or not (t.user[others[others != a]] == user).any():
        state.accounts[user] = state.now, state.weight_integral, state.capacity_integral, 0.0


def left(state: State, a: int) -> None:
    """An app finished: what it received stays in its user's account."""
    user = int(state.apps.user[a])
    since, weight, capacity, before = state.accounts[user]
    state.accounts[user] = since, weight, capacity, before + float(state.apps.attained[a])


def balance(state: State, rows: Int) -> tuple[Float, Float, Float]:
    """GPU-seconds received and entitled to, and GPUs entitled to now, of the user of each app, each [len(rows)].

    The period begins when the first of the user's present apps arrived, or an earlier app that was still active then, and so
    on. The user's present weight is taken to have held all along.
    """
    t, size = state.apps, max(len(state.users), 1)
    active = state.active_apps()
    had = t.attained[active] + t.leased[active] * (state.now - t.since[active])
    received: Float = np.bincount(t.user[active], weights=had, minlength=size).astype(np.float64)
    contend = active[t.held[active] == 0]
    weight: Float = np.bincount(t.user[contend], weights=t.weight[contend], minlength=size).astype(np.float64)
    of_user = t.user[rows]
    account = np.array([state.accounts[u] for u in of_user.tolist()]).reshape(-1, 4)
    elapsed, weights = state.now - account[:, 0], state.weight_integral - account[:, 1]
    capacity, mine = state.capacity_integral - account[:, 2], weight[of_user]
    # Its part of the mean weight in the system, of the mean GPUs in service, for all this time.
    entitled: Float = np.divide(capacity * mine * elapsed, weights, out=np.zeros(len(rows)), where=weights > 0)
    rate: Float = state.capacity * mine / max(state.weight_in_system, 1e-300)
    return received[of_user] + account[:, 3], entitled, rate


def groups_of(event: FairnessSet) -> dict[str, tuple[str, float]]:
    """The group of each user who has one, and the group's weight."""
    return {user: (name, weight) for name, weight, users in event.groups for user in users}


def reweigh(state: State) -> None:
    """Recompute the weights of active apps after arrivals, ends and holds. Weights of other apps stay unchanged."""
    t = state.apps
    rows = state.active_apps()
    rows = rows[t.held[rows] == 0]
    new, old = effective(state, rows), t.weight[rows]
    at = np.flatnonzero(new != old)
    changed = rows[at]
    past = state.weight_integral - t.contention_0[changed]
    t.contention_0[changed] = state.weight_integral - past * (new[at] / old[at])
    t.weight[changed] = new[at]
    state.weight_in_system = float(new.sum())


def effective(state: State, rows: Int) -> Float:
    """[len(rows)], weights of these apps, which are all that contend."""
    t = state.apps
    names = tuple(state.users) if state.between == "groups" else ()
    return weights(state.between, t.given[rows], t.own[rows], t.user[rows], names, state.groups)


def weights(
    between: str, given: Float, own: Float, user: Int, names: Sequence[str], groups: Mapping[str, tuple[str, float]]
) -> Float:
    """Weights of apps that contend, [A], by the unit of fairness.

    Parameters
    ----------
    given : [A], an app's weight times its user's and its group's, as submitted. ``own`` : [A], the app's alone.
    user : [A], numbers of users. ``names`` : of users by number. ``groups`` : each user's group, if any, and its weight.
    """
    if between == "apps" or not len(given):
        return given
    part = own / np.bincount(user, weights=own)[user]
    of_user: Float = given / own
    if between == "groups":
        of_user = _in_groups(names, groups, user, of_user)
    return of_user * part


def _in_groups(names: Sequence[str], groups: Mapping[str, tuple[str, float]], user: Int, of_user: Float) -> Float:
    """[len(user)], the users' parts of their groups' weights; ``of_user`` : a user's weight times its group's, as submitted."""
    numbers: dict[str, int] = {}
    out = of_user.copy()
    known, first = np.unique(user, return_index=True)
    group, whole, weight = [], [], []
    for u, at in zip(known.tolist(), first.tolist()):
        name, of_group = groups.get(names[u], ("", 0.0))
        if name:
            group.append(numbers.setdefault(name, len(numbers)))
            whole.append(of_group)
            weight.append(float(of_user[at]) / of_group)
        else:
            group.append(-1)
            whole.append(0.0)
            weight.append(0.0)
    member, of_member = np.array(group), np.array(weight)
    grouped = member >= 0
    if grouped.any():
        total = np.bincount(member[grouped], weights=of_member[grouped])
        part = np.where(grouped, np.array(whole) * of_member / total[np.maximum(member, 0)], 0.0)
        row = np.searchsorted(known, user)
        out = np.where(grouped[row], part[row], of_user)
    return out
