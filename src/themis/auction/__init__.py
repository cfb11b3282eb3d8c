"""The partial-allocation auction of Themis (§3.3): bids in, winners, machines and hidden payments out."""

from themis.auction.clearing import clear
from themis.auction.outcome import Outcome
from themis.auction.payment import FORMS, PaidGrant, pay
from themis.model.bids import ANYWHERE, MACHINE, RACK, Bids
from themis.optimize.winners.limits import Limits
from themis.optimize.winners.problem import Supply

__all__ = ["ANYWHERE", "FORMS", "MACHINE", "RACK", "Bids", "Limits", "Outcome", "PaidGrant", "Supply", "clear", "pay"]
