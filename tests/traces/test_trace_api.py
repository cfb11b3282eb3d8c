"""One door for every workload: names, formats, options, plug-ins; and whether the work fits a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from pkgutil import iter_modules

import pytest

import themis.traces
from themis.errors import ClusterError, InputError, UnknownName
from themis.model.cluster import Cluster, Machine
from themis.model.speed import Curve, Profile, ProfileBook
from themis.model.workload import App, Job, Regime, Workload
from themis.traces import formats
from themis.traces.formats import BUILT_IN, Generator, Reader, load_workload, registered
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.trace_summary import check_fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A generator that a package might register."""

    apps: int = 1

    def generate(self, *, seed: int, book: ProfileBook) -> Workload:
        job = Job(name="j", model="generic", regimes=(Regime(steps=1.0),))
        return Workload(
            name="p", apps=tuple(App(name=str(i), user="u", arrival=seed, jobs=(job,)) for i in range(self.apps))
        )


def test_every_built_in_is_a_generator_or_a_reader() -> None:
    for name in BUILT_IN:
        instance = registered()[name]()
        assert isinstance(instance, Generator) != isinstance(instance, Reader), name


def test_every_format_and_generator_in_the_folder_is_registered() -> None:
    derived_from = {base for kind in registered().values() for base in kind.__mro__[1:]}
    left = set()
    for module in iter_modules(themis.traces.__path__):
        for name, value in vars(import_module(f"themis.traces.{module.name}")).items():
            own = isinstance(value, type) and value.__module__ == f"themis.traces.{module.name}" and name[0] != "_"
            if own and is_dataclass(value) and value not in derived_from and makes_workloads(value):
                left.add(f"{value.__module__}:{name}")
    assert left - set(BUILT_IN.values()) == set()


def makes_workloads(kind: type) -> bool:
    """Whether the class can be made and generates or reads a workload; what others derive from mostly cannot be made."""
    try:
        return isinstance(kind(), Generator | Reader)
    except TypeError:
        return False


def test_a_name_that_no_package_registers_says_how_it_would_be_found() -> None:
    with pytest.raises(UnknownName, match=r"unknown workload 'qqqq'\..*`pip install -e \.`.*group themis\.traces"):
        load_workload("qqqq")


def test_an_unknown_workload_is_answered_with_the_nearest_generator() -> None:
    with pytest.raises(UnknownName, match=r"unknown workload 'themis3'\. Did you mean 'themis[12]'\?"):
        load_workload("themis3")


def test_an_unknown_format_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'philly_apps'"):
        load_workload(str(tmp_path / "x.csv"), format="philly_app")


def test_columns_that_no_format_has_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("jobid,gpu\n1,2\n")
    with pytest.raises(InputError, match="no format has the columns jobid, gpu"):
        load_workload(str(path))


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(InputError, match="seed is -1"):
        load_workload("demo", seed=-1)


def test_a_reader_without_options_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("app,submit_s,gpus,steps\na,0,1,1\n")
    with pytest.raises(InputError, match=r"'csv' has no option 'limit'\. Known: none"):
        load_workload(str(path), limit=3)


def test_a_registered_plugin_is_used_like_a_built_in_but_cannot_replace_one(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(name=n, group=formats.GROUP, value=f"{__name__}:Plugin") for n in ("mine", "demo")]
    monkeypatch.setattr(formats, "entry_points", lambda group: points)
    monkeypatch.setattr(formats, "registered", formats.registered.__wrapped__)
    assert len(load_workload("mine", seed=2, apps="3").apps) == 3
    assert load_workload("demo").name == "demo"


def test_a_plugin_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="mine", group=formats.GROUP, value="no_such_module_anywhere:Thing")
    monkeypatch.setattr(formats, "entry_points", lambda group: [point])
    with pytest.raises(InputError, match=r"trace format 'mine' \(no_such_module_anywhere:Thing\) cannot be loaded"):
        formats.registered.__wrapped__()


def cluster() -> Cluster:
    return Cluster(
        name="lab",
        machines=(Machine(name="a", gpus=4, gpu_type="V100"), Machine(name="b", gpus=2, gpu_type="K80", rack="r1")),
    )


def one_job(*, gpus: int, types: tuple[str, ...] = (), model: str = "generic") -> Workload:
    job = Job(name="j", model=model, regimes=(Regime(steps=1.0),), gpus_min=gpus, gpus_max=gpus, gpu_types=types)
    return Workload(name="w", apps=(App(name="a", user="u", arrival=0.0, jobs=(job,)),))


def test_a_job_may_span_machines_racks_and_types() -> None:
    check_fits(one_job(gpus=6), cluster())


def test_a_job_larger_than_the_cluster_is_named_with_the_largest_that_fits() -> None:
    with pytest.raises(ClusterError, match=r"job 'j' of app 'a' needs 7 GPUs; cluster 'lab' has 6"):
        check_fits(one_job(gpus=7), cluster())


def test_only_gpus_of_the_types_that_a_job_allows_count() -> None:
    check_fits(one_job(gpus=4, types=("V100", "A100")), cluster())
    with pytest.raises(ClusterError, match=r"needs 3 GPUs of type K80; cluster 'lab' has 2"):
        check_fits(one_job(gpus=3, types=("K80",)), cluster())
    with pytest.raises(ClusterError, match=r"may use only GPUs of type A100; cluster 'lab' has V100, K80"):
        check_fits(one_job(gpus=1, types=("A100",)), cluster())


def test_only_gpus_that_the_model_runs_on_count() -> None:
    curve = Curve(gpus=(1,), rate=(1.0,))
    book = DEFAULT_BOOK.with_profiles([Profile(name="big", curves={("V100", 0): curve, ("A100", 0): curve})])
    check_fits(one_job(gpus=4, model="big"), cluster(), book)
    with pytest.raises(ClusterError, match="has 4 that it can use"):
        check_fits(one_job(gpus=5, model="big"), cluster(), book)
    with pytest.raises(ClusterError, match="no speed on K80"):
        check_fits(one_job(gpus=1, model="big", types=("K80",)), cluster(), book)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_page_names_every_workload_and_its_options(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
    assert f"`{name}`" in page
    options = [field.name for field in fields(registered()[name])]
    assert [option for option in options if not re.search(rf"`{option}[`=]", page)] == []
