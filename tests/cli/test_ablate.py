"""`mt ablate`: what it takes, prints and leaves with."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Program = Callable[..., tuple[int, str, str]]
Calls = list[tuple[Any, Path]]


@dataclass(frozen=True)
class FakeResults:
    exit_status: int = 0

    def as_text(self) -> str:
        return "| base | 2 ± 1 |"

    def as_json(self) -> str:
        return "{}"


@pytest.fixture
def file(tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(
        f"config: {tiny_recipe}\nset: [training.max_updates=4, training.validate_every=4]\n"
        "seeds: [7]\nsplit: test\nchanges: {untied: [model.tie_embeddings=none]}\n"
    )
    return Path("small.yaml")


def without_training(monkeypatch: pytest.MonkeyPatch, results: FakeResults) -> Calls:
    """Put a recorder in the place of the module that trains, so that nothing heavy is loaded."""
    calls: Calls = []
    module = ModuleType("mt.experiments.ablation")

    def run_ablation(ablation: Any, runs: Path) -> FakeResults:
        calls.append((ablation, runs))
        return results

    module.run_ablation = run_ablation  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mt.experiments.ablation", module)
    return calls


def test_the_folder_of_the_runs_is_named_after_the_file_or_given(
    file: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = without_training(monkeypatch, FakeResults())
    assert program("ablate", file) == (0, "| base | 2 ± 1 |\n", "")
    assert program("ablate", file, "--runs", "elsewhere", "--json") == (0, "{}\n", "")
    assert [runs for _, runs in calls] == [Path("runs/ablation-small"), Path("elsewhere")]
    assert [variant.name for variant in calls[0][0].variants] == ["base", "untied"]


def test_an_interrupted_ablation_prints_what_it_has_and_leaves_with_the_status_for_it(
    file: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_training(monkeypatch, FakeResults(exit_status=143))
    assert program("ablate", file) == (143, "| base | 2 ± 1 |\n", "")


def test_a_bad_change_is_one_line_before_anything_is_trained(
    file: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = without_training(monkeypatch, FakeResults())
    file.write_text(file.read_text().replace("tie_embeddings=none", "tie_embedding=none"))
    status, out, err = program("ablate", file)
    assert (status, out, calls) == (2, "", [])
    assert err == (
        "error: small.yaml:5: `changes.untied`: --set model.tie_embedding: unknown; "
        "did you mean `model.tie_embeddings`?\n"
    )


def test_a_real_ablation_gives_a_table_and_the_same_as_json(file: Path, program: Program) -> None:
    status, out, err = program("ablate", file)
    assert status == 0
    head, _, base, untied, _, signature, *notes = out.splitlines()
    assert head.startswith("| variant | parameters | updates/s | vs base | valid loss |")
    assert (base.split()[1], untied.split()[1]) == ("base", "untied")
    # The test's references are lower-cased, which its score says; validation's does not.
    assert signature.startswith("- BLEU of `base`, `untied`: nrefs:1|")
    assert signature.endswith("|text:lower-cased")
    assert notes[-1] == (
        "- one seed alone has no spread, a difference may be chance: `base`, `untied`"
    )
    assert "run 2 of 2: untied-seed7\n" in err
    assert Path("runs/ablation-small/untied-seed7/model.json").exists()
    status, out, _ = program("ablate", file, "--json")
    assert status == 0
    for variant, row in zip(json.loads(out)["variants"], (base, untied), strict=True):
        cells = [cell.strip() for cell in row.split("|")]
        assert cells[2] == f"{variant['parameters']:,}"
        assert cells[3] == f"{variant['updates_per_second']['mean']:.2f}"
        assert cells[5] == f"{variant['valid_loss']['mean']:.3f}"
        assert cells[9] == f"{variant['test_bleu']['mean']:.2f}"
