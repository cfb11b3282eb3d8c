"""The one room for optimisation: problems as arrays in, an answer with a proven gap out, or `NotSolved`.

``programs`` and ``columns`` call HiGHS; ``matrix_game`` and ``fisher_market`` stand alone; ``shares`` (time shares of jobs),
``winners`` (of auctions) and ``rounds`` (of planning windows) each state one problem, in ``problem`` or ``window``. Nothing here
knows what an objective means to apps: bids and payments are in ``auction``, policies' objectives in ``gavel``, what rounds are
worth in ``planning``, finish-time fairness in ``fairness``.
"""

from themis.optimize.programs import MixedIntegerProgram, Solution, solve

__all__ = ["MixedIntegerProgram", "Solution", "solve"]
