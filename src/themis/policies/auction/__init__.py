"""The partial-allocation auction of Themis (§3.3): bids in, winners, machines and hidden payments out."""

from themis.model.bids import ANYWHERE, MACHINE, RACK, Bids
from themis.optimize.winners.auction_problem import Supply
from themis.optimize.winners.work_limits import Limits
from themis.policies.auction.clearing import clear
from themis.policies.auction.outcome import Outcome
from themis.policies.auction.payment import FORMS, PaidGrant, pay

__all__ = ["ANYWHERE", "FORMS", "MACHINE", "RACK", "Bids", "Limits", "Outcome", "PaidGrant", "Supply", "clear", "pay"]
