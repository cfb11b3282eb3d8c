"""Job files: what they say, and every fault of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_texts import faults, job, jobs

from themis.errors import InputError
from themis.faults import keys_of
from themis.jobs import After, When, build, check, decide, parse, read_jobs
from themis.jobs.written import JobText
from themis.limits import read_text


def test_a_job_is_read_with_its_defaults() -> None:
    spec = job("", base="name: a\ncommand: python 'my script.py' --x\n")
    assert spec.command == ("python", "my script.py", "--x")
    assert (spec.gpus_min, spec.gpus_max, spec.retries, spec.walltime_s, spec.workdir) == (1, 1, None, None, "/work")


def test_several_documents_are_several_apps() -> None:
    assert [spec.name for spec in jobs("name: a\ncommand: x\n---\n---\nname: b\ncommand: y\nafter: a\n")] == ["a", "b"]


def test_all_faults_of_all_documents_are_told_with_their_lines() -> None:
    told = faults(
        """\
        name: a
        comand: x
        gpus: 8..2
        ---
        name: b
        command: y
        walltime: 2x
        env: {THEMIS_X: 1}
        """
    )
    assert [fault.partition(":")[0] for fault in told] == ["line 2", "line 3", "line 7", "line 8"]
    assert "unknown key 'comand'. Did you mean 'command'?" in told[0]
    assert "gpus is '8..2', expected a number of GPUs such as 4, or 2..8" in told[1]
    assert "walltime is '2x', expected a time such as" in told[2]
    assert "THEMIS_" in told[3]


def test_a_key_that_is_missing_is_told_unless_it_was_mistyped() -> None:
    assert faults("name: a\ngpus: 2\n") == ["line 1: missing key 'command'."]
    (told,) = faults("name: a\ncommand: x\nsweep:\n  parameter: {lr: [1, 2]}\n  budget: 10\n")
    assert told.startswith("line 4: unknown key 'parameter' in sweep. Did you mean 'parameters'?")
    told, other = faults("nam: a\nwork: 3\ngpu: 1\ncommand: x\n")
    assert ("'name'" in told, "'gpus'" in other) == (True, True)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("walltim", "walltime"),
        ("cwd", "workdir"),
        ("environment", "env"),
        ("depends-on", "after"),
        ("timeout", "walltime"),
        ("gpu", "gpus"),
        ("batch_size", "batch"),
        ("mem", "memory"),
    ],
)
def test_an_unknown_key_is_told_with_what_was_meant(wrong: str, right: str) -> None:
    (fault,) = faults(f"name: a\ncommand: x\n{wrong}: 1\n")
    assert f"unknown key {wrong!r}. Did you mean {right!r}?" in fault


def test_a_batch_size_that_the_scheduler_would_choose_is_refused_with_what_to_write_instead() -> None:
    text = "name: a\ncommand: x\ngpus: 1..64\n"
    assert faults(text) == []
    (fault,) = faults(text + "adaptive: {batch: 128..4096, base: 128}\n")
    assert fault.startswith("line 4: adaptive is {'batch': '128..4096', 'base': 128}, expected no such key")
    assert "gpus: 1..8" in fault
    assert "dynamic" in fault
    assert "Did you mean" not in fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty"),
        ("name: [", "not valid YAML"),
        ("- a", "expected a mapping with keys from: name, command"),
        ("name: a\nname: b\ncommand: x", "duplicate key 'name'"),
        ("{[1]: 2}", "a key that is neither text nor a whole number"),
        ("name: !!python/object:os.system a", "it has the tag"),
        ("name: a\ncommand: x\n---\nname: a\ncommand: y", "duplicate name 'a', also in line 1"),
        ("name: a b\ncommand: x", "expected a name of letters"),
        (f"name: {'a' * 65}\ncommand: x", "at most 64 characters"),
        ("name: a\ncommand: 'x", "not valid YAML"),
        ("name: a\ncommand: x 'y", "with closed quotes"),
        ("name: a\ncommand: []", "expected a program and its arguments"),
        ('name: a\ncommand: ["x\\0"]', "expected a program and its arguments"),
        ('name: a\ncommand: ["\\ud800"]', "expected a program and its arguments"),
        ("name: a\ncommand: x\nwork: 9 epochs", "work in epochs requires the key 'steps_per_epoch'"),
        ("name: a\ncommand: x\nmodel: ResNet5", "Did you mean 'ResNet50'?"),
        ("name: a\ncommand: x\nmodel: ResNet50\nspeed: 2", "'model' and 'speed' exclude each other"),
        ("name: a\ncommand: x\nslowdown: [1, 1, 1, 1]", "requires the key 'speed'"),
        ("name: a\ncommand: x\nspeed: {V100: 2}\ngpu_types: A100", "expected at least one of the gpu_types A100"),
        ("name: a\ncommand: x\nspeed: {V100: {0: 2}}", "steps per second above 0"),
        ("name: a\ncommand: x\ngpu_types: {all_of: [V100]}", "expected a GPU type such as A100"),
        ("name: a\ncommand: x\ngpu_types: {any_of: []}", "expected a GPU type such as A100"),
        ("name: a\ncommand: x\nany_of: [V100]", "Did you mean 'gpu_types'?"),
        ("name: a\ncommand: x\nworkdir: ~/a", "without '~'"),
        ("name: a\ncommand: x\nstop_signal: SIGKILL", "a signal that the job can handle"),
        ("name: a\ncommand: x\nstop_signal: [1]", "a signal that the job can handle"),
        ("name: a\ncommand: x\nlaunch: node", "expected one of once, gpu, machine"),
        ("name: a\ncommand: x\nretries: true", "expected a whole number"),
        ("name: a\ncommand: x\ncpus: -1", "cpus is -1, expected a number from 0 to 100000"),
        ("name: a\ncommand: x\ncpus: .nan", "expected a"),
        ("name: a\ncommand: x\nafter: {b: done}", "ok, any or failed"),
        ("name: a\ncommand: x\nafter: {b: okay}", "not 'okay'. Did you mean 'ok'?"),
        ("name: a\ncommand: x {idx}\narray: 3", "unknown placeholder '{idx}'. Did you mean 'index'?"),
        (
            "name: a\ncommand: x\narray: 3\nsweep: {parameters: {p: [1]}, budget: 9}",
            "'array' and 'sweep' exclude each other",
        ),
        ("name: a\ncommand: x\nafter: a", "circular dependency (a waits for a)"),
    ],
)
def test_every_fault_is_one_sentence(text: str, expected: str) -> None:
    told = faults(text)
    assert expected in " ".join(told)
    assert all("\n" not in fault and fault.endswith((".", "?")) for fault in told)


def test_yaml_means_what_its_writer_meant() -> None:
    """Not what YAML 1.1 makes of it: no, 1e-5 and 1:30:00 are text, a number and text."""
    spec = job("env: {ANSWER: no, RATE: 1e-5, TIME: 1:30:00, VERSION: 1.10, NONE: }\nwalltime: 1:30:00\n")
    assert spec.env == {"ANSWER": "no", "RATE": "1e-5", "TIME": "1:30:00", "VERSION": "1.10", "NONE": ""}
    assert spec.walltime_s == 5400


def test_words_of_a_command_stay_as_they_were_written() -> None:
    (spec,) = jobs("name: a\ncommand: [x, --lr, 1e-05, --version, 1.10, --flag, true]\n")
    assert spec.command == ("x", "--lr", "1e-05", "--version", "1.10", "--flag", "true")


def test_documents_may_share_parts() -> None:
    (found,) = jobs("name: a\ncommand: x\nenv: {<<: {A: 1.0, B: 2}, B: 3}\n")
    assert found.env == {"A": "1.0", "B": "3"}


def test_a_few_lines_of_aliases_cannot_stand_for_billions_of_values() -> None:
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert "more than 10000 values" in " ".join(faults("\n".join(lines)))
    assert "nested deeper" in " ".join(faults("a: &a [*a]"))
    assert "nested deeper" in " ".join(faults("[" * 5000))


@pytest.mark.parametrize("opening", ["[", "{", "- ", "? ", "a: [{b: "])
def test_depth_is_refused_while_the_text_is_scanned_not_when_all_of_it_was(opening: str) -> None:
    # What is wrong behind it is never read.
    assert "nested deeper than 40 levels" in " ".join(faults(opening * 100 + "\n]}: '"))


def test_a_file_of_a_thousand_values_is_read() -> None:
    (spec,) = jobs("name: a\ncommand: [" + "x, " * 1000 + "x]\n")
    assert len(spec.command) == 1001


@pytest.mark.parametrize("entry", ["1, ", "{a: b}, ", "*b, "])
def test_too_many_values_are_refused_while_the_text_is_scanned(entry: str) -> None:
    text = "env: {a: &b 1}\ncommand: [" + entry * 30_000 + "}"
    assert "more than 10000 values" in " ".join(faults(text))


def test_a_file_has_at_most_500_documents() -> None:
    assert "more than 500 documents" in " ".join(faults("---\nname: x\ncommand: a\n" * 600))


@pytest.mark.parametrize(
    "work", ["0.0000001 steps", "0.0009", "1e-320", "1e16 steps", "0.0001 epochs", "1" + "0" * 400]
)
def test_work_that_is_not_computed_with_is_refused_by_its_line(work: str) -> None:
    assert "expected steps as a number" in " ".join(faults(f"name: x\ncommand: a\nwork: {work}\nspeed: 1\n"))


def test_an_app_is_not_named_as_if_by_its_number() -> None:
    assert "not all digits" in " ".join(faults("name: '9'\ncommand: a\n"))
    assert not faults("name: 9a\ncommand: a\nafter: '9'\n")


def test_folders_are_relative_to_where_the_file_is_submitted_from() -> None:
    spec = job("workdir: run\ncheckpoint_dir: ../saved\n", base="name: a\ncommand: x\n")
    assert (spec.workdir, spec.checkpoint_dir) == ("/work/run", "/saved")
    assert "expected an absolute path" in " ".join(faults("name: a\ncommand: x\nworkdir: run\n", folder=""))


def test_a_url_that_lacks_a_slash_is_no_folder() -> None:
    base = "name: a\ncommand: x\n"
    for wrong in ("themis:/", "s3:/bucket/path"):
        assert "with two slashes" in " ".join(faults(f"{base}checkpoint_dir: {wrong}\n"))
    assert job("checkpoint_dir: a:b/c\n", base).checkpoint_dir == "/work/a:b/c"


# ---- dependencies ----------------------------------------------------------------------------------------------------


def test_after_takes_a_name_names_or_conditions() -> None:
    base = "name: a\ncommand: x\n"
    assert job("after: b", base).after == (After(name="b"),)
    assert job("after: [b, c]", base).after == (After(name="b"), After(name="c"))
    assert job("after: {b: any, c: failed}", base).after == (
        After(name="b", when=When.ANY),
        After(name="c", when=When.FAILED),
    )


def test_apps_that_wait_in_a_circle_are_told_in_order() -> None:
    text = "\n---\n".join(f"name: {a}\ncommand: x\nafter: {b}" for a, b in ("ab", "bc", "ca"))
    assert faults(text) == [
        "line 3: key 'after': circular dependency (a waits for b waits for c waits for a); none of these apps would ever "
        "start."
    ]


def test_an_app_that_nobody_knows_is_a_fault_where_all_are_known() -> None:
    text = "name: a\ncommand: x\nafter: prepared\n"
    assert faults(text) == []
    assert faults(text, known=("prepare",)) == [
        "line 3: key 'after': there is no app 'prepared'. Did you mean 'prepare'?"
    ]
    assert faults(text, known=("prepared",)) == []


@pytest.mark.parametrize(
    ("ended", "verdict"),
    [
        ({}, None),
        ({"ok": True}, None),
        ({"ok": False}, False),
        ({"ok": True, "any": False, "bad": False}, True),
        ({"bad": True}, False),
        ({"ok": True, "any": True}, None),
    ],
)
def test_an_app_starts_once_all_it_waits_for_have_ended_as_wished(ended: dict[str, bool], verdict: bool | None) -> None:
    after = (After(name="ok"), After(name="any", when=When.ANY), After(name="bad", when=When.FAILED))
    assert decide(after, ended) is verdict


# ---- files -----------------------------------------------------------------------------------------------------------


def test_reading_files_raises_the_first_fault_and_says_how_many_there_are(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("name: a\ncomand: x\ngpus: 0\n")
    with pytest.raises(
        InputError, match=r"f.yaml, line 2: unknown key 'comand'. Did you mean 'command'\? .* \(1 more; `themis check`"
    ):
        read_jobs([path])
    assert len(check([path])) == 2


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00name"])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "f.yaml"
    if content is not None:
        path.write_bytes(content)
    (fault,) = check([path])
    assert fault.startswith(f"cannot read {str(path)!r}: ")


# ---- anything --------------------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["2..8", "16 GiB", "2h30m", "0-9%4", "90 epochs", "40 gpu-hours", "halving", "A100", "{lr}", "b", "ok"]
    ),
)
SWEEP_KEYS = [
    "parameters",
    "budget",
    "trials",
    "sampler",
    "seed",
    "tuner",
    "kind",
    "eta",
    "min_work",
    "rungs",
    "work",
    "check",
    "uniform",
    "loguniform",
    "int",
    "choice",
    "grid",
    "lr",
    "*",
    "A100",
]
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(SWEEP_KEYS), st.text(max_size=4), st.integers(1, 8)), inner, max_size=4
        ),
    ),
    max_leaves=6,
)
JOBS = st.fixed_dictionaries({"name": st.just("a"), "command": st.just("x {lr}")}).flatmap(
    lambda base: st.dictionaries(st.sampled_from(keys_of(JobText)), VALUES, max_size=5).map(lambda d: {**base, **d})
)
CALM = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=100)


def _read_or_refused(text: str) -> None:
    reading = parse(text, source="f.yaml", folder="/work")
    assert reading.faults or reading.submissions
    for fault in reading.faults:
        str(fault).encode()
        assert str(fault).startswith("f.yaml")
        assert "\n" not in str(fault)
    if not reading.faults:
        for spec in reading.submissions:
            build(spec, user="u")


@CALM
@given(JOBS)
def test_whatever_the_values_a_job_is_read_and_built_or_refused(data: dict[str, object]) -> None:
    _read_or_refused(yaml.safe_dump(data))


@CALM
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_whatever_the_text_it_is_refused_in_a_sentence(text: str) -> None:
    _read_or_refused(text)


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(InputError, match=r"'/dev/zero' has more than 4000000 bytes, expected a job file or a script"):
        read_text(Path("/dev/zero"))


@CALM
@given(st.data())
def test_a_damaged_file_is_read_and_built_or_refused(data: st.DataObject) -> None:
    path = (
        Path(__file__).parents[2]
        / "examples"
        / "jobs"
        / data.draw(st.sampled_from(["sweep.yaml", "array.yaml", "train.yaml"]))
    )
    text = path.read_text()
    at = data.draw(st.integers(0, len(text) - 1))
    cut = data.draw(st.integers(0, 5))
    _read_or_refused(
        text[:at] + data.draw(st.text(alphabet=":-{}[]&*!|>'\"%@ \n\t0.eax", max_size=3)) + text[at + cut :]
    )
