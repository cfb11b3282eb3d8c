"""Whatever is in a file, every reader gives a workload or one sentence: never a traceback."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from themis.errors import InputError
from themis.traces.formats import load_workload, reader_of
from themis.traces.trace_errors import find_faults

PHILLY = json.dumps(
    [
        {
            "status": "Pass",
            "vc": "v",
            "jobid": "j",
            "user": "u",
            "submitted_time": "2017-10-07 01:11:39",
            "attempts": [
                {
                    "start_time": "2017-10-07 01:12:09",
                    "end_time": "2017-10-07 01:13:23",
                    "detail": [{"ip": "m1", "gpus": ["gpu0"]}],
                }
            ],
        }
    ]
)
GAVEL = "A (batch size 8)\tc\td\ta\t1\t100\t2\t1\t-1\t0\n"
SAMPLES = {
    "csv": "app,user,submit_s,gpus,duration_s,tuner,loss,steps\na,u,0,2,60,bag,1 0 0,\nb,u,0,2,,halving 1x5,,5@2 6@3\n",
    "philly_log": PHILLY,
    "philly_jobs": "vc,submit_s,num_gpus,duration_s\nv,0,1,5\nv,3,2,5\n",
    "itp": "job_id,submission_time,duration,num_gpu\na,0,5,1\nb,3,5,2\n",
    "helios": "job_id,user,vc,gpu_num,state,submit_time,duration\n1,u,v,2,FAILED,2020-06-09 18:41:01,5\n",
    "slurm": "JobID|User|Submit|Elapsed|AllocTRES\n1|u|2024-01-05T12:00:00|1-00:01:02|cpu=8,gres/gpu:a=2,gres/gpu=2\n",
    "openb": "name,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p,1,500,A|B,LS,Running,0,9,1\n",
    "gavel": GAVEL,
    "shockwave": "\t".join([*GAVEL.split("\t")[:7], "gns", "1", "-1", "60", "0\n"]),
}

edits = st.lists(
    st.tuples(
        st.floats(0, 0.999),
        st.integers(0, 4),
        st.sampled_from(
            ["", "-", "nan", "inf", "1e999", '"', "\n", ",", "\t", "|", "\x00", "0", "é", "9" * 30, "[", "null"]
        ),
    ),
    max_size=4,
)


@pytest.mark.parametrize("name", SAMPLES)
@given(edits=edits)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_edited_file_is_read_or_refused_in_a_sentence(
    name: str, tmp_path: Path, edits: list[tuple[float, int, str]]
) -> None:
    text = SAMPLES[name]
    for where, cut, insert in edits:
        at = int(where * len(text))
        text = text[:at] + insert + text[at + cut :]
    path = tmp_path / "trace.txt"
    path.write_text(text, encoding="utf-8")
    found = find_faults(path, reader_of(str(path), name, {}))
    if found:
        assert all(str(fault).endswith(".") for fault in found)
        with pytest.raises(InputError):
            load_workload(str(path), format=name)
    else:
        assert load_workload(str(path), format=name).apps


@pytest.mark.parametrize("keep", [0, 20, 200, 600])
def test_a_truncated_archive_is_refused_in_a_sentence(tmp_path: Path, keep: int) -> None:
    member = tmp_path / "cluster01.csv"
    member.write_text(
        SAMPLES["itp"] + "".join(f"x{i},{i},{i * 7919 % 1013 + 1},1\n" for i in range(500)), encoding="utf-8"
    )
    archive = tmp_path / "itp.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(member, member.name)
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"itp\.tar\.gz"):
        load_workload(str(archive))
