"""``Run``: a step loop or a data loader that resumes, reports, and stops in time.

Every rank runs the same loop. From time to time all agree on whether to save or to stop (``agree``): about once in
``check_every_s``, at a step that they all know from the last agreement, so that the check costs nothing in between.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from themis.train.agree import Agree, alone, over_torch, process_group
from themis.train.checkpoints import Checkpoints
from themis.train.trackers import RUN_ID, TRACKERS, run_ids
from themis.train.world import World

PREEMPTED = 143
"""Exit code of a run that saved and stopped because it was preempted (128 + SIGTERM)."""

MOST_METRICS = 32
"""Metrics of a report."""
SAME_TRIES, SAME_WAIT_S = 30, 1.0
"""Looks at the checkpoints until all ranks see the same one, and seconds between them."""

T = TypeVar("T")


class SameFile(RuntimeError):
    """Several ranks would write one checkpoint. The service knows its name: it does not try such a job again."""


class Run:
    """One attempt of a training run.

    Parameters
    ----------
    save, load : write and read the whole state at a path that they are given (a file or a folder, as they like).
        ``load`` is not called when there is no checkpoint.
    everywhere : call ``save`` on all ranks (sharded or collective states), not on rank 0 alone.
    save_every_s : time between checkpoints in addition to those at the end and at a preemption.
    check_every_s : about how often the ranks agree on stopping; ``report_every_s`` : how often rank 0 reports.
    leave : end the process with exit code 143 once a preempted run has saved; False ends the loop and sets ``preempted``.
    checkpoints : folder or ``Checkpoints``; by default the job's THEMIS_CHECKPOINT_DIR, and none if there is none.
    agree : elementwise maximum over the ranks; by default PyTorch's process group, if there is one.
    world : what is known from the environment.

    Attributes
    ----------
    step : steps done over all attempts. ``epoch``, ``batch`` : position of the next batch.
    batch_size : global batch size, 0 where it is unknown; set it when it is to change: the next epoch has it.
    preempted : the run is being preempted, and all ranks know.
    """

    def __init__(
        self,
        save: Callable[[Path], object] | None = None,
        load: Callable[[Path], object] | None = None,
        *,
        everywhere: bool = False,
        save_every_s: float = 600.0,
        check_every_s: float = 1.0,
        report_every_s: float = 2.0,
        leave: bool = True,
        checkpoints: Checkpoints | Path | str | None = None,
        agree: Agree | None = None,
        world: World | None = None,
    ) -> None:
        self.world = world or World.read()
        self.save, self.load, self.everywhere, self.leave = save, load, everywhere, leave
        folder = checkpoints or self.world.checkpoint_dir
        self.checkpoints = Checkpoints(folder) if isinstance(folder, str | Path) else folder
        self.save_every_s, self.check_every_s, self.report_every_s = save_every_s, check_every_s, report_every_s
        self.step = self.epoch = self.batch = self.batch_size = 0
        self._batch_size = 0
        """Batch size of the ongoing epoch; ``batch_size`` is the script's request for the next one."""
        self.preempted = False
        self._agree = agree
        self._each_epoch: Callable[[int], object] | None = None
        self._batches = 0
        self._epochs = 0.0
        """Epochs reported by a loop that counts them itself."""
        self._metrics: dict[str, Any] = {}
        self._total = 0.0
        """Steps that the loop will do; 0 where it does not say."""
        self._runs: dict[str, str] = {}
        self._loaded = False
        self._saved_step, self._saved_epochs = -1, 0.0
        self._unsaved_step = 0
        """The last step that could not be saved."""
        self._signalled = False
        self._saved_at = self._reported_at = time.monotonic()
        self._calls = self._check_at = 0
        self._window = (0, 0.0)
        """Steps and seconds of training since the last report, without the attempt's first step, which warms up."""
        self._pace = 0.0
        """Seconds of a step, smoothed; 0 before the second one."""
        self._observed_at = math.nan
        self._listen()

    @staticmethod
    def folder() -> Path | None:
        """The job's THEMIS_CHECKPOINT_DIR, for libraries that save by themselves; None without Themis."""
        return World.read().checkpoint_dir

    # ---- the two loops -------------------------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[int]:
        """Step numbers from the checkpoint's up to ``total`` (or this attempt's target, if that is less)."""
        self._total = total
        self._position()
        self._load()
        while self.step < self._end(total):
            began = time.monotonic()
            yield self.step
            if self._stepped(time.monotonic() - began):
                return
        self._finish(total)

    def batches(self, loader: Iterable[T] | Callable[[], Iterable[T]], epochs: int = 1) -> Iterator[T]:
        """Batches of ``epochs`` passes over the loader, a step each, from the checkpoint's position.

        A loader whose batch size changes is given as a function that makes it with ``batch_size``, which is called again
        before each epoch that has another one.

        A sampler with ``set_epoch`` gets the epoch, a loader with a seeded ``generator`` has it seeded again for each
        epoch, so an interrupted epoch continues with the order that it began with. Batches that were already used are
        drawn and dropped. With another number of batches (another number of ranks) the position is scaled.
        """
        wanted = self._position()
        made = loader if isinstance(loader, Iterable) else loader()
        seed, self._batch_size = _seed(made), self.batch_size
        # An interrupted epoch resumes with its own batch size; the requested one applies from the next epoch.
        self.batch_size = wanted or self.batch_size
        while self.epoch < epochs and not self._at_target():
            if self.batch == 0 and self.batch_size != self._batch_size:
                made = loader if isinstance(loader, Iterable) else loader()
                self._batch_size = self.batch_size
                self._tell()
            size = len(made) if isinstance(made, Sized) else 0
            if self._batches and size and size != self._batches:
                self.batch = min(round(self.batch * size / self._batches), size)
            self._batches = size
            self._total = self.step + (epochs - self.epoch) * size - self.batch if size else 0
            _begin_epoch(made, self.epoch, seed)
            source = islice(made, self.batch, None)
            # The state after the iterator: making one draws random numbers, which the state then puts right.
            self._load()
            began = time.monotonic()
            for item in source:
                yield item
                self.batch += 1
                if self._stepped(time.monotonic() - began):
                    return
                if self._at_target():
                    break
                began = time.monotonic()
            else:
                self.epoch, self.batch = self.epoch + 1, 0
                if self._each_epoch is not None:
                    self._each_epoch(self.epoch)
        self._load()
        self._finish(self.step)

    def each_epoch(self, function: Callable[[int], object]) -> Callable[[int], object]:
        """Have this called after each epoch of ``batches``, with the number of epochs done: where a batch size is chosen."""
        self._each_epoch = function
        return function

    # ---- for loops of one's own ----------------------------------------------------------------------------------

    def report(self, loss: Any = None, **metrics: Any) -> None:
        """The loss of this step and other metrics, by any name: numbers, or tensors of one; read only when a report is due.
        A metric that is not named keeps its last value.

        Raises
        ------
        ValueError : a value is something else, or there are more than 32; raised here, not steps later when it is read.
        """
        given = metrics if loss is None else {"loss": loss, **metrics}
        found = self._metrics | {name: _scalar(name, value) for name, value in given.items()}
        if len(found) > MOST_METRICS:
            raise ValueError(f"{len(found)} metrics are reported, expected at most {MOST_METRICS}.")
        self._metrics = found

    def observe(
        self, step: int, loss: Any = None, *, epochs: float = 0.0, batch_size: int = 0, total: int = 0, **metrics: Any
    ) -> None:
        """Report that ``step`` steps are done over all attempts, from a loop that counts by itself; call it once after each.

        ``epochs`` : epochs done, with their fraction; ``batch_size`` : the global one that it trains with now. A dynamic
        job, whose work is counted in epochs, reports both. ``total`` : steps that the loop will do. Others as for ``report``.
        """
        done, now = max(step - self.step, 0), time.monotonic()
        if done and not math.isnan(self._observed_at):
            self._trained(done, now - self._observed_at)
        self.step, self._observed_at = step, now
        self._epochs, self._total = epochs or self._epochs, total or self._total
        changed = bool(batch_size) and batch_size != self._batch_size
        self._batch_size = self.batch_size = batch_size or self._batch_size
        if loss is not None or metrics:
            self.report(loss, **metrics)
        if changed or now >= self._reported_at + self.report_every_s:
            self._tell()

    def track(self, **runs: str) -> None:
        """Ids of this script's runs, which ``themis show`` and ``history`` list: ``run.track(mlflow=ID, wandb="team/project/ID")``.

        Without it, the active runs of both libraries are found, or the variables MLFLOW_RUN_ID and WANDB_RUN_ID.

        Raises
        ------
        ValueError : another tracker, or no id.
        """
        for name, run in runs.items():
            if name not in TRACKERS or not RUN_ID.fullmatch(run):
                raise ValueError(
                    f"{name}={run!r:.100}, expected mlflow=ID or wandb=ID of letters, digits, '.', '_', '/' and '-'."
                )
        self._runs |= runs
        self._tell()

    def should_preempt(self) -> bool:
        """True if to save and stop now, the same on every rank; every rank calls it equally often."""
        self._agreed(save_due=False)
        return self.preempted

    def saved(self, step: int | None = None) -> None:
        """Report that the checkpoint of this step is on disk, from a loop that saves by itself."""
        self._saved_step, self._saved_at = self.step if step is None else step, time.monotonic()
        self._saved_epochs = self.epochs
        self._tell()

    @property
    def epochs(self) -> float:
        """Epochs done over all attempts, with their fraction, as far as their length is known."""
        return self._epochs or self.epoch + (self.batch / self._batches if self._batches else 0.0)

    def exit(self) -> None:
        """End the process as a preempted run does."""
        saved = self._saved_step == self.step
        end = f"checkpoint saved at step {self.step}" if saved else f"step {self.step} is not saved"
        print(f"themis.train: preempted; {end}.", file=sys.stderr)
        raise SystemExit(PREEMPTED)

    @property
    def target_reached(self) -> bool:
        """True if this attempt's steps are done and a loop that counts by itself must save, call ``reached`` and end."""
        return self._at_target()

    def reached(self) -> None:
        """Report that the steps of a loop that counts by itself are done and saved."""
        self._tell(reached=True)

    # ---- stopping ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # the stop file is still there
        owner, number = os.getpid(), self.world.stop_signal

        def preempt(*_: object) -> None:
            if os.getpid() == owner:
                self._signalled = True
            else:
                # A forked helper inherited this handler; it dies of the signal as it would have.
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        signal.signal(number, preempt)

    def _agreed(self, *, save_due: bool) -> bool:
        """True if to save now; ``preempted`` is set where any rank was preempted."""
        self._calls += 1
        if self._calls < self._check_at:
            return False
        stop = self._signalled or self.world.told_to_stop()
        agree = self._agree or (over_torch if process_group() else alone)
        stopping, saving, step_s = agree([float(stop), float(save_due), self._pace])
        # All ranks have the same three numbers, so they also agree on when to meet again.
        pause = self.check_every_s / step_s if agree is not alone and step_s else 1
        self._check_at = self._calls + max(1, min(int(pause), 100_000))
        if stopping > 0 and not self.preempted:
            self.preempted = True
            self._watch()
        return saving > 0

    def _watch(self) -> None:
        """From here on an uncaught exception means that this step could not be saved, by the loop or the script."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            if self._saved_step != self.step:
                self._could_not_save()
            before(kind, error, trace)

        sys.excepthook = hook

    def _could_not_save(self) -> None:
        self._unsaved_step = self.step
        with contextlib.suppress(Exception):  # the reason why it could not is what should be seen
            self._tell()

    def _stepped(self, seconds: float) -> bool:
        """Report, save and stop after a step if that is due; True ends the loop."""
        self.step += 1
        self._trained(1, seconds)
        now = time.monotonic()
        save = self._agreed(save_due=now >= self._saved_at + self.save_every_s)
        if self.preempted or save:
            self._save()
        if self.preempted:
            self._tell()
            if self.leave:
                self.exit()
        elif now >= self._reported_at + self.report_every_s:
            self._tell()
        return self.preempted

    def _trained(self, steps: int, seconds: float) -> None:
        if self._pace:
            count, total = self._window
            self._window = count + steps, total + seconds
        # The first step, slow as it may be, only gives a pace to begin with.
        self._pace = 0.8 * self._pace + 0.2 * seconds / steps if self._pace else max(seconds / steps, 1e-6)

    # ---- state ---------------------------------------------------------------------------------------------------

    def _position(self) -> int:
        """Resume at the newest checkpoint; returns the next batch size, 0 if there is none.

        Raises
        ------
        SameFile : several ranks would write one file, because they are in no process group.
        """
        several = self.world.world_size > 1 and self._agree is None and not process_group()
        if several and self.everywhere and self.save is not None and self.checkpoints is not None:
            raise SameFile(
                f"{self.world.world_size} ranks would write the same checkpoint, because they are in no process group. Call "
                "torch.distributed.init_process_group() first, pass agree=, or submit the script as one process (launch: once)."
            )
        latest = self._same_everywhere(self.checkpoints) if self.checkpoints and not self._loaded else None
        if latest is not None:
            position = latest[1]
            self.step, self.epoch = int(position["step"]), int(position["epoch"])
            self.batch, self._batches = int(position["batch"]), int(position["batches"])
            self._saved_step, self._saved_epochs = self.step, self.epochs
            if position.get("batch_size"):
                self.batch_size = int(position["batch_size"])
                return int(position["next_batch_size"])
        return 0

    def _same_everywhere(self, checkpoints: Checkpoints) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint, as all ranks see it: a network file system may show another machine's a little later.

        Raises
        ------
        RuntimeError : they do not see the same one, as where the folder is each machine's own.
        """
        agree = self._agree or (over_torch if process_group() else alone)
        for last in (*[False] * (SAME_TRIES - 1), True):
            latest = checkpoints.latest()
            step = float(latest[1]["step"]) if latest is not None else -1.0
            newest, oldest = agree([step, -step])
            if newest == -oldest:
                return latest
            if not last:
                time.sleep(SAME_WAIT_S)
        mine = f"step {step:.0f}" if step >= 0 else "none"
        raise RuntimeError(
            f"rank {self.world.rank} finds {mine} in {checkpoints.folder}, another rank step {newest:.0f}; checkpoints must be "
            "in a folder that all machines share."
        )

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        latest = self.checkpoints.latest() if self.checkpoints else None
        if latest is not None and self.load is not None:
            try:
                self.load(latest[0])
            except Exception as error:
                error.add_note(
                    f"themis.train: {latest[0].parent} could not be loaded; remove it to go on from an older checkpoint."
                )
                raise
        self._tell()

    def _save(self) -> None:
        try:
            self._save_now()
        except BaseException:
            self._could_not_save()
            raise

    def _save_now(self) -> None:
        """All ranks come here at the same step."""
        self._saved_at = time.monotonic()
        if self.checkpoints is None or self.save is None or self._saved_step == self.step:
            return
        first = self.world.rank == 0
        if first:
            self.checkpoints.begin(self.step)
        self._meet()
        draft, own = self.checkpoints.draft(self.step), first
        if self.everywhere:
            # A machine that does not see the first one's draft has a folder of its own, and so a part of the checkpoint.
            if not first and self.world.local_rank == 0 and not draft.is_dir():
                draft.mkdir(parents=True)
                own = True
            self._meet()
        if first or self.everywhere:
            self.save(draft / "state")
        self._meet()
        if own:
            where = {"step": self.step, "epoch": self.epoch, "batch": self.batch, "batches": self._batches}
            if self._batch_size:
                where |= {"batch_size": self._batch_size, "next_batch_size": self.batch_size}
            self.checkpoints.commit(self.step, where | {"attempt": self.world.attempt, "ranks": self.world.world_size})
        # No rank ends before the checkpoint is whole: the end of one rank may be the end of all.
        self._meet()
        self._saved_step, self._saved_at = self.step, time.monotonic()
        self._saved_epochs = self.epochs

    def _meet(self) -> None:
        agree = self._agree or (over_torch if process_group() else None)
        if agree is not None:
            agree([0.0])

    def _finish(self, total: int) -> None:
        if self.step >= min(total, self.world.target):
            self._save()
        self._tell(reached=True)

    def _at_target(self) -> bool:
        return self.step >= self.world.target

    def _end(self, total: int) -> float:
        return min(total, self.world.target)

    def _tell(self, *, reached: bool = False) -> None:
        count, seconds = self._window
        self._window = 0, 0.0
        self._reported_at = time.monotonic()
        if self.world.rank != 0:
            return
        metrics = {name: float(value) for name, value in self._metrics.items()}
        loss = metrics.get("loss")
        self.world.report(
            {
                "steps": self.step,
                "saved": max(self._saved_step, 0),
                "reached": reached or None,
                "unsaved": self._unsaved_step or None,
                "step_s": seconds / count if count else None,
                "epochs": self.epochs or None,
                "saved_epochs": self._saved_epochs or None,
                "batch": self._batch_size or None,
                "loss": loss if loss is not None and math.isfinite(loss) else None,
                "total": self._total or None,
                "metrics": metrics or None,
                **run_ids(self._runs),
            }
        )


def _scalar(name: str, value: Any) -> Any:
    """A metric, detached from its graph.

    Raises
    ------
    ValueError : it is no number.
    """
    if hasattr(value, "detach"):
        if value.numel() != 1:
            raise ValueError(f"{name} is a tensor of {value.numel()} values, expected one; report its mean().")
        return value.detach()
    if not hasattr(value, "__float__"):  # reading an array would wait for its device
        raise ValueError(f"{name} is {value!r:.100}, expected a number or a tensor of one.")
    return value


def _begin_epoch(loader: Any, epoch: int, seed: int | None) -> None:
    for name in ("sampler", "batch_sampler"):
        sampler: Any = getattr(loader, name, None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
    if seed is not None:
        loader.generator.manual_seed(seed + epoch)


def _seed(loader: Any) -> int | None:
    generator: Any = getattr(loader, "generator", None)
    return int(generator.initial_seed()) if hasattr(generator, "initial_seed") else None
