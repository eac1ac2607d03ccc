"""Commands `mt backtranslate` and `mt distill`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories import Program


@pytest.fixture
def mono(tiny_corpus: Path, tmp_path: Path) -> Path:
    path = tmp_path / "more.en"
    path.write_text((tiny_corpus / "train.en").read_text() + "\n")
    return path


def test_backtranslation_writes_pairs_and_a_record(
    finished_run: Path,
    mono: Path,
    tmp_path: Path,
    program: Program,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = tmp_path / "out"
    call = ("backtranslate", finished_run, mono, "--out", out, "--mask", "0.1", "--device", "cpu")
    status, printed, err = program(*call)
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
    assert printed.splitlines()[-2:] == [str(out / "more.de"), str(out / "more.en")]
    before = [path.read_bytes() for path in sorted(out.iterdir())]
    status, again, err = program(*call)
    assert (status, again, caplog.messages) == (0, printed, [f"{out}/more.json: finished already"])
    status, printed, err = program(*call, "--search", "beam")
    assert (status, printed) == (2, "")
    assert err.startswith(f"error: {out}/more.json: was begun with `decoding.search` sample, now")
    assert err.endswith("name another output\n")
    assert [path.read_bytes() for path in sorted(out.iterdir())] == before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_list_the_missing_ones_and_join(
    finished_run: Path, mono: Path, tmp_path: Path, program: Program
) -> None:
    options = ("--device", "cpu", "--set", "decoding.batch_size=2")
    call = ("backtranslate", finished_run, mono, "--out", tmp_path / "out", *options)
    for shard, last in {
        "2/3": "missing shards: 1/3, 3/3",
        "1/3": "missing shards: 3/3",
        "3/3": f"{tmp_path}/out/more.en",
    }.items():
        if shard == "3/3":
            status, _, err = program(*call, "--search", "greedy", "--shard", "1/2")
            assert status == 2
            assert "was begun with `shards` 3, now it is 2" in err
        printed = program(*call, "--search", "greedy", "--shard", shard)[1]
        assert printed.splitlines()[-1] == last
    one = tmp_path / "one"
    assert program(*call[:4], one, *call[5:], "--search", "greedy")[0] == 0
    assert contents(tmp_path / "out") == contents(one)


def test_distillation_writes_pairs(
    finished_run: Path, tiny_recipe: Path, tiny_corpus: Path, tmp_path: Path, program: Program
) -> None:
    call = ("distill", finished_run, tiny_recipe, "--device", "cpu")
    status, printed, err = program(*call, "--out", tmp_path / "one")
    assert (status, err) == (0, "")
    assert printed.splitlines()[-1] == str(tmp_path / "one" / "train.de")
    sources = (tmp_path / "one" / "train.en").read_text().splitlines()
    assert set(sources) <= set((tiny_corpus / "train.en").read_text().splitlines())
    assert len(sources) == int(" ".join(printed.split()).partition("pairs written ")[2].split()[0])
    status, _, err = program(
        *call, "--out", tmp_path / "two", "--n-best", "2", "--similarity", "chrf"
    )
    assert (status, err) == (0, "")
    settings = json.loads((tmp_path / "two" / "train.json").read_text())["settings"]
    assert (settings["n_best"], settings["similarity"]) == (2, "chrf")
    one, two = ((tmp_path / name / "train.de").read_text() for name in ("one", "two"))
    assert one != two


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("backtranslate {run} {text} --out o --shard 3/2", "--shard 3/2: "),
        ("backtranslate {run} {text} --out o --drop 1", "--drop 1.0: is a probability from 0"),
        ("backtranslate {run} {text} --out o --set beam=4", "did you mean `decoding.beam`?"),
        ("backtranslate {run} {text}n --out o", "did you mean `more.en`?"),
        ("backtranslate {text} {text} --out o", "is a file, a run folder was expected"),
        ("backtranslate {run} {text}", "Missing option '--out'"),
        ("distill {run} {text} --out o --n-best 2", "--n-best needs a CONFIG"),
        (
            "distill {run} {recipe} --out o --n-best 3",
            "`decoding.beam` must be at least 3, it is 2",
        ),
        ("distill {run} no.yaml --out o", "no.yaml: no such file"),
        ("distill {run} {recipe} --out o --set seed=1", "only keys of `decoding` can be set here"),
    ],
)
def test_invalid_call_is_one_line_and_makes_no_folder(
    arguments: str,
    message: str,
    finished_run: Path,
    tiny_recipe: Path,
    mono: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(mono.parent)
    words = arguments.format(run=finished_run, text=mono, recipe=tiny_recipe).split()
    assert message in refused(*words)
    assert not Path("o").exists()
