"""Planning over rounds: each job's worth by its number of rounds, assignment to rounds, promises (Shockwave §6)."""
