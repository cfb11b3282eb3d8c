"""The training library without a framework: loops that resume, agree, report and stop in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from themis.machines.agent.tasks import as_report
from themis.train import PREEMPTED, Checkpoints, Run
from themis.train.checkpoints import newest, replace
from themis.train.world import World


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """A run listens for SIGTERM; tests leave no handler behind."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Sum:
    """A state that remembers which steps it saw."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.seen))

    def load(self, path: Path) -> None:
        self.seen = json.loads(path.read_text())


def run(state: Sum, folder: Path, **more: Any) -> Run:
    """A run that saves this state."""
    return Run(state.save, state.load, checkpoints=folder, **more)


def stop_at(number: int) -> Callable[[int], None]:
    """Sends this process SIGTERM when it gets there."""
    return lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == number else None


def train(folder: Path, total: int, each: Callable[[int], None] = lambda step: None, **more: Any) -> list[int]:
    """A step loop; returns the steps that were done over all attempts."""
    state = Sum()
    for step in run(state, folder, **more).steps(total):
        state.seen.append(step)
        each(step)
    return state.seen


def test_a_preempted_loop_saves_at_once_and_goes_on_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        train(tmp_path, 10, stop_at(3))
    assert end.value.code == PREEMPTED == 143
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert latest[1]["step"] == 4
    assert train(tmp_path, 10) == list(range(10))
    assert train(tmp_path, 10) == list(range(10)), "a finished run does nothing more"


def test_a_loop_may_go_on_after_its_preemption_to_clean_up_by_itself(tmp_path: Path) -> None:
    state = Sum()
    mine = run(state, tmp_path, leave=False)
    for step in mine.steps(10):
        state.seen.append(step)
        stop_at(5)(step)
    assert (mine.preempted, mine.step) == (True, 6)


def test_the_stop_file_is_heeded_where_no_signal_comes_through(tmp_path: Path) -> None:
    world = World(run_dir=tmp_path, checkpoint_dir=tmp_path / "c")
    with pytest.raises(SystemExit):
        train(tmp_path / "c", 10, lambda step: (tmp_path / "stop").touch() if step == 2 else None, world=world)
    assert train(tmp_path / "c", 5) == [0, 1, 2, 3, 4]


def test_ranks_that_would_write_one_checkpoint_are_refused_before_they_train(tmp_path: Path) -> None:
    for rank in range(4):
        with pytest.raises(RuntimeError, match="4 ranks would write the same checkpoint"):
            train(tmp_path, 3, world=World(rank=rank, world_size=4), everywhere=True)
    assert train(tmp_path, 3, world=World(world_size=4), everywhere=True, agree=lambda values: values) == [0, 1, 2]


def test_the_target_ends_a_loop_and_is_reported_once_it_is_saved(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    world = World(run_dir=tmp_path, target=4.0)
    assert train(tmp_path / "c", 10, world=world) == [0, 1, 2, 3]
    last = json.loads((tmp_path / "reports" / "reports.jsonl").read_text().splitlines()[-1])
    assert (last["steps"], last["saved"], last["reached"]) == (4, 4, True)


def batches_of(folder: Path, loader: Sequence[Any], epochs: int, cut: int | None = None) -> list[Any]:
    """Batches that a state saw over all attempts, stopping after ``cut`` of this one."""
    state = Sum()
    for done, batch in enumerate(run(state, folder).batches(loader, epochs), start=1):
        state.seen.append(batch)
        if done == cut:
            os.kill(os.getpid(), signal.SIGTERM)
    return state.seen


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 8])
def test_a_data_loader_goes_on_in_the_middle_of_an_epoch_with_every_batch_used_once(tmp_path: Path, cut: int) -> None:
    loader = ["a", "b", "c", "d"]
    with pytest.raises(SystemExit):
        batches_of(tmp_path, loader, 3, cut)
    assert batches_of(tmp_path, loader, 3) == loader * 3


def test_with_other_batches_the_same_share_of_the_epoch_is_left(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        batches_of(tmp_path, list("abcd"), 1, 2)
    assert batches_of(tmp_path, list("ABCDEFGH"), 1) == [*"ab", *"EFGH"]


def test_saves_follow_the_clock_and_old_checkpoints_go(tmp_path: Path) -> None:
    train(tmp_path, 6, save_every_s=0.0)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-000000000005", "step-000000000006"]


def lockstep(ranks: int, work: Callable[[int, Any], object]) -> list[object]:
    """Each rank in a thread of its own, agreeing with the others; what it returned, or its error."""
    barrier, shared, out = Barrier(ranks), [[0.0]] * ranks, [object()] * ranks

    def rank(number: int) -> None:
        def agree(values: Sequence[float]) -> Sequence[float]:
            shared[number] = list(values)
            barrier.wait(30)
            maxima = [max(column) for column in zip(*shared)]
            barrier.wait(30)
            return maxima

        try:
            out[number] = work(number, agree)
        except RuntimeError as error:
            out[number] = str(error)

    threads = [Thread(target=rank, args=(n,)) for n in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return out


def test_all_ranks_stop_at_the_same_step_although_one_alone_was_told(tmp_path: Path) -> None:
    ranks, total = 3, 4000

    def loop(rank: int, agree: Any) -> Run:
        state = Sum()
        mine = Run(
            state.save,
            state.load,
            checkpoints=tmp_path,
            agree=agree,
            leave=False,
            check_every_s=0.001,
            world=World(rank=rank, world_size=ranks),
        )
        for step in mine.steps(total):
            if rank == 1 and step == 50:
                mine._signalled = True
        return mine

    runs: list[Any] = lockstep(ranks, loop)
    assert len({mine.step for mine in runs}) == 1
    assert 51 <= runs[0].step < total
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert latest[1]["step"] == runs[0].step, "one checkpoint, by rank 0"


def test_a_loop_of_ones_own_counts_asks_and_reports(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    mine = Run(world=World(run_dir=tmp_path), report_every_s=0.0)
    for step in range(1, 5):
        mine.observe(step, loss=1.0 / step)
        assert not mine.should_preempt()
    os.kill(os.getpid(), signal.SIGTERM)
    assert mine.should_preempt()
    mine.saved()
    with pytest.raises(SystemExit):
        mine.exit()
    rows = [json.loads(line) for line in (tmp_path / "reports" / "reports.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [1, 2, 3, 4, 4]
    assert (rows[-1]["saved"], rows[-1]["loss"]) == (4, 0.25)
    assert any(row.get("step_s", 0) > 0 for row in rows)


@pytest.mark.parametrize("loss", ["low", [0.5, 0.6], {}])
def test_a_loss_that_is_no_number_is_told_where_it_is_reported(loss: object) -> None:
    with pytest.raises(ValueError, match=r"^loss is .*, expected a number or a tensor of one\.$"):
        Run(world=World()).report(loss=loss)


def test_a_child_that_inherited_the_handler_dies_of_the_signal_as_ever(tmp_path: Path) -> None:
    run(Sum(), tmp_path)
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_without_themis_and_without_a_folder_a_loop_just_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("THEMIS_"):
            monkeypatch.delenv(name)
    assert list(Run().steps(3)) == [0, 1, 2]


def test_checkpoints_are_whole_or_not_there(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.write(1, lambda path: path.write_text("one"), {"step": 1})

    def torn(path: Path) -> None:
        path.write_text("tw")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(2, torn, {"step": 2})
    (tmp_path / "step-000000000003").mkdir()
    latest = store.latest()
    assert latest is not None
    assert (latest[0].read_text(), latest[1]["step"]) == ("one", 1)
    store.write(4, lambda path: path.write_text("four"), {"step": 4})
    assert not list(tmp_path.glob(".*")), "what was torn is cleared away"


def test_a_checkpoint_that_lost_a_part_is_passed_over_and_one_that_does_not_load_is_named(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=3)

    def folder(path: Path) -> None:
        (path / "part").mkdir(parents=True)
        (path / "part" / "a").write_text("abc")

    store.write(1, lambda path: path.write_text("[1, 2]"), {"step": 2, "epoch": 0, "batch": 0, "batches": 0})
    for step, damage in ((3, os.unlink), (4, lambda file: os.truncate(file, 2))):
        store.write(step, folder, {"step": step})
        damage(tmp_path / f"step-{step:012d}" / "state" / "part" / "a")
    state = Sum()
    assert list(run(state, tmp_path).steps(2)) == []
    assert state.seen == [1, 2]
    (tmp_path / "step-000000000001" / "state").write_text("no JSON")
    with pytest.raises(ValueError, match="Expecting value") as failed:
        next(run(Sum(), tmp_path).steps(3))
    (note,) = failed.value.__notes__
    assert note.startswith(f"themis.train: {tmp_path / 'step-000000000001'} could not be loaded; remove it")


def test_a_run_killed_while_it_saves_goes_on_from_the_checkpoint_before(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom themis import train\n"
        "def save(path):\n"
        "    path.write_text('x')\n"
        "    if path.parent.name.endswith('03.draft'): os.kill(os.getpid(), 9)\n"
        f"for step in train.Run(save, checkpoints={str(tmp_path)!r}, save_every_s=0).steps(5): pass\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert latest[1]["step"] == 2


def test_importing_the_library_loads_the_standard_library_alone() -> None:
    script = "import sys; before = set(sys.modules); import themis.train; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"themis"}


@pytest.mark.parametrize("name", ["THEMIS_TARGET_STEPS", "THEMIS_GRACE_S"])
def test_the_world_reads_what_the_node_agent_writes(name: str) -> None:
    world = World.read(
        {"RANK": "2", "WORLD_SIZE": "4", name: "12.5", "THEMIS_STOP_SIGNAL": "SIGUSR1", "THEMIS_GPUS": "8"}
    )
    assert (world.rank, world.world_size, world.gpus, world.stop_signal) == (2, 4, 8, signal.SIGUSR1)
    assert 12.5 in (world.target, world.grace_s)


def by_size(state: Sum, folder: Path, want: dict[int, int], *, stop: Callable[[int], None] = lambda step: None) -> Run:
    """A loop over epochs of 24 examples, at 4 a batch until ``want`` says otherwise; it remembers (epoch, examples)."""
    made = run(state, folder, leave=False)
    made.batch_size = 4

    def loader() -> list[range]:
        return [range(i, i + made.batch_size) for i in range(0, 24, made.batch_size)]

    for batch in made.batches(loader, epochs=5):
        state.seen.append([made.epoch, len(batch)])
        made.batch_size = want.get(made.epoch, made.batch_size)
        stop(made.step)
    return made


def test_a_batch_size_that_is_set_counts_from_the_next_epoch_on(tmp_path: Path) -> None:
    state = Sum()
    made = by_size(state, tmp_path, {1: 8, 3: 12})
    assert [len([1 for e, _ in state.seen if e == epoch]) for epoch in range(5)] == [6, 6, 3, 3, 2]
    assert made.epochs == 5.0


def test_a_run_stopped_within_an_epoch_goes_on_at_its_batch_size_and_then_at_the_one_that_was_wanted(
    tmp_path: Path,
) -> None:
    # Step 8 is within epoch 1, in which the script has asked for 8 a batch already.
    first, second, whole = Sum(), Sum(), Sum()
    stopped = by_size(first, tmp_path, {1: 8}, stop=stop_at(7))
    assert stopped.preempted
    assert stopped.epochs == pytest.approx(1 + 2 / 6)
    by_size(second, tmp_path, {})
    by_size(whole, tmp_path / "whole", {1: 8})
    assert second.seen == whole.seen


def test_reports_have_epochs_and_the_batch_size_of_the_ongoing_epoch(tmp_path: Path) -> None:
    (tmp_path / "run" / "reports").mkdir(parents=True)
    world = World(run_dir=tmp_path / "run")
    made = Run(world=world, report_every_s=0.0)
    made.batch_size = 4
    for _ in made.batches(lambda: [range(made.batch_size)] * (8 // made.batch_size), epochs=2):
        made.batch_size = 8
    rows = [json.loads(line) for line in (tmp_path / "run" / "reports" / "reports.jsonl").read_text().splitlines()]
    assert [(row.get("epochs", 0.0), row["batch"]) for row in rows] == [
        (0.0, 4),
        (0.5, 4),
        (1.0, 4),
        (1.0, 8),
        (2.0, 8),
        (2.0, 8),
    ]


def test_a_loop_of_its_own_says_epochs_and_batch_size(tmp_path: Path) -> None:
    (tmp_path / "run" / "reports").mkdir(parents=True)
    made = Run(world=World(run_dir=tmp_path / "run"), report_every_s=1e9)
    made.observe(1, epochs=0.5, batch_size=32)
    made.observe(2, epochs=1.0, batch_size=32)
    made.observe(3, epochs=1.2, batch_size=64)
    rows = [json.loads(line) for line in (tmp_path / "run" / "reports" / "reports.jsonl").read_text().splitlines()]
    assert [(row["epochs"], row["batch"]) for row in rows] == [(0.5, 32), (1.2, 64)]


@pytest.mark.parametrize("shared", [True, False])
def test_ranks_go_on_from_the_same_checkpoint_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setattr("themis.train.run.SAME_TRIES", 3)
    monkeypatch.setattr("themis.train.run.SAME_WAIT_S", 0.05)
    for n in (0, 1):
        Checkpoints(tmp_path / str(n)).write(3, lambda path: path.write_text("[]"), POSITION | {"step": 3})
    Checkpoints(tmp_path / "0").write(7, lambda path: path.write_text("[]"), POSITION | {"step": 7})
    looks = [0]

    class Late(Checkpoints):
        def latest(self) -> Any:
            """Another machine's view, which is late."""
            looks[0] += 1
            return Checkpoints(tmp_path / ("0" if shared and looks[0] > 1 else "1")).latest()

    def work(number: int, agree: Any) -> object:
        mine = Run(
            lambda path: None,
            lambda path: None,
            agree=agree,
            world=World(rank=number, world_size=2),
            checkpoints=Late(tmp_path / "1") if number else Checkpoints(tmp_path / "0"),
        )
        return list(mine.steps(7))

    found = lockstep(2, work)
    if shared:
        assert found == [[], []]
        assert looks[0] >= 2
    else:
        assert ["finds step 7" in str(found[0]), "finds step 3" in str(found[1])] == [True, True]


POSITION = {"epoch": 0, "batch": 0, "batches": 0}


@pytest.mark.parametrize("folder", [False, True])
def test_a_checkpoint_of_either_kind_takes_the_place_of_another_and_is_found_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool
) -> None:
    final, draft = tmp_path / "a.ckpt", tmp_path / ".a.draft"

    def write(text: str) -> None:
        if folder:
            draft.mkdir()
        (draft / "shard" if folder else draft).write_text(text)

    def read() -> str:
        path = newest(final)
        assert path is not None
        return (path / "shard" if folder else path).read_text()

    assert newest(final) is None
    for text in ("one", "two", "three"):
        write(text)
        replace(draft, final)
        assert read() == text
    write("four")
    rename = Path.rename

    def killed(self: Path, target: Path) -> Path:
        if self == draft:
            raise KeyboardInterrupt
        return rename(self, target)

    if folder:
        monkeypatch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            replace(draft, final)
        assert read() == "three"
        monkeypatch.undo()
        replace(draft, final)
        assert read() == "four"
        assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


def test_metrics_of_any_name_and_the_end_of_the_loop_are_reported(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    trained = Run(world=World(run_dir=tmp_path), report_every_s=0.0)
    for step in trained.steps(3):
        trained.report(loss=float("nan"), accuracy=step / 4)
    row = json.loads((tmp_path / "reports" / "reports.jsonl").read_text().splitlines()[-1])
    report = as_report("t", row)
    assert (report.steps, report.total, report.loss) == (3.0, 3.0, None)
    assert {m.name: m.value for m in report.metrics} == {"loss": None, "accuracy": 0.5}, "NaN is seen as no number"
    with pytest.raises(ValueError, match="33 metrics are reported, expected at most 32"):
        trained.report(**{f"m{i}": 1.0 for i in range(31)})
