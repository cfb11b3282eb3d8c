"""What GPU time is charged to whom: a fold over the event log, by lease and by day."""
