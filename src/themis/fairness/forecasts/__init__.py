"""Forecasting of what is not yet known: how long dynamic jobs stay at each batch size (Shockwave §5)."""
