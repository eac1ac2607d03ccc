"""Command `mt distill` with a run as the teacher."""

import json
from pathlib import Path

import pytest

from tests.factories import Program, Refused


@pytest.fixture
def mono(tiny_corpus: Path, tmp_path: Path) -> Path:
    path = tmp_path / "more.en"
    path.write_text((tiny_corpus / "train.en").read_text() + "\n")
    return path


def test_distillation_of_a_text_writes_pairs_and_a_record(
    finished_run: Path,
    mono: Path,
    tmp_path: Path,
    program: Program,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = tmp_path / "out"
    call = ("distill", finished_run, mono, "--out", out, "--noise", "--device", "cpu")
    sample = ("--set", "decoding.search=sample")
    status, printed, err = program(*call, *sample)
    assert (status, err) == (0, "")
    record = json.loads((out / "more.json").read_text())
    written = record["counts"]["written"]
    assert record["settings"]["decoding.search"] == "sample"
    assert record["settings"]["noise.mask"] == 0.1
    assert record["counts"]["blank line"] == 1
    assert sum(record["counts"].values()) == record["lines"] == 61
    assert [path.name for path in sorted(out.iterdir())] == ["more.de", "more.en", "more.json"]
    for name in ("more.de", "more.en"):
        assert (out / name).read_bytes().count(b"\n") == written
    assert printed.splitlines()[0].split() == ["lines", "read", "61"]
    assert f"pairs written {written}" in " ".join(printed.split())
    assert printed.splitlines()[-2:] == [str(out / "more.en"), str(out / "more.de")]
    before = [path.read_bytes() for path in sorted(out.iterdir())]
    status, again, err = program(*call, *sample)
    assert (status, again, caplog.messages) == (0, printed, [f"{out}/more.json: finished already"])
    status, printed, err = program(*call)
    assert (status, printed) == (2, "")
    assert err.startswith(f'error: {out}/more.json: was begun with `decoding.search` "sample", now')
    assert err.endswith("name another output\n")
    assert [path.read_bytes() for path in sorted(out.iterdir())] == before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_list_the_missing_ones_and_join(
    finished_run: Path, mono: Path, tmp_path: Path, program: Program
) -> None:
    options = ("--device", "cpu", "--set", "decoding.batch_size=2")
    call = ("distill", finished_run, mono, "--out", tmp_path / "out", *options)
    for shard, last in {
        "2/3": "missing shards: 1/3, 3/3",
        "1/3": "missing shards: 3/3",
        "3/3": f"{tmp_path}/out/more.de",
    }.items():
        if shard == "3/3":
            status, _, err = program(*call, "--shard", "1/2")
            assert status == 2
            assert "was begun with `shards` 3, now it is 2" in err
        printed = program(*call, "--shard", shard)[1]
        assert printed.splitlines()[-1] == last
    one = tmp_path / "one"
    assert program(*call[:4], one, *call[5:])[0] == 0
    assert contents(tmp_path / "out") == contents(one)


def test_work_without_a_pair_left_is_an_error_after_the_counts(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path, program: Program
) -> None:
    blank, candidates = tmp_path / "blank.en", tmp_path / "by.tsv"
    blank.write_text("\n \n\n")
    candidates.write_text("one two\t\nthree four\t\n")
    by_run = ("distill", finished_run, blank, "--device", "cpu")
    by_file = ("distill", tiny_recipe, "--from", candidates)
    for call, lines, reason in ((by_run, 3, "blank line"), (by_file, 2, "empty")):
        for _ in range(2):  # the same command again
            status, out, err = program(*call, "--out", tmp_path / "out")
            assert status == 2
            assert reason in out
            assert err.splitlines()[-1].startswith(f"error: no pair is left of {lines} lines; ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{run} {text} --out o --shard 3/2", "--shard 3/2: "),
        ("{run} {text} --out o --set beam=4", "did you mean `decoding.beam`?"),
        ("{run} {text}n --out o", "did you mean `more.en`?"),
        ("{text} {text} --out o", "is a file, a run folder was expected"),
        ("{run} --out o", "expected RUN, and CONFIG or a text, got: "),
        ("{run} {text} --out o --allow copy", "--allow requires --from"),
        ("{run} {text} --out file", "file: is a file"),
    ],
)
def test_invalid_call_is_one_line_and_makes_no_folder(
    arguments: str,
    message: str,
    finished_run: Path,
    mono: Path,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(mono.parent)
    Path("file").touch()
    words = arguments.format(run=finished_run, text=mono).split()
    assert message in refused("distill", *words)
    assert not Path("o").exists()
