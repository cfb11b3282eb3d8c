"""Planning over rounds: what each job is worth after so many rounds, how many it gets, and in which rounds (Shockwave §6)."""
