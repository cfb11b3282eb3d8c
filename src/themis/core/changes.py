"""Changes to the state when a user changes the settings of a running service (decision 25).

Running leases keep their GPUs and their length. The old policy's plan of rounds and its time-share accounts end with it.
The new policy's reference, if it asks for one, begins with the GPU time that each app has received. The accounts of users
stay: service, integrals and weights are those of the whole log.
"""

from __future__ import annotations

from dataclasses import replace

from themis.core import reference
from themis.core.rounds import Rounds
from themis.core.state import State
from themis.model.events import SettingsChanged
from themis.policies.api import Policy, forecaster_of, make_policy


def policy_of(event: SettingsChanged) -> Policy | None:
    """The policy that holds from then on; None where it stays."""
    return make_policy(event.policy.partition(":")[0], event.params) if event.policy else None


def take(state: State, event: SettingsChanged) -> Policy | None:
    """Settings and policy hold from now on; returns the policy if it is another one."""
    for name, value in event.values.items():
        state.changed[name] = value, state.now, event.user
    if event.settings:
        state.core_settings |= event.settings
        state.settings = replace(state.settings, **event.settings)
    policy = policy_of(event)
    if policy is not None:
        reference.advance(state)
        state.policy = event.policy, dict(event.params)
        state.rounds = Rounds()
        state.drop_plan()
        state.forecaster = forecaster_of(policy)
        reference.keep(state, "reference" in policy.needs)
    return policy
