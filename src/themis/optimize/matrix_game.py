"""The mixture of columns with the smallest largest entry: a matrix game, by HiGHS and by a simplex method for few rows.

    minimise u;   sum_i w_i use[i, m] <= u for each row m;   sum_i w_i = 1;   w >= 0

Columns come one by one and every solve goes on from the last basis. ``GameProgram`` is the general form, one HiGHS model kept
warm. ``MatrixGame`` takes a few pivots on a matrix of (rows + 1) squared: levels take 1.3 to 2.3 times as long with the general
form (decision 36). It leaves out games of many rows, and falls back on the general form where rounding keeps it from its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from themis.errors import NotSolved
from themis.optimize.column_generation import ColumnProgram
from themis.optimize.programs import Floats

_BETTER, _PIVOT = 1e-13, 1e-12
"""Minimum gain of a column that enters, relative to the largest entry; the smallest pivot that is accepted."""

_FRESH = 20
"""Pivots after which the basis is inverted again; the answer always comes from a new inverse."""

_MOST = 500
"""Pivots of one solve; after half of them the first column that gains enters, which cannot cycle."""


class GameProgram:
    """A game that grows by columns: one HiGHS model, solved again from where it stood."""

    def __init__(self, use: Floats, basis: Sequence[int] = ()) -> None:
        """``use`` : [P, M], P >= 1 columns of M >= 1 rows, >= 0. ``basis`` is not used: HiGHS keeps its own."""
        self.rows = use.shape[1]
        self.use = use[:0]
        self._weight = np.zeros(0)
        self._scale = max(float(use.max()), 1e-300)
        self._program = ColumnProgram(np.append(np.full(self.rows, -np.inf), 1.0), np.append(np.zeros(self.rows), 1.0))
        self._program.add_dense(np.array([-1.0]), np.append(np.full(self.rows, -1.0), 0.0)[None])
        self._program.tighten()
        self.add(use)

    @property
    def basis(self) -> list[int]:
        """Columns of the last mixture."""
        return np.flatnonzero(self._weight > 0).tolist()

    def add(self, use: Floats) -> None:
        """Append a column [M], or several [P, M]."""
        use = np.atleast_2d(use)
        self.use = np.vstack([self.use, use])
        self._program.add_dense(np.zeros(len(use)), np.column_stack([use / self._scale, np.ones(len(use))]))

    def solve(self) -> tuple[float, Floats, Floats]:
        """(least largest entry, weight [P] of each column, dual [M] of each row, summing to 1).

        Raises
        ------
        NotSolved : HiGHS ends without a proven optimum.
        """
        found = self._program.solve()
        weight, dual = np.maximum(found.x[1:], 0.0), np.maximum(found.duals[: self.rows], 0.0)
        self._weight = weight / weight.sum()
        return float((self._weight @ self.use).max()), self._weight, dual / dual.sum()


class MatrixGame:
    """A game that grows by columns, solved again from where it stood."""

    def __init__(self, use: Floats, basis: Sequence[int] = ()) -> None:
        """``use`` : [P, M], P >= 1 columns of M >= 1 rows; ``basis`` : where to begin, that of a game much like this one."""
        self.rows = use.shape[1]
        self.use = use
        self._inverse: Floats | None = None
        """See ``_fresh``."""
        self._begin(list(basis))
        # Weights that are not valid here would spoil every pivot.
        if basis and not self._valid():
            self._begin([])

    @property
    def basis(self) -> list[int]:
        """Columns of the last mixture, and below 0 the rows that it does not fill, counted from the end."""
        return list(self._basis)

    def _valid(self) -> bool:
        try:
            return bool(self._fresh()[1:, -1].min() >= 0.0)
        except np.linalg.LinAlgError:
            return False

    def _fresh(self) -> Floats:
        """The inverse of the basis as it is, without what pivots add up to; kept until the basis changes."""
        if self._inverse is None:
            self._inverse = np.linalg.inv(self._matrix).astype(np.float64, copy=False)
        return self._inverse

    def _begin(self, basis: list[int]) -> None:
        """Initial basis: by default of the first column alone."""
        if not basis:
            top = int(np.argmax(self.use[0]))
            basis = [0, *(m - self.rows for m in range(self.rows) if m != top)]
        # Row m's slack is m - rows, column i is i; the value itself is always in the basis, first.
        self._basis = basis
        self._inverse = None
        self._matrix: Floats = np.zeros((self.rows + 1, self.rows + 1))
        self._matrix[:-1, 0] = -1.0
        for place, i in enumerate(self._basis, start=1):
            self._matrix[:, place] = self._column(i)

    def add(self, use: Floats) -> None:
        """Append a column [M], or several [P, M]."""
        self.use = np.vstack([self.use, use])

    def solve(self) -> tuple[float, Floats, Floats]:
        """(least largest entry, weight [P] of each column, dual [M] of each row, summing to 1).

        Raises
        ------
        NotSolved : no solver comes to its end.
        """
        try:
            return self._improve()
        except (NotSolved, np.linalg.LinAlgError):
            self._begin([])  # once more, without what rounding has left
        try:
            return self._improve()
        except (NotSolved, np.linalg.LinAlgError):
            self._begin([])
            return self._by_program()

    def _by_program(self) -> tuple[float, Floats, Floats]:
        """Columns that differ only by rounding can keep the small simplex from terminating."""
        return GameProgram(self.use).solve()

    def _improve(self) -> tuple[float, Floats, Floats]:
        scale, columns = max(float(self.use.max()), 1e-300), len(self.use)
        enough, age = -_BETTER * scale, _FRESH
        gain = np.empty(columns + self.rows)
        inverse = self._matrix
        for pivot in range(_MOST):
            if age == _FRESH:
                inverse, age = self._fresh(), 0
            dual = -inverse[0, :-1]
            # What a column costs at these prices beyond what the mixture does; a slack costs its row's dual.
            np.dot(self.use, dual, out=gain[:columns])
            gain[:columns] -= inverse[0, -1]
            gain[columns:] = dual * scale
            gain[self._basis] = 0.0  # slacks, below 0, are last
            enters = int(gain.argmin()) if pivot < _MOST // 2 else int((gain < enough).argmax())
            if gain[enters] >= enough:
                if age == 0:
                    return self._read(inverse[:, -1], dual)
                age = _FRESH  # what pivots have added up to is not the answer
                continue
            enters = enters if enters < columns else enters - columns - self.rows
            column = self._column(enters)
            change = inverse @ column
            leaves = self._leaves(inverse[:, -1].tolist(), change.tolist())
            self._basis[leaves - 1] = enters
            self._matrix[:, leaves], self._inverse = column, None
            row = inverse[leaves] / change[leaves]
            inverse -= change[:, None] * row
            inverse[leaves] = row
            age += 1
        raise NotSolved(f"a game of {self.rows} rows and {columns} columns did not end within {_MOST} pivots.")

    def _column(self, i: int) -> Floats:
        out = np.zeros(self.rows + 1)
        if i < 0:
            out[self.rows + i] = 1.0
        else:
            out[:-1], out[-1] = self.use[i], 1.0
        return out

    def _leaves(self, point: list[float], change: list[float]) -> int:
        """Whichever place of the basis reaches 0 first, the largest pivot of equals."""
        steps = [(max(point[i], 0.0) / change[i], -change[i], i) for i in range(1, self.rows + 1) if change[i] > _PIVOT]
        if not steps:
            raise NotSolved(f"a game of {self.rows} rows and {len(self.use)} columns lost its basis to rounding.")
        least = min(steps)[0]
        return min((pivot, i) for step, pivot, i in steps if step <= least + 1e-15)[1]

    def _read(self, point: Floats, dual: Floats) -> tuple[float, Floats, Floats]:
        weight = np.zeros(len(self.use))
        for place, i in enumerate(self._basis, start=1):
            if i >= 0:
                weight[i] = max(float(point[place]), 0.0)
        weight /= weight.sum()
        dual = np.maximum(dual, 0.0)
        return float((weight @ self.use).max()), weight, dual / dual.sum()
