"""The program of `make gpu`: its sections on a CPU, failures, time limits, the report."""

import copy
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import correctness
from bench.gpu.__main__ import main, sections
from bench.gpu.runner import Settings
from mt.model.transformer import Transformer

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"- (pass|fail|note): .+, .+")
STARTS_PROGRAMS = {"resume", "ranks", "tests", "compilation", "compiled"}
FAKE = """\
import os, sys, time
from bench.gpu import runner
from bench.gpu.runner import Check, Section, Settings, Unavailable, attempt

def good(settings):
    yield attempt("sum", lambda: str(1 + 1))
    print("of a library")

def raising(settings):
    yield attempt("before", lambda: "1")
    yield attempt("division", lambda: str(1 / 0))
    yield attempt("after", lambda: "2")
    raise KeyError("whole section")

def unavailable(settings):
    def work():
        raise Unavailable("not here")
    yield attempt("device", work)

def dying(settings):
    yield attempt("alive", lambda: "yes")
    os._exit(3)

def hanging(settings):
    yield attempt("first", lambda: "1")
    time.sleep(60)

runner.GRACE_SECONDS = 0.2
works = [good, raising, unavailable, dying, hanging]
known = {work.__name__: Section(work.__name__.title(), work, 1.0) for work in works}
known["last"] = Section("Last", good, 1.0)
if "--worker" in sys.argv:
    names, ends_at = sys.argv[2].split(","), float(sys.argv[4])
    runner.run_worker(known, names, Settings("cpu", ends_at))
else:
    path, seconds = runner.Path(sys.argv[1]), float(sys.argv[2])
    sys.exit(runner.supervise(known, [sys.executable, __file__], seconds=seconds, path=path))
"""


def run(*words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_sections_after_a_failure_run(tmp_path: Path) -> None:
    script, report = tmp_path / "fake.py", tmp_path / "build" / "report.md"
    script.write_text(FAKE)
    result = run(script, report, 60)
    assert result.returncode == 1, result.stderr
    assert "ZeroDivisionError: division by zero" in result.stderr
    text = re.sub(r" \(\d+ s\)", "", report.read_text())
    counts, body = text.split("\n\n", 2)[1:]
    assert counts.startswith("6 passed, 4 failed, 1 notes; ")
    assert body.split("\n\n") == [
        "## Good",
        "- pass: sum, 2",
        "## Raising",
        "- pass: before, 1\n"
        "- fail: division, ZeroDivisionError: division by zero\n"
        "- pass: after, 2\n"
        "- fail: Raising, KeyError: 'whole section'",
        "## Unavailable",
        "- note: device, not here",
        "## Dying",
        "- pass: alive, yes\n- fail: dying, the process ended with status 3",
        "## Hanging",
        "- pass: first, 1\n- fail: hanging, stopped at its time limit",
        "## Last",
        "- pass: sum, 2\n",
    ]
    assert result.stdout.splitlines()[:2] == ["pass: sum, 2", "pass: before, 1"]


def test_sections_without_time_are_named(tmp_path: Path) -> None:
    script, report = tmp_path / "fake.py", tmp_path / "report.md"
    script.write_text(FAKE)
    result = run(script, report, 1)
    assert result.returncode == 0, result.stderr
    assert "## Not run\n\n- Good\n- Raising\n" in report.read_text()
    assert "not run: Last, the time is over" in result.stdout


@pytest.mark.parametrize("name", sorted(set(sections()) - STARTS_PROGRAMS))
def test_section_passes_on_a_cpu(name: str) -> None:
    checks = [*sections()[name].work(Settings("cpu", time.monotonic() + 60))]
    assert [str(check) for check in checks if check.status == "fail"] == []
    assert all(LINE.fullmatch(f"- {check}") for check in checks)
    if name != "products":
        assert any(check.status == "pass" for check in checks)


def test_other_values_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other weights in the copy on the device."""
    deepcopy = copy.deepcopy

    def other(model: Any, memo: Any = None) -> Any:
        copied = deepcopy(model, memo)
        if memo is None and isinstance(model, Transformer):
            with torch.no_grad():
                copied.output.weight.add_(torch.randn_like(copied.output.weight))
        return copied

    monkeypatch.setattr(copy, "deepcopy", other)
    checks = [*correctness.searches(Settings("cpu", time.monotonic() + 60))]
    assert {check.status for check in checks if "alignments" not in check.what} == {"fail"}


def test_missing_device_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", "--report", str(tmp_path / "report.md")])
    assert main() == 2
    message = "error: no CUDA device; --device cpu tries the program alone\n"
    assert capsys.readouterr() == ("", message)
    assert not (tmp_path / "report.md").exists()


@pytest.mark.slow  # trains, compiles, and starts many programs
@pytest.mark.timeout(600)
def test_all_sections_run(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    result = run("-m", "bench.gpu", "--device", "cpu", "--report", report)
    assert result.returncode == 0, result.stdout
    lines = report.read_text().splitlines()
    titles = [line[3:].rpartition(" (")[0] for line in lines if line.startswith("## ")]
    assert titles == [section.title for section in sections().values()]
    checks = [line for line in lines if line.startswith("- ")]
    assert all(map(LINE.fullmatch, checks))
    assert [line[2:] for line in checks] == result.stdout.splitlines()[:-1]
