"""Number of rounds of a window for each job: a multiple-choice knapsack with a makespan term, to a proven gap."""
