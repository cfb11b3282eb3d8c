"""A linear program that grows by columns and is solved again from where it stood: one HiGHS model, kept warm.

For column generation: the rows are fixed, columns come in batches, prices of the rows come back.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from themis.errors import NotSolved
from themis.optimize.programs import Floats, Ints, Silent

_ROUGH = 1e-2
"""Relative complementarity at which a rough solve ends."""

_PIVOTS, _ROWS, _NO_LIMIT = 3, 400, 2**31 - 1
"""Limit of pivots from the last basis, per row, with a minimum of rows; beyond it a program is solved from scratch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Optimum:
    """An optimal point with its prices.

    Attributes
    ----------
    x
        Shape [X], in the order in which columns were added.
    objective
        Its value, which the prices prove.
    duals
        Shape [M], price of each row: >= 0 where its upper side binds, <= 0 where its lower side does.
    """

    x: Floats
    objective: float
    duals: Floats


class ColumnProgram:
    """Maximise ``gain @ x`` subject to ``row_low <= A x <= row_high`` and ``x >= 0``, with A given column by column.

    Parameters
    ----------
    row_low, row_high
        Shape [M]; infinite where a side is open.
    interior
        Solve the first time by interior points with crossover: quicker than simplex from nothing on large programs.
    """

    def __init__(self, row_low: Floats, row_high: Floats, *, interior: bool = False) -> None:
        self._highs = Silent()  # type: ignore[no-untyped-call]
        for name, value in (
            ("threads", 1),
            ("parallel", "off"),
            ("random_seed", 0),
            ("primal_feasibility_tolerance", 1e-9),
        ):
            self._highs.setOptionValue(name, value)
        self._cold = "ipm" if interior else "simplex"
        if not interior:
            self._highs.setOptionValue("presolve", "off")
        self._rows = (np.array(row_low, dtype=np.float64), np.asarray(row_high, dtype=np.float64))
        self.columns = 0
        self._tight, self._first = False, True
        self._given: dict[int, Floats] = {}

    def add(self, gain: Floats, matrix: csc_array) -> None:
        """Add columns: gains [B], and the matrix [M, B]."""
        matrix.sort_indices()
        self._add(gain, matrix.indptr, matrix.indices, matrix.data)

    def add_dense(self, gain: Floats, columns: Floats) -> None:
        """Add columns without zeros: gains [B], and the columns [B, M]."""
        count, rows = columns.shape
        self._add(gain, rows * np.arange(count + 1), np.tile(np.arange(rows), count), columns.ravel())

    def _add(self, gain: Floats, start: Ints, index: Ints, value: Floats) -> None:
        count = len(gain)
        if not self.columns:
            lp = highspy.HighsLp()
            lp.num_col_, lp.num_row_ = count, len(self._rows[0])
            lp.sense_ = highspy.ObjSense.kMaximize
            lp.col_cost_, lp.col_lower_, lp.col_upper_ = gain, np.zeros(count), np.full(count, np.inf)
            lp.row_lower_, lp.row_upper_ = self._rows
            lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
            lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = start, index, value
            self._highs.passModel(lp)
        else:
            self._highs.addCols(
                count,
                np.asarray(gain, dtype=np.float64),
                np.zeros(count),
                np.full(count, np.inf),
                len(value),
                start[:-1].astype(np.int32),
                index.astype(np.int32),
                value,
            )
        self.columns += count

    def change_column(self, column: int, rows: Ints, values: Floats) -> None:
        """Give one column other coefficients in these rows, each time in the same ones."""
        known = self._given.get(column)
        changed = np.ones(len(rows), dtype=bool) if known is None or len(known) != len(values) else known != values
        for row, value in zip(rows[changed].tolist(), values[changed].tolist()):
            self._highs.changeCoeff(int(row), column, float(value))
        self._given[column] = np.array(values)

    def change_gains(self, columns: Ints, gains: Floats) -> None:
        """Give these columns other gains."""
        for column, gain in zip(columns.tolist(), gains.tolist()):
            self._highs.changeColCost(column, gain)

    def change_low(self, rows: Ints, low: Floats) -> None:
        """Give these rows other lower sides."""
        sides = self._rows[0]
        for row, value in zip(rows.tolist(), low.tolist()):
            if sides[row] != value:
                self._highs.changeRowBounds(row, value, float(self._rows[1][row]))
        sides[rows] = low

    def drop(self, may: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Delete those of these columns, shape [X], that are not in the basis; returns the mask of deleted ones."""
        basic = highspy.HighsBasisStatus.kBasic
        gone = np.asarray(may & np.array([status != basic for status in self._highs.getBasis().col_status]))
        at = np.flatnonzero(gone).astype(np.int32)
        if len(at):
            self._highs.deleteCols(len(at), at)
            self.columns -= len(at)
        return gone

    def refresh(self) -> None:
        """Discard the state of earlier solves except the basis: the next one factors it again, without old rounding."""
        basis = self._highs.getBasis()
        self._highs.clearSolver()
        self._highs.setBasis(basis)

    def tighten(self) -> bool:
        """Ask for prices as exact as can be had from now on, which is slower; false where they are already."""
        done, self._tight = self._tight, True
        self._highs.setOptionValue("dual_feasibility_tolerance", 1e-10)
        self._highs.setOptionValue("primal_feasibility_tolerance", 1e-10)
        return not done

    def solve_roughly(self) -> Optimum:
        """A point near the optimum by interior points, before the first exact solve: neither it nor its prices are exact.

        Prices are in the middle of those that may be right: as prices to generate columns at they are better than a corner's.

        Raises
        ------
        NotSolved
            When HiGHS ends without prices.
        """
        for name, value in (("solver", "ipm"), ("run_crossover", "off"), ("ipm_optimality_tolerance", _ROUGH)):
            self._highs.setOptionValue(name, value)
        self._highs.clearSolver()
        self._highs.run()
        for name, value in (("run_crossover", "on"), ("ipm_optimality_tolerance", 1e-8)):
            self._highs.setOptionValue(name, value)
        found = self._read()
        self._highs.clearSolver()
        if len(found.duals) != len(self._rows[0]) or not np.isfinite(found.duals).all():
            raise NotSolved("HiGHS ended a linear program by interior points without prices.")
        return found

    def solve(self) -> Optimum:
        """Solve to optimality, from the last basis if there is one.

        Raises
        ------
        NotSolved
            When HiGHS ends without a proven optimum.
        """
        limit = _NO_LIMIT if self._first else _PIVOTS * max(len(self._rows[0]), _ROWS)
        self._highs.setOptionValue("solver", self._cold if self._first else "simplex")
        self._highs.setOptionValue("simplex_iteration_limit", limit)
        self._first = False
        self._highs.run()
        status = self._highs.getModelStatus()
        if status == highspy.HighsModelStatus.kIterationLimit:
            # Rounding can keep the simplex method from its end: once more, from nothing.
            self._highs.clearSolver()
            self._highs.setOptionValue("simplex_iteration_limit", _NO_LIMIT)
            self._highs.run()
            status = self._highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise NotSolved(
                f"HiGHS ended a linear program as {self._highs.modelStatusToString(status)}, expected optimal."
            )
        return self._read()

    def _read(self) -> Optimum:
        point = self._highs.getSolution()
        return Optimum(
            x=np.asarray(point.col_value),
            objective=float(self._highs.getInfo().objective_function_value),
            duals=np.asarray(point.row_dual),
        )
