"""How many rounds of a window each job gets: a multiple-choice knapsack with a makespan term, to a proven gap."""
