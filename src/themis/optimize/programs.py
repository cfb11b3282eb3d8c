"""Linear and integer programs in HiGHS, called directly: arrays in, a solution and a proven bound out.

One thread, a fixed seed, and limits on nodes and simplex iterations: the same arrays give the same answer on any
machine. Only the live service limits seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from themis.errors import NotSolved

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedIntegerProgram:
    """Maximise ``gain @ x`` subject to ``row_low <= A x <= row_high`` and ``low <= x <= high``.

    Attributes
    ----------
    gain, low, high
        Shape [X].
    whole
        Shape [X], true where x must be whole.
    row_low, row_high
        Shape [M]; infinite where a side is open.
    start, column, value
        The matrix by rows (CSR): shapes [M + 1], [nonzeros], [nonzeros].
    """

    gain: Floats
    low: Floats
    high: Floats
    whole: Bools
    row_low: Floats
    row_high: Floats
    start: Ints
    column: Ints
    value: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """The best point found.

    Attributes
    ----------
    x
        Shape [X]; whole variables are rounded.
    objective, bound
        ``objective <= optimum <= bound``.
    duals
        Shape [M], price of each row (>= 0 for a binding upper side); zeros for an integer program.
    nodes
        Branch-and-bound nodes used.
    """

    x: Floats
    objective: float
    bound: float
    duals: Floats
    nodes: int


def solve(
    program: MixedIntegerProgram,
    *,
    gap: float,
    nodes: int,
    accept: float,
    start: Floats | None = None,
    off: tuple[str, ...] = (),
    seconds: float = np.inf,
    seed: int = 0,
) -> Solution:
    """Solve to the absolute `gap`, within `nodes` branch-and-bound nodes.

    Parameters
    ----------
    program
        What to maximise.
    gap
        Absolute gap at which to stop; >= 0.
    nodes
        Most branch-and-bound nodes; >= 1.
    accept
        Largest absolute gap that the caller takes when the limit ends the search; >= `gap`.
    start
        Shape [X], a feasible point to begin from.
    off
        Options of HiGHS to turn off: parts of its search that do not pay on the caller's programs.
    seconds
        Wall time after which to stop with the best point found.
    seed
        Of HiGHS' own choices; equal seeds search equally.

    Raises
    ------
    NotSolved
        When no point is found, or the proven gap is above `accept`.
    """
    highs = Silent()  # type: ignore[no-untyped-call]
    for name, value in (
        ("threads", 1),
        ("parallel", "off"),
        ("random_seed", seed),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", gap),
        ("mip_max_nodes", nodes),
        ("mip_heuristic_run_feasibility_jump", False),  # a quarter of the time of small programs, and no gain there
    ):
        highs.setOptionValue(name, value)
    for name in off:
        highs.setOptionValue(name, "off" if name == "presolve" else False)
    if seconds < np.inf:
        highs.setOptionValue("time_limit", seconds)
    highs.passModel(_model(program))
    if start is not None:
        hint = highspy.HighsSolution()
        hint.col_value = start.tolist()
        highs.setSolution(hint)
    highs.run()
    return _read(highs, program, accept)


class Silent(highspy.Highs):
    """HiGHS that prints nothing: from version 1.16 on it introduces itself as soon as callbacks are enabled."""

    def enableCallbacks(self) -> None:  # its own name
        """Called as it is made."""
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def _model(program: MixedIntegerProgram) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = program.gain.size, program.row_low.size
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.gain, program.low, program.high
    lp.row_lower_, lp.row_upper_ = program.row_low, program.row_high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = program.start, program.column, program.value
    if program.whole.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[w] for w in program.whole.tolist()]
    return lp


def _read(highs: highspy.Highs, program: MixedIntegerProgram, accept: float) -> Solution:
    status, info = highs.getModelStatus(), highs.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        raise NotSolved(f"HiGHS found no feasible point: {highs.modelStatusToString(status)}; raise the node limit.")
    point = highs.getSolution()
    x = np.asarray(point.col_value)
    whole = bool(program.whole.any())
    objective = float(info.objective_function_value)
    if whole:
        bound, duals = max(objective, float(info.mip_dual_bound)), np.zeros(program.row_low.size)
        x = np.where(program.whole, np.rint(x), x)
    elif status == highspy.HighsModelStatus.kOptimal:
        bound, duals = objective, np.asarray(point.row_dual)
    else:
        bound, duals = np.inf, np.asarray(point.row_dual)
    if bound - objective > accept:
        raise NotSolved(
            f"HiGHS stopped ({highs.modelStatusToString(status)}) with a gap of {bound - objective:.3g}, "
            f"accepted is {accept:.3g}; raise the node limit or accept a larger gap."
        )
    return Solution(x=x, objective=objective, bound=bound, duals=duals, nodes=max(0, int(info.mip_node_count)))
