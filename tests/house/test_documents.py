"""What the documents say holds: links lead somewhere, commands run, targets exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from themis.cli import main
from themis.model.settings import Settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def _names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def _anchors(document: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def _commands(document: Path) -> list[str]:
    """Lines of the shell blocks, continued lines joined, comments dropped."""
    blocks = re.findall(r"^```sh\n(.*?)^```", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in (" ".join(shlex.split(line, comments=True)) for line in lines) if line]


README_COMMANDS = _commands(ROOT / "README.md")


@pytest.mark.parametrize("name", _names(DOCUMENTS))
def test_every_link_leads_somewhere(name: str) -> None:
    document = ROOT / name
    for link in LINK.findall(document.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), f"{name} links to {link}, which is not there"
        assert not anchor or anchor in _anchors(target), f"{name} links to {link}; there is no such heading"


def test_the_readme_shows_commands() -> None:
    assert any(command.startswith("themis simulate") for command in README_COMMANDS)
    assert "make demo" in README_COMMANDS


@pytest.mark.slow
def test_every_themis_command_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In order, in one folder: later commands read what earlier ones wrote."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    for command in README_COMMANDS:
        if command.startswith("themis "):
            assert _exit_code(command) == 0, f"{command}\n{capfd.readouterr()}"


def _exit_code(command: str) -> object:
    try:
        main(shlex.split(command)[1:])
    except SystemExit as end:
        return end.code or 0
    return 0


@pytest.mark.parametrize("document", _names(DOCUMENTS))
def test_every_make_target_exists(document: str) -> None:
    for command in _commands(ROOT / document):
        if command.startswith("make"):
            subprocess.run(
                [*shlex.split(command), "--dry-run"],
                cwd=ROOT,
                check=True,
                capture_output=True,
                env={"PATH": "/usr/bin:/bin"},
                timeout=60,
            )


def test_what_the_page_of_papers_names_is_there() -> None:
    """Modules, functions and tests in its tables; a name in backticks may leave the package's own out."""
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src" / "themis").rglob("*.py")}
    by_module = {
        str(path.relative_to(ROOT / "src" / "themis").with_suffix("")).replace("/", ".").removesuffix(".__init__"): text
        for path, text in sources.items()
    }
    tests = list((ROOT / "tests").rglob("test_*.py"))
    every_test = "\n".join(path.read_text(encoding="utf-8") for path in tests)
    everything = "\n".join(sources.values())
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([\w./]+)[^`]*`", page):
        if name.endswith((".py", "/")):
            assert (ROOT / name).exists() or name in {path.name for path in tests}, name
        elif name.startswith("test_"):
            assert f"def {name}" in every_test, name
        else:
            parts = f"policies{name}".split(".") if name.startswith(".") else name.strip(".").split(".")
            known = next((i for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in by_module), 0)
            text = by_module[".".join(parts[:known])] if known else everything
            assert all(re.search(rf"\b{part}\w*", text) for part in parts[known:]), name


def test_the_settings_of_a_simulation_are_described_with_their_defaults() -> None:
    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    for field in fields(Settings):
        if field.name != "seed":  # --seeds says it
            number = not isinstance(field.default, bool | str)
            default = f"{field.default:g}" if number else str(field.default).lower()
            assert re.search(rf"^\| `{field.name}` \| .* \({default}\) \|$", page, flags=re.MULTILINE), field.name


def test_python_blocks_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
