"""ITP, Helios, Slurm and openb: what a row becomes, what is left out, and the figures of the real files."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from logs import assert_fault, only, seconds, write

from themis.errors import InputError
from themis.traces.formats import load_workload, recognise
from themis.traces.profiles.presets import load_cluster
from themis.traces.trace_summary import check_fits, describe

# ---- ITP -----------------------------------------------------------------------------------------------------------

ITP = "job_id,submission_time,duration,num_gpu\na1,50,604,16\na2,20,767,2\n"


def itp_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    write(folder, "cluster01.csv", ITP)
    write(folder, "cluster02.csv", "job_id,submission_time,duration,num_gpu\na1,40,60,4\n")
    write(folder, "LICENSE", "free")
    return folder


def test_an_itp_file_is_one_cluster_which_is_the_user(tmp_path: Path) -> None:
    path = write(tmp_path, "cluster07.csv", ITP)
    assert recognise(Path(path)) == "itp"
    workload = load_workload(path)
    assert [(a.name, a.user, a.arrival) for a in workload.apps] == [
        ("cluster07/a2", "cluster07", 20.0),
        ("cluster07/a1", "cluster07", 50.0),
    ]
    assert seconds(workload.apps[0].jobs[0]) == pytest.approx(767)


def test_an_itp_folder_and_its_archive_give_the_same_jobs_of_every_cluster(tmp_path: Path) -> None:
    folder = itp_folder(tmp_path)
    archive = tmp_path / "raw-traces.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for file in folder.iterdir():
            tar.add(file, file.name)
    assert recognise(folder) == recognise(archive) == "itp"
    workload = load_workload(str(archive))
    assert workload.apps == load_workload(str(folder)).apps
    assert [a.user for a in workload.apps] == ["cluster01", "cluster02", "cluster01"]
    assert workload.name == "raw-traces"


def test_a_faulty_row_in_an_archive_names_the_member(tmp_path: Path) -> None:
    archive = tmp_path / "raw.tar"
    data = (ITP + "a3,10,-1,4\n").encode()
    with tarfile.open(archive, "w") as tar:
        info = tarfile.TarInfo("cluster03.csv")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    with pytest.raises(InputError, match=r"raw\.tar/cluster03\.csv, line 4, column 'duration': got '-1'"):
        load_workload(str(archive))


@pytest.mark.parametrize("name", ["damaged.tar.gz", "empty-folder"])
def test_an_archive_or_folder_without_traces_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if "tar" in name:
        path.write_bytes(b"not a tar")
    else:
        path.mkdir()
    for options in ({}, {"format": "itp"}):
        with pytest.raises(InputError) as caught:
            load_workload(str(path), **options)  # type: ignore[arg-type]
        assert name in str(caught.value)


@pytest.mark.slow
def test_the_real_itp_archive_holds_69351_jobs_of_ten_clusters(shared_data: Path) -> None:
    summary = describe(load_workload(str(shared_data / "itp" / "raw-traces.tar.gz")))
    assert (summary.jobs, summary.users) == (69_351, 10)
    assert summary.gpu_hours == pytest.approx(1_632_720, abs=1)
    assert summary.largest_gang == 64


# ---- Helios --------------------------------------------------------------------------------------------------------

HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0\n"
    "1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0\n"
    "1425513,uzqls,vcpDC,0,1,1,CANCELLED,2020-06-09 18:40:00,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0\n"
    "1425514,uVMrF,vchbv,4,16,1,CANCELLED,2020-06-09 18:41:28,,,0,0\n"
)


def test_a_helios_job_arrives_by_the_clock_and_jobs_without_gpus_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "cluster_log.csv", HELIOS)
    assert recognise(Path(path)) == "helios"
    workload = load_workload(path)
    assert [(a.name, a.user, a.arrival) for a in workload.apps] == [
        ("1425511", "vcJkd", 0.0),
        ("1425512", "vchbv", 26.0),
    ]
    assert seconds(workload.apps[1].jobs[0]) == pytest.approx(249)
    assert "1 jobs left out: without GPUs" in workload.source
    assert "1 jobs left out: never ran" in workload.source
    assert [a.user for a in load_workload(path, tenant="user", state="FAILED").apps] == ["uVMrF"]


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("gpu_num", "9,u,v,two,1,1,COMPLETED,2020-06-09 18:41:01,,,5,0", "two"),
        ("duration", "9,u,v,2,1,1,COMPLETED,2020-06-09 18:41:01,,,-5,0", "-5"),
        ("submit_time", "9,u,v,2,1,1,COMPLETED,09.06.2020,,,5,0", "09.06.2020"),
        ("vc", "9,u,,2,1,1,COMPLETED,2020-06-09 18:41:01,,,5,0", ""),
        ("job_id", "1425511,u,v,2,1,1,COMPLETED,2020-06-09 18:41:01,,,5,0", "1425511"),
    ],
)
def test_a_faulty_helios_row_is_located(tmp_path: Path, column: str, row: str, value: str) -> None:
    assert_fault(write(tmp_path, "cluster_log.csv", HELIOS + row + "\n"), line=6, column=column, value=value)


# ---- Slurm ---------------------------------------------------------------------------------------------------------

SACCT = "JobID|User|Account|Partition|Submit|Start|End|Elapsed|State|AllocTRES|ReqTRES|NNodes\n"
SLURM = SACCT + (
    "17|ann|vision|gpu|2024-01-05T12:00:00|2024-01-05T12:00:05|2024-01-06T13:02:08|1-01:02:03|COMPLETED|"
    "billing=8,cpu=8,gres/gpu:v100=2,gres/gpu=2,mem=64G,node=1|billing=8,gres/gpu=2|1\n"
    "17.batch||vision||2024-01-05T12:00:05|2024-01-05T12:00:05|2024-01-06T13:02:08|1-01:02:03|COMPLETED|"
    "cpu=8,gres/gpu:v100=2,gres/gpu=2,mem=64G,node=1||1\n"
    "18|bob|text|cpu|2024-01-05T11:59:00|2024-01-05T12:00:05|2024-01-05T12:10:05|00:10:00|COMPLETED|cpu=8,node=1|cpu=8|1\n"
    "19_1|bob|text|gpu|2024-01-05T12:01:00|Unknown|Unknown|00:00:00|CANCELLED by 1002||billing=8,gres/gpu=4|1\n"
    "19_2|bob|text|gpu|2024-01-05T12:01:00|2024-01-05T12:01:00|Unknown|45:06|RUNNING|gres/gpu:a100=4,node=1|gres/gpu=4|1\n"
)


def test_a_slurm_job_keeps_gpus_types_and_elapsed_time_and_steps_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "sacct.txt", SLURM)
    assert recognise(Path(path)) == "slurm"
    workload = load_workload(path)
    assert [(a.name, a.user, a.arrival) for a in workload.apps] == [("17", "ann", 0.0), ("19_2", "bob", 60.0)]
    first, second = (a.jobs[0] for a in workload.apps)
    assert (first.gpus_max, first.gpu_types) == (2, ("v100",))
    assert seconds(first) == pytest.approx(25 * 3600 + 2 * 60 + 3)
    assert (second.gpus_max, second.gpu_types) == (4, ("a100",))
    assert seconds(second) == pytest.approx(45 * 60 + 6)
    for reason in ("job steps", "without GPUs", "never ran"):
        assert f"1 jobs left out: {reason}" in workload.source


def test_slurm_can_drop_running_jobs_types_states_and_partitions_and_name_accounts(tmp_path: Path) -> None:
    path = write(tmp_path, "sacct.txt", SLURM)
    assert [a.name for a in load_workload(path, censored="drop").apps] == ["17"]
    assert [a.name for a in load_workload(path, state="running").apps] == ["19_2"]
    assert [a.user for a in load_workload(path, tenant="account").apps] == ["vision", "text"]
    assert {a.jobs[0].gpu_types for a in load_workload(path, gpu_types="false").apps} == {()}
    with pytest.raises(InputError, match="no app is left"):
        load_workload(path, partition="cpu")


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("Elapsed", "9|u|a|p|2024-01-05T12:00:00|||soon|COMPLETED|gres/gpu=1||1", "soon"),
        ("Submit", "9|u|a|p|Unknown|||00:01:00|COMPLETED|gres/gpu=1||1", "Unknown"),
        ("AllocTRES", "9|u|a|p|2024-01-05T12:00:00|||00:01:00|COMPLETED|gres/gpu=x||1", "gres/gpu=x"),
        ("User", "9||a|p|2024-01-05T12:00:00|||00:01:00|COMPLETED|gres/gpu=1||1", ""),
        ("JobID", "17|u|a|p|2024-01-05T12:00:00|||00:01:00|COMPLETED|gres/gpu=1||1", "17"),
        ("NNodes", "9|u|a|p|2024-01-05T12:00:00|||00:01:00|COMPLETED|gres/gpu=1|", ""),
    ],
)
def test_a_faulty_slurm_row_is_located(tmp_path: Path, column: str, row: str, value: str) -> None:
    assert_fault(write(tmp_path, "sacct.txt", SLURM + row + "\n"), line=7, column=column, value=value)


def test_a_slurm_log_without_gpus_in_its_columns_says_which_to_ask_for(tmp_path: Path) -> None:
    path = write(tmp_path, "sacct.txt", "JobID|User|Submit|Elapsed\n1|u|2024-01-05T12:00:00|00:01:00\n")
    with pytest.raises(InputError, match="add it to sacct's --format"):
        load_workload(path)


# ---- openb ---------------------------------------------------------------------------------------------------------

OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p0,12000,16384,8,1000,V100M16|V100M32|V100M32,LS,Running,0,900,100\n"
    "p1,6000,12288,1,460,,BE,Failed,50,150,50\n"
    "p2,6000,12288,0,0,,BE,Succeeded,60,150,60\n"
    "p3,6000,12288,1,1000,,BE,Pending,70,150,\n"
)


def test_an_openb_pod_runs_from_scheduling_to_deletion_on_the_types_that_it_names(tmp_path: Path) -> None:
    path = write(tmp_path, "pods.csv", OPENB)
    assert recognise(Path(path)) == "openb"
    workload = load_workload(path)
    first, part = (a.jobs[0] for a in workload.apps)
    assert (first.gpus_max, first.gpu_types) == (8, ("V100M16", "V100M32"))
    assert seconds(first) == pytest.approx(800)
    assert (part.gpus_max, seconds(part)) == (1, pytest.approx(100))
    assert [(a.user, a.arrival) for a in workload.apps] == [("LS", 0.0), ("BE", 50.0)]
    assert "1 jobs left out: never scheduled" in workload.source


def test_a_part_of_a_gpu_is_a_whole_one_or_its_work_or_dropped(tmp_path: Path) -> None:
    path = write(tmp_path, "pods.csv", OPENB)
    assert seconds(load_workload(path, shared="work").apps[1].jobs[0]) == pytest.approx(46)
    assert [a.name for a in load_workload(path, shared="drop").apps] == ["p0"]


def test_pods_that_the_end_of_the_log_cut_short_can_be_dropped(tmp_path: Path) -> None:
    path = write(tmp_path, "pods.csv", OPENB)
    assert only(load_workload(path, censored="drop").apps).gpus_max == 1


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("gpu_milli", "x,1,1,1,1500,,BE,Failed,50,150,50", "1500"),
        ("num_gpu", "x,1,1,-1,1000,,BE,Failed,50,150,50", "-1"),
        ("deletion_time", "x,1,1,1,1000,,BE,Failed,50,40,50", "40"),
        ("creation_time", "x,1,1,1,1000,,BE,Failed,,150,50", ""),
        ("name", "p0,1,1,1,1000,,BE,Failed,50,150,50", "p0"),
    ],
)
def test_a_faulty_openb_row_is_located(tmp_path: Path, column: str, row: str, value: str) -> None:
    assert_fault(write(tmp_path, "pods.csv", OPENB + row + "\n"), line=6, column=column, value=value)


def test_the_real_openb_list_has_6203_pods_that_ran_on_gpus(shared_data: Path) -> None:
    path = str(shared_data / "alibaba-gpu-v2023" / "openb_pod_list_default.csv.gz")
    workload = load_workload(path)
    summary = describe(workload)
    assert (summary.jobs, summary.users) == (6_203, 4)
    assert summary.gpu_hours == pytest.approx(59_612, abs=1)
    assert "1088 jobs left out: without GPUs" in workload.source
    assert describe(load_workload(path, censored="drop")).gpu_hours == pytest.approx(24_316, abs=1)


def test_the_real_types_of_openb_are_kept_so_that_a_cluster_must_have_them(shared_data: Path) -> None:
    path = str(shared_data / "alibaba-gpu-v2023" / "openb_pod_list_gpuspec33.csv.gz")
    typed = [job for app in load_workload(path).apps for job in app.jobs if job.gpu_types]
    assert {"T4", "P100", "G2", "V100M32"} <= {kind for job in typed for kind in job.gpu_types}
    check_fits(load_workload(path, gpu_types=False), load_cluster("8x8"))
