"""Machine gangs and rack gangs of sizes that divide one another: against complete search, gang by gang."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from themis.optimize.winners.gang_packing import Floor, PackingGang, place, racks_of, spots

STEPS = 100_000

counts = st.lists(st.sampled_from([0, 0, 1, 2]), min_size=4, max_size=4)


@st.composite
def floors(draw: st.DrawFn) -> Floor:
    """A few machines in a few racks, some with GPUs promised to anchored rows."""
    free = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 7, 8]), min_size=1, max_size=8))
    rack = [draw(st.integers(0, 2)) for _ in free]
    room = [sum(f for f, x in zip(free, rack) if x == y) for y in range(3)]
    room = [max(0, r - draw(st.sampled_from([0, 0, 0, 1, 2, 5]))) for r in room]
    return Floor(machines=[n for n, f in enumerate(free) if f], free=free, rack=rack, room=room)


@settings(max_examples=300, deadline=None)
@given(floor=floors(), sizes=st.sampled_from([(16, 8, 4, 2), (8, 4, 2), (16, 4), (6, 2)]), local=counts, racked=counts)
def test_shares_are_found_exactly_when_the_gangs_pack(
    floor: Floor, sizes: tuple[int, ...], local: list[int], racked: list[int]
) -> None:
    wants = [(s, k, among) for among, side in ((False, local), (True, racked)) for s, k in zip(sizes, side)]
    gangs = [PackingGang(row=0, size=s, racked=among) for s, k, among in wants for _ in range(k)]
    gangs.sort(key=lambda g: (-g.size, g.racked))
    asked = [tuple(side[: len(sizes)]) for side in (local, racked)]
    shares = racks_of(floor, sizes).share(asked[0], asked[1], STEPS)
    assert shares is not None
    assert isinstance(shares, list) == isinstance(place(floor, gangs, STEPS), list)
    if isinstance(shares, list):
        free, room = list(floor.free), list(floor.room)
        for g, spot in zip(gangs, spots(floor, gangs, sizes, shares)):
            if not g.racked:
                free[spot] -= g.size
            room[spot if g.racked else floor.rack[spot]] -= g.size
        assert min(free) >= 0
        assert min(room) >= 0


def test_without_steps_nothing_is_told() -> None:
    floor = Floor(machines=[0], free=[4], rack=[0], room=[4])
    assert racks_of(floor, (2,)).share((1,), (0,), 0) is None
