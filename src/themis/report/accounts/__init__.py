"""GPU time charged to users: a fold over the event log, by lease and by day."""
