"""Planning over rounds: what each job is worth after so many rounds, in which rounds it runs, and promises (Shockwave §6)."""
