"""Forecasts of unknown quantities: the time that dynamic jobs stay at each batch size (Shockwave §5)."""
