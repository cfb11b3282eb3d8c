"""The partial-allocation auction of Themis (§3.3): bids in, winners, machines and hidden payments out."""

from themis.auction.bids import ANYWHERE, MACHINE, RACK, Bids, Offer
from themis.auction.clear import clear
from themis.auction.outcome import Limits, Outcome

__all__ = ["ANYWHERE", "MACHINE", "RACK", "Bids", "Limits", "Offer", "Outcome", "clear"]
