"""Commands `mt bench train` and `mt bench decode`."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories import Program

TRAINING_KEYS = (
    "device precision threads updates source_tokens target_tokens source_tokens_per_second "
    "target_tokens_per_second flops_per_target_token matmul_flops_per_second matmul_share "
    "source_padding_share target_padding_share data_wait_share seconds cpu_seconds phase_seconds "
    "loss peak_rss_mib peak_device_mib"
)
SPEED_KEYS = (
    "search beam batch_size sentences target_tokens seconds sentences_per_second "
    "target_tokens_per_second"
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt.profiling.cost.SAMPLE_SECONDS", 1e-4)


def test_training_benchmark_as_json(program: Program, tiny_recipe: Path) -> None:
    status, out, err = program("bench", "train", tiny_recipe, "--updates", "2", "--json")
    assert status == 0
    assert "pairs to train on" in err
    found = json.loads(out)
    assert " ".join(found) == TRAINING_KEYS
    assert found["updates"] == 2
    assert found["matmul_flops_per_second"].keys() == {"before", "after"}
    assert [*found["phase_seconds"]] == ["data", "forward", "loss", "backward", "optimiser"]
    assert 0 <= found["data_wait_share"] < 1
    assert 4 < found["loss"] < 7
    assert found["target_tokens"] == pytest.approx(
        found["seconds"] * found["target_tokens_per_second"]
    )


def test_training_benchmark_as_a_table(program: Program, tiny_recipe: Path) -> None:
    call = ("bench", "train", tiny_recipe, "--updates", "1")
    status, out, _ = program(*call, "--set", "model.heads=4")
    assert status == 0
    head, _, *rows = out.splitlines()
    assert head == f"{tiny_recipe}: 1 updates, fp32 on cpu, 1 threads"
    names = [row.partition("  ")[0] for row in rows]
    assert names == [
        *("target tokens/s", "source tokens/s", "model FLOPs", "model FLOP/s"),
        *("matmul rate", "share of matmul rate", "padding", "waiting for data", "peak memory"),
        *("loss", "", "phase", "data", "forward", "loss", "backward", "optimiser"),
    ]
    shares = [float(row.split()[-1].rstrip("%")) for row in rows[-5:]]
    assert sum(shares) == pytest.approx(100, abs=0.5)


def test_decoding_benchmark_as_json_and_as_a_table(program: Program, finished_run: Path) -> None:
    call = ("bench", "decode", finished_run, "--device", "cpu", "--batch-size", "2")
    status, out, _ = program(*call, "--batch-size", "4", "--json", "--set", "decoding.beam=3")
    assert status == 0
    found = json.loads(out)
    assert found.keys() == {"split", "device", "threads", "speeds"}
    assert {" ".join(speed) for speed in found["speeds"]} == {SPEED_KEYS}
    cases = [(each["search"], each["beam"], each["batch_size"]) for each in found["speeds"]]
    assert cases == [("greedy", 1, 2), ("greedy", 1, 4), ("beam", 3, 2), ("beam", 3, 4)]

    status, out, _ = program(*call)
    assert status == 0
    head, _, names, greedy, beam = out.splitlines()
    sentences = found["speeds"][0]["sentences"]
    assert head == f"{finished_run}: {sentences} sentences of test, cpu, 1 threads"
    assert re.split(r"\s{2,}", names)[2:] == ["batch size", "sentences/s", "target tokens/s"]
    assert (greedy.split()[:3], beam.split()[:3]) == (["greedy", "1", "2"], ["beam", "2", "2"])


def test_missing_corpus_is_refused(
    refused: Callable[..., str], tiny_recipe: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(tiny_recipe.read_text().replace("train.en", "no-such-file.en"))
    assert "no-such-file.en: no such file" in refused("bench", "train", recipe)
