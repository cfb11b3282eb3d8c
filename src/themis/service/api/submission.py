"""A submission as it comes over the wire -> an app of the core and its programs, checked against the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from themis import limits
from themis.client.exported import SECRET
from themis.core.state import State
from themis.errors import InputError, UnknownName, closest
from themis.fairness.forecasts.believed import nearest_reference
from themis.jobs.runnable import MOST_TEXT, MOST_TEXTS
from themis.machines.agent.messages import THROUGH_SERVICE
from themis.machines.engines.program import Program
from themis.model.cluster import Machine, reaches
from themis.model.dynamic import ACCORDION_REGIMES, Dynamic, Mode
from themis.model.events import AppSubmitted
from themis.model.speed import ANY_TYPE, GUESSED, Curve, ProfileBook
from themis.model.units import Seconds
from themis.model.workload import App, Bag, CurveStopping, Halving, Hyperband, Job, Regime, Rung, Tuner
from themis.schema import messages as schema
from themis.schema.same import same
from themis.schema.wire import changed
from themis.service.api.access import NAME, WORDS, Caller, Forbidden
from themis.service.api.views import layout_of
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.config import Config
from themis.service.engine.housekeeping import unmet, verdict_of
from themis.service.engine.journal import Entry, Options
from themis.service.engine.machine_changes import expected
from themis.service.engine.quarantine import MOST, WINDOW_S
from themis.service.engine.speed_estimator import own_profile, read_profile
from themis.traces.profiles.assumed import Assumptions, alone

UNKNOWN_GPUS = 1024
"""Largest gang that an elastic job may grow to where nothing is known of the machines."""


class Limit(InputError):
    """More than this arbiter takes; ``retry_s`` : seconds after which it may take it."""

    def __init__(self, sentence: str, retry_s: float = 60.0) -> None:
        super().__init__(sentence)
        self.retry_s = retry_s


class DiskLow(Limit):
    """The arbiter's disk is nearly full."""


def submit(arbiter: Arbiter, request: schema.SubmitRequest, caller: Caller | None = None) -> schema.SubmitReply:
    """Check a submission and enter it; in the arbiter's thread. The same ``key`` again gives the same answer.

    Parameters
    ----------
    caller : the submitter, whose name is used unless an administrator gives another; None: the name in the file.

    Raises
    ------
    InputError : something in it is wrong. Limit : more than this arbiter takes, or its disk is full. Forbidden : in another's name.
    """
    if caller is not None:
        request = _signed(request, caller)
    # Each user has keys of their own: another user's key does not find an app.
    key = f"{request.user}/{request.key}" if request.key else ""
    if key and (known := arbiter.journal.apps("key = ?", key)):
        return schema.SubmitReply(app=known[0].app, name=known[0].name, layout=layout_of(arbiter.state, known[0]))
    config, state, now = arbiter.config, arbiter.state, arbiter.instant
    for job in request.jobs:
        if job.program.work_unknown and not job.regimes:
            job.regimes = [schema.Regime(steps=config.unknown_work_s * job.gpus_min)]
    _check_room(arbiter, request.user)
    retries = config.retries if request.retries is None else request.retries
    may_come = expected(config, state)
    app = read_app(request, now, config, *_largest_gangs(state, may_come))
    app = replace(app, name=_free_name(app.name, arbiter.journal.has_app))
    profile = None
    if request.profile is not None:
        _fill_in(arbiter.book, request.profile, [kind for kind in state.gpu_types if kind != ANY_TYPE], app)
        profile = read_profile(own_profile(app), request.profile)
        app = replace(app, jobs=tuple(replace(job, model=profile.name) for job in app.jobs))
    book = arbiter.book.with_profiles([profile] if profile else [])
    check_models(state, book, app, may_come)
    check_work(state, book, app)
    app = _on_its_own(state, request, app)
    check_machines(arbiter, request)
    _check_bundles(arbiter, request)
    arbiter.executor.check_user("" if config.single_trust else app.user)
    state.check_fits(app, may_come)
    options = _options(arbiter, request)
    number = state.apps.size
    weight = app.weight * config.weight(app.user)
    entry = Entry(
        app=number,
        name=app.name,
        user=app.user,
        key=key,
        submitted=now,
        retries=retries,
        programs=tuple(
            _with_own_url(_program(job, app.user, config), f"{app.name}-{int(arbiter.epoch):x}/job{i}")
            for i, job in enumerate(request.jobs)
        ),
        options=options,
    )
    if profile is not None and request.profile is not None:
        arbiter.learn(profile, request.profile)
    assumed = Assumptions(arbiter.book).of(app, state.gpu_types)
    unknown = any(job.program.work_unknown for job in request.jobs)
    estimated = alone(arbiter.book, app, reaches(state.machines))
    arbiter.enter(app, entry, AppSubmitted(app=app, weight=weight, assumed=assumed, alone=estimated, unknown=unknown))
    return schema.SubmitReply(app=number, name=app.name, layout=layout_of(state, entry))


def _signed(request: schema.SubmitRequest, caller: Caller) -> schema.SubmitRequest:
    """The submission under its user's name."""
    out = changed(request, user=request.user or caller.user)
    if not caller.admin:
        if out.user != caller.user:
            raise Forbidden(
                f"Permission denied: only administrators may submit for another user; you are {caller.user}, not "
                f"{out.user[:100]!r}."
            )
        if out.weight > 1:
            raise Forbidden(f"Permission denied: only administrators may set a weight above 1, got {out.weight:g}.")
        if out.machine:
            raise Forbidden(f"Permission denied: only administrators may name a machine, got {out.machine[:100]!r}.")
    return out


def read_app(request: schema.SubmitRequest, now: Seconds, config: Config, gpus: int, largest: int) -> App:
    """The app of a submission that arrives now; gangs grow to at most ``gpus``, one process to ``largest``, of one machine."""
    for what, name in (("app", request.name), ("user", request.user)):
        if not NAME.fullmatch(name):
            raise InputError(f"the name of the {what} is {name[:100]!r}, expected {WORDS}.")
    if request.name.isdecimal():
        raise InputError(f"the name of the app is {request.name!r}, which is an app's number; expected a letter in it.")
    if len(request.jobs) > config.max_jobs:
        raise Limit(
            f"app {request.name!r} has {len(request.jobs)} jobs, the limit is {config.max_jobs} (max_jobs); submit several apps."
        )
    return App(
        name=request.name,
        user=request.user,
        arrival=now,
        jobs=tuple(_job(job, largest if _launch(job) == "once" else gpus) for job in request.jobs),
        tuner=_tuner(request),
        weight=request.weight,
        deadline=None if request.deadline_s is None else now + request.deadline_s,
        at_once=request.at_once,
    )


def _largest_gangs(state: State, may_come: Sequence[Machine] | None) -> tuple[int, int]:
    """GPUs of all machines and of the largest one, as they are or may be."""
    if may_come is None:
        return UNKNOWN_GPUS, UNKNOWN_GPUS
    sizes, later = state.machine_size, [machine.gpus for machine in may_come]
    return max(int(sizes.sum()), sum(later)), max(int(sizes.max(initial=0)), *later, 0)


def _fill_in(book: ProfileBook, profile: schema.Profile, types: Sequence[str], app: App) -> None:
    """Add to a submission's profile the GPU types that it does not name and its jobs may use, as of the nearest measured model.

    A guess from the time that the job may take stands for the first of these types, and until one has been measured for all others
    that no model was measured on.
    """
    wanted = [kind for kind in types if any(not job.gpu_types or kind in job.gpu_types for job in app.jobs)]
    guesses = [curve for curve in profile.curves if curve.like == GUESSED]
    for curve in guesses:
        curve.like = ""
    known = {
        wanted[0] if guesses and wanted else curve.gpu_type: Curve(
            gpus=tuple(curve.gpus), rate=tuple(curve.steps_per_s)
        )
        for curve in profile.curves
        if curve.gpus and len(curve.gpus) == len(curve.steps_per_s)
    }
    if not known or len(known) < len(profile.curves) or not known.keys() <= set(types):
        return
    others = [(kind, found) for kind in wanted if kind not in known and (found := nearest_reference(book, known, kind))]
    added = [(kind, curve, model) for kind, ((model, _), curve) in others]
    if guesses and added:
        added = [*((kind, curve, GUESSED) for kind, curve in known.items()), *added]
    profile.curves += [
        schema.SpeedCurve(gpu_type=kind, gpus=list(curve.gpus), steps_per_s=list(curve.rate), like=model)
        for kind, curve, model in added
    ]


def check_models(state: State, book: ProfileBook, app: App, may_come: Sequence[Machine] | None = ()) -> None:
    """Raise InputError if the speed of one of the app's models is not known on any machine that it may use.

    ``may_come`` : machines that are expected; None: nothing is known of them.
    """
    known = list(dict.fromkeys(machine.gpu_type for machine in (*state.machines, *(may_come or ()))))
    for job in app.jobs:
        if job.gpu_types and known and ANY_TYPE not in known and not set(job.gpu_types) & set(known):
            raise InputError(
                f"job {job.name!r} asks for a GPU of type {' or '.join(job.gpu_types)}, which no machine has."
                f"{closest(job.gpu_types[0], known)} The machines have {', '.join(sorted(known))}."
            )
        types = [t for t in known if t != ANY_TYPE and (not job.gpu_types or t in job.gpu_types)]
        for model, batch in job.configs if types else ():
            if not any(book.get(model).curve(t, batch) for t in types):
                raise InputError(
                    f"job {job.name!r}: model {model!r} has no speed at batch {batch} on GPU type {', '.join(types)}; add a "
                    "profile."
                )


def check_work(state: State, book: ProfileBook, app: App) -> None:
    """Raise InputError if a job's work takes longer or shorter on one GPU than is computed with, on any type that it may use."""
    alike = {(j.model, j.regimes, j.step_scale, j.dynamic, j.gpu_types): j for j in app.jobs}
    for job in alike.values():
        profile = book.get(job.model)
        for kind in state.gpu_types:
            rates = {r.batch: profile.curve(kind, r.batch) for r in job.regimes}
            if (job.gpu_types and kind not in job.gpu_types) or not all(rates.values()):
                continue
            one = {batch: float(curve.at(np.array(1.0))) for batch, curve in rates.items() if curve}
            if all(one.values()):
                seconds = sum(r.steps * job.scale(r.batch) / one[r.batch] for r in job.regimes)
                limits.WORK_S.check(seconds, f"job {job.name!r}: its seconds on one GPU of type {kind}")


def check_machines(arbiter: Arbiter, request: schema.SubmitRequest) -> None:
    """Raise InputError where a job asks for more CPUs or memory for a GPU than the machines have for each of theirs.

    So whatever is placed fits: a machine's jobs together never ask for more than it has.
    """
    have = arbiter.live.per_gpu
    for job in request.jobs:
        if have and job.cpus > have.cpus:
            raise InputError(
                f"job {job.name!r} asks for {job.cpus:g} CPUs per GPU, the machines have {have.cpus:g} per GPU. Lower cpus, or "
                "ask for more GPUs."
            )
        if have and job.memory > have.memory:
            raise InputError(
                f"job {job.name!r} asks for {job.memory / 2**30:.3g} GiB per GPU, the machines have "
                f"{have.memory / 2**30:.3g} GiB per GPU. Lower memory, or ask for more GPUs."
            )


def _on_its_own(state: State, request: schema.SubmitRequest, app: App) -> App:
    """The app, kept on the machine that the submission names, and on its type of GPU."""
    if not request.machine:
        return app
    there = {machine.name: machine for machine in state.machines}
    if (machine := there.get(request.machine)) is None:
        raise UnknownName("machine", request.machine[:100], list(there))
    if (most := max(job.gpus_min for job in app.jobs)) > machine.gpus:
        raise InputError(
            f"app {app.name!r} wants {most} GPUs of machine {machine.name}, which has {machine.gpus}. Lower its gpus."
        )
    jobs = tuple(
        replace(job, gpu_types=(machine.gpu_type,), gpus_max=min(job.gpus_max, machine.gpus)) for job in app.jobs
    )
    return replace(app, machine=machine.name, jobs=jobs)


def _check_bundles(arbiter: Arbiter, request: schema.SubmitRequest) -> None:
    """Raise InputError where the files that a job is sent with are not here; those that are count as used."""
    for bundle in {job.program.bundle for job in request.jobs if job.program.bundle}:
        if arbiter.bundles.size(bundle) is None:
            raise InputError(f"bundle {bundle[:12]} is not in the service's store; send its files again.")


def _options(arbiter: Arbiter, request: schema.SubmitRequest) -> Options:
    after = tuple(_after(arbiter, request.user, other) for other in request.after)
    options = Options(after=after, walltime_s=request.walltime_s)
    verdict = verdict_of(after, [arbiter.journal.apps("app = ?", app)[0] for app, _ in after])
    if verdict is False:
        raise InputError(
            f"{unmet(arbiter.journal, options)}, so app {request.name!r}, which waits for it, would never start."
        )
    return replace(options, waiting=verdict is None)


def _after(arbiter: Arbiter, user: str, other: schema.After) -> tuple[int, str]:
    """The app of the same user that has this name or number, and how it must have ended."""
    found = arbiter.journal.app_of(user, other.app)
    if found is None:
        mine = arbiter.journal.apps("user = ?", user, last=20)
        raise UnknownName("app of yours to wait for,", other.app[:100], [entry.name for entry in mine])
    return found, other.when


def _check_room(arbiter: Arbiter, user: str) -> None:
    config, t = arbiter.config, arbiter.state.apps
    active = t.active[: t.size] == 1
    if low := arbiter.journal.low():
        raise DiskLow(low)
    if (there := int(active.sum())) >= config.max_apps:
        raise Limit(f"{there} apps are queued or running, the limit is {config.max_apps} (max_apps); try again later.")
    mine = int((active & (t.user[: t.size] == arbiter.state.users.get(user, -1))).sum())
    if mine >= config.max_apps_per_user:
        raise Limit(
            f"user {user!r} has {mine} apps queued or running, the limit is {config.max_apps_per_user} (max_apps_per_user); try "
            "again when one is finished."
        )
    if arbiter.quarantine.of_user(user, arbiter.state, arbiter.instant) >= MOST:
        raise Limit(
            f"{MOST} apps of user {user!r} were quarantined within {WINDOW_S / 60:.0f} minutes; `themis why APP` says why. Try "
            "again later."
        )
    if arbiter.journal.submissions(user, arbiter.instant - 3600.0) >= config.max_submissions:
        raise Limit(
            f"user {user!r} submitted {config.max_submissions} apps in the last hour, the limit (max_submissions); try again "
            "later."
        )


def _free_name(name: str, taken: Callable[[str], bool]) -> str:
    """The name, with a number added if it was used before: one name always means one app."""

    def numbered(i: int) -> str:
        return f"{name[:54]}-{i}" if i > 1 else name

    if not taken(name):
        return name
    # Names are never given back, so of thousands of runs of one name it is looked for where the free ones begin.
    low, high = 1, 2
    while taken(numbered(high)):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if taken(numbered(middle)) else (low, middle)
    return numbered(high)


def _launch(job: schema.Job) -> str:
    return job.program.launch or "once"


def _job(job: schema.Job, gpus: int) -> Job:
    name = job.name or "job"
    if not NAME.fullmatch(name):
        raise InputError(f"the name of a job is {name[:100]!r}, expected {WORDS}.")
    most = job.gpus_max or job.gpus_min
    if most < job.gpus_min:
        raise InputError(f"job {name!r}: gpus_max is {most}, expected at least gpus_min, which is {job.gpus_min}.")
    return Job(
        **same(
            Job,
            job,
            name=name,
            regimes=tuple(Regime(steps=r.steps, batch=r.batch) for r in job.regimes),
            # A gang that may be larger than the cluster is one that may have all of it.
            gpus_max=max(job.gpus_min, min(most, gpus)),
            dynamic=None if job.dynamic is None else _dynamic(job.dynamic),
            one_machine=_launch(job) == "once",
        )
    )


def _dynamic(message: schema.Dynamic) -> Dynamic:
    return Dynamic(
        mode=Mode(message.mode),
        epoch_steps=tuple((size.batch, size.steps_per_epoch) for size in message.sizes),
        regimes=message.regimes or ACCORDION_REGIMES,
    )


def _tuner(request: schema.SubmitRequest) -> Tuner:
    if request.brackets is not None:
        brackets = tuple(
            Halving(rungs=tuple(Rung(jobs=r.jobs, steps=r.steps) for r in bracket.rungs))
            for bracket in request.brackets.brackets
        )
        return brackets[0] if len(brackets) == 1 else Hyperband(brackets=brackets)
    if request.curve is not None:
        return CurveStopping(**request.curve.model_dump())
    return Bag()


def _program(job: schema.Job, user: str, config: Config) -> Program:
    p = job.program
    texts = [
        *p.argv,
        p.cwd,
        p.checkpoint_dir,
        p.checkpoint_url,
        p.packages,
        *p.outputs,
        *map("=".join, [*p.env.items(), *p.exports.items()]),
    ]
    if "\0" in "".join(texts):
        text = next(text for text in texts if "\0" in text)
        raise InputError(f"job {job.name!r}: {text[:100]!r} contains a NUL byte, which programs cannot receive.")
    sizes = [len(text.encode()) for text in texts]
    longest, together = max(sizes), sum(sizes) + 9 * len(sizes)
    if longest > MOST_TEXT or together > MOST_TEXTS:
        raise Limit(
            f"job {job.name!r}: its arguments and variables have {together} bytes together, {longest} bytes the "
            f"longest; the limits are {MOST_TEXTS} and {MOST_TEXT}. Write them to a file."
        )
    wrong = [name for name in (*p.env, *p.exports, *p.secrets) if not name or "=" in name]
    if wrong:
        raise InputError(f"job {job.name!r}: {wrong[0][:100]!r} is not a valid name of a variable.")
    if secret := [name for name in p.exports if SECRET.search(name)]:
        raise InputError(
            f"job {job.name!r} exports {secret[0][:100]}, which may hold a secret; name it in secrets, which are not kept here."
        )
    grace_s = config.grace_s if p.grace_s is None else p.grace_s
    if grace_s > config.max_grace_s:
        # A job may keep GPUs that are leased to another one for that long.
        raise Limit(
            f"job {job.name!r} asks for a grace period of {grace_s:g} s, the maximum is {config.max_grace_s:g} s (max_grace)."
        )
    if p.outputs and not p.bundle:
        raise InputError(
            f"job {job.name!r} has outputs, which are copied from the files that a job is sent with; send some."
        )
    url = p.checkpoint_url
    if config.engine == "fleet" and config.copy_checkpoints and not (url or p.checkpoint_dir):
        url = THROUGH_SERVICE
    return Program(
        **same(
            Program,
            p,
            cwd=p.cwd or "/",
            user="" if config.single_trust else user,
            launch=_launch(job),
            grace_s=grace_s,
            stop_signal=p.stop_signal or "SIGTERM",
            checkpoint_url=url,
            own_steps=not p.work_is_time,
            cpus=job.cpus,
            memory=job.memory,
        )
    )


def _with_own_url(program: Program, below: str) -> Program:
    """Each job has its own folder below the URL, also among those of other services."""
    if program.checkpoint_url in ("", THROUGH_SERVICE):
        return program
    return replace(program, checkpoint_url=f"{program.checkpoint_url.rstrip('/')}/{below}")
