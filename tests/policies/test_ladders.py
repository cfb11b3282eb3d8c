"""Into which gangs an app would split an offer: what more GPUs than all jobs can use add."""

from __future__ import annotations

import pytest

from themis.policies.tuning.ladders import Splits, alike, ladder


def rows(splits: Splits) -> list[tuple[tuple[int, int], ...]]:
    out, gangs = [], list(zip(splits.size.tolist(), splits.count.tolist()))
    for n in splits.gangs.tolist():
        out.append(tuple(gangs[:n]))
        del gangs[:n]
    return out


@pytest.mark.parametrize(("small", "large", "jobs"), [(1, 1, 5), (1, 4, 3), (2, 4, 7), (4, 4, 1), (1, 8, 40)])
def test_an_offer_beyond_what_all_jobs_can_use_is_as_good_as_that(small: int, large: int, jobs: int) -> None:
    enough = alike(small, large, jobs, jobs * large, 64)
    more = alike(small, large, jobs, 10 * jobs * large, 64)
    assert rows(enough.every) == rows(more.every)
    assert rows(enough.every)[0] == ((small, 1),)
    for split in rows(enough.every):
        assert sum(count for _, count in split) <= jobs
        assert all(small <= size <= large for size, _ in split)


def test_candidates_are_those_with_a_larger_gang_and_those_without() -> None:
    found = alike(1, 4, 6, 24, 64)
    assert sorted(rows(found.large) + rows(found.small)) == sorted(rows(found.every))
    assert all(max(split)[0] > 1 for split in rows(found.large))
    assert found.every.largest == 4


def test_an_offer_that_holds_no_gang_has_no_candidates() -> None:
    assert alike(4, 4, 3, 3, 64).every.rows == 0


def test_a_ladder_begins_at_one_ends_at_the_most_and_rises() -> None:
    for most in (1, 5, 64, 1000):
        steps = ladder(most, 21)
        assert steps[0] == 1
        assert steps[-1] == most
        assert steps == sorted(set(steps))
        assert len(steps) <= 22
