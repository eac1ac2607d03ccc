"""`mt score`."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

Program = Callable[..., tuple[int, str, str]]


@pytest.fixture
def files(tmp_path: Path, tiny_corpus: Path) -> list[str]:
    sources, targets = tmp_path / "s.txt", tmp_path / "t.txt"
    lines = (tiny_corpus / "test.en").read_text().splitlines()
    sources.write_text("".join(f"{line}\n" for line in [*lines, "", "\U0001f600 \u2028"]))
    lines = (tiny_corpus / "test.de").read_text().splitlines()
    targets.write_text("".join(f"{line}\n" for line in [*lines, "one", ""]))
    return ["--sources", str(sources), "--targets", str(targets), "--device", "cpu"]


def test_a_line_for_each_pair_and_the_perplexity_of_all(
    finished_run: Path, files: list[str], program: Program
) -> None:
    status, out, err = program("score", finished_run, *files)
    rows = [line.split("\t") for line in out.splitlines()]
    assert (status, len(rows)) == (0, 8)
    sums, tokens = [float(row[0]) for row in rows], [int(row[1]) for row in rows]
    for row, total, count in zip(rows, sums, tokens, strict=True):
        assert float(row[2]) == pytest.approx(total / count, abs=1e-6)
    found = re.search(r"perplexity ([\d.]+) per token, .*, (\d+) tokens .*, 8 sentences\n", err)
    assert found is not None
    assert int(found[2]) == sum(tokens)
    assert float(found[1]) == pytest.approx(math.exp(-sum(sums) / sum(tokens)), rel=1e-4)


def test_json_has_the_tokens_and_the_log_probability_of_each(
    finished_run: Path, files: list[str], program: Program
) -> None:
    _, plain, _ = program("score", finished_run, *files)
    status, out, _ = program("score", finished_run, *files, "--json")
    assert status == 0
    records = [json.loads(line) for line in out.split("\n")[:-1]]
    for record, line in zip(records, plain.splitlines(), strict=True):
        assert len(record["tokens"]) == len(record["log_probs"])
        assert record["log_prob"] == pytest.approx(sum(record["log_probs"]))
        assert f"{record['log_prob']:.6f}" == line.split("\t")[0]
    assert records[-1]["tokens"] == ["</s>"]
    text = "".join(records[0]["tokens"]).replace("\u2581", " ")
    assert text.removesuffix("</s>").split() == Path(files[3]).read_text().split("\n")[0].split()


def test_the_right_translations_are_likelier_than_others(
    finished_run: Path, files: list[str], program: Program, tmp_path: Path
) -> None:
    odd = tmp_path / "odd.txt"
    odd.write_text("".join(f"{'z' * number}\n" for number in range(8)))
    _, right, _ = program("score", finished_run, *files)
    _, wrong, _ = program("score", finished_run, *files[:2], "--targets", odd, "--device", "cpu")
    pairs = list(zip(right.splitlines(), wrong.splitlines(), strict=True))[2:6]
    for likely, unlikely in pairs:
        assert float(likely.split("\t")[2]) > float(unlikely.split("\t")[2]) + 1


def test_other_line_counts_are_told_in_one_line(
    finished_run: Path, files: list[str], program: Program
) -> None:
    with Path(files[3]).open("a") as file:
        file.write("too much\n")
    status, out, err = program("score", finished_run, *files)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {files[1]} has 8 lines, {files[3]} has 9: line N of one")
    assert err.count("\n") == 1
