"""Pollux' workloads: ``workload-N.csv``, 160 jobs each (OSDI'21; adaptdl, Apache-2.0 licence).

Columns ``name, time, application, num_replicas, batch_size``. The file has no durations: they come from the
measurements in the same archive (``themis.traces.pollux_speeds``). Gangs of more than four GPUs were measured on several
machines: such a gang takes the measured time where it spans machines of one rack, and less on one machine. Every job is a
user of its own. Jobs are rigid at ``num_replicas`` and ``batch_size``; with ``elastic=yes`` they take any number of GPUs, and the
batch size follows for the largest goodput (``themis.traces.pollux_elastic``), with ``learned=yes`` by curves that each job learns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from themis.errors import InputError
from themis.model.speed import Profile, ProfileBook
from themis.model.units import Locality
from themis.traces.bundle import Glimpse, is_bundle, member_texts, members
from themis.traces.csv_table import OnFault, TableRow, read_rows, rows_of
from themis.traces.job_records import JobLog, Parse, Record
from themis.traces.pollux_elastic import elastic_applications
from themis.traces.pollux_speeds import MACHINE, applications
from themis.traces.profiles.models import GENERIC

MODELS: Mapping[str, str] = MappingProxyType({"deepspeech2": "DeepSpeech", "imagenet": "ResNet50"})
"""Applications whose model the profile book knows; the others (cifar10, ncf, bert, yolov3) are ``generic``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pollux(JobLog):
    """Pollux' workloads of 160 jobs, from the published archive or a CSV of it.

    Attributes
    ----------
    member : which workload of an archive or folder: the end of its name.
    profiles : the archive or folder with the measurements, where a single CSV is read.
    elastic : jobs may run on any number of GPUs. ``learned`` : of elastic jobs, the scheduler knows no curve, and believes what
        each job measured of itself.
    """

    member: str = "simulator/workloads/workload-1.csv"
    profiles: str = ""
    elastic: bool = False
    learned: bool = False

    name: ClassVar[str] = "pollux"
    columns: ClassVar[tuple[str, ...]] = ("name", "time", "application", "num_replicas", "batch_size")
    id_column: ClassVar[str] = "name"

    @classmethod
    def fits(cls, seen: Glimpse) -> bool:
        """True if a folder or archive that looks like this is of this format."""
        return seen.member("workload-[0-9]*.csv") is not None

    def rows(self, path: Path, on_fault: OnFault) -> Iterator[TableRow]:
        """The rows of one workload."""
        if not is_bundle(path):
            yield from read_rows(path, required=self.columns, on_fault=on_fault)
            return
        names = [name for name in members(path) if f"/{name}".endswith(f"/{self.member}")]
        if len(names) != 1:
            found = ", ".join(names or (n for n in members(path) if "workload-" in n)) or "none"
            raise InputError(
                f"{path}: {len(names)} files end in {self.member!r}, expected one; set member to: {found}."
            )
        for name, lines in member_texts(path, names):
            yield from rows_of(lines, name, required=self.columns, on_fault=on_fault)

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each row a job, as long as was measured."""
        if self.learned and not self.elastic:
            raise InputError(f"{path}: learned=yes is of elastic jobs; give elastic=yes too.")
        if not self.profiles and not is_bundle(path):
            raise InputError(
                f"{path} has no durations: give profiles=FILE, the archive pollux-osdi21.tar.gz or its folder."
            )
        archive = Path(self.profiles) if self.profiles else path
        measured = applications(archive)
        elastic = elastic_applications(archive) if self.elastic else {}

        def parse(row: TableRow) -> Record:
            name = row.need("name", "the job's name")
            kind = row.text("application")
            if kind not in measured:
                row.fail("application", f"one of those measured: {', '.join(sorted(measured))}")
            submit = row.number("time", "seconds from the trace's start, 0 or more", low=0.0)
            if self.elastic:
                job = elastic[kind]
                return Record(
                    name=name,
                    user=name,
                    submit=submit,
                    gpus=job.gpus,
                    gpus_min=1,
                    model=f"{job.profile.name}/{name}" if self.learned else job.profile.name,
                    regimes=job.regimes,
                    adaptive=job.batches if self.learned else None,
                )
            gpus = row.whole("num_replicas", "a whole number of GPUs, 1 or more", low=1)
            batch = row.whole("batch_size", "a batch size, 1 or more", low=1)
            duration = measured[kind].seconds(gpus, batch)
            if duration is None:
                row.fail("num_replicas", f"GPUs and a batch size (here {batch}) at which {kind} was measured")
            return Record(
                name=name,
                user=name,
                gpus=gpus,
                duration=duration,
                model=MODELS.get(kind, GENERIC),
                spans=Locality.RACK if gpus > MACHINE else Locality.MACHINE,
                submit=submit,
            )

        return parse

    def profiles_of(self, path: Path, kept: Sequence[Sequence[Record]]) -> tuple[Profile, ...]:
        """Curves of the applications, where jobs are elastic."""
        if not self.elastic:
            return ()
        used = {record.model for jobs in kept for record in jobs}
        found = elastic_applications(Path(self.profiles) if self.profiles else path)
        if self.learned:
            kinds = {app.profile.name: app for app in found.values()}
            return tuple(kinds[kind].of_one(job) for kind, _, job in (name.partition("/") for name in sorted(used)))
        return tuple(app.profile for _, app in sorted(found.items()) if app.profile.name in used)
