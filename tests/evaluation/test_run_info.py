import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from mt.config import DataConfig, TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.tokenizer_training import train_tokenizer
from mt.decoding.load import read_run
from mt.errors import RunError, UserError
from mt.evaluation.run_info import choose_split, list_rows, read_info
from mt.runs import read_exported
from tests.factories import flip_bit


def evaluated(run: Path, split: str, **changed: object) -> None:
    model = json.loads((run / "model.json").read_text())
    record = {
        "split": split,
        "bleu": {"score": 31.5, "signature": "nrefs:1|tok:13a"},
        "chrf": {"score": 55.25, "signature": "nrefs:1|nc:6"},
        "sentences": 5,
        "decoding": {"search": "beam", "beam": 2},
        "weights": model["weights"],
        **changed,
    }
    (run / "evaluations").mkdir(exist_ok=True)
    (run / "evaluations" / f"{split}.json").write_text(json.dumps(record))


def test_finished_run_is_described(finished_run: Path, tiny_corpus: Path) -> None:
    info, read = read_info(finished_run), read_run(finished_run)
    assert info["config"] == read.config.model_dump(mode="json", by_alias=True)
    model, tokenizer = info["model"], info["tokenizer"]
    assert model["parameters"] == sum(tensor.numel() for tensor in read.weights.values())
    assert model["bytes"] == (finished_run / "model.safetensors").stat().st_size
    assert model["sha256"] == read.record.sha256
    assert (model["updates"], info["updates"]) == (40, 40)
    assert model["longest_source"] == read.longest_source
    assert model["validation"].startswith("valid, 7 pairs, greedy: loss ")
    assert (tokenizer["algorithm"], tokenizer["vocabulary"]) == ("bpe", "joint")
    assert tokenizer["source_size"] == tokenizer["target_size"] == read.tokenizer.source_size
    assert tokenizer["fingerprint"] == read.tokenizer.fingerprint
    assert "torch" in info["environment"]["packages"]
    assert info["environment"]["started_at"].startswith("20")
    assert [corpus["pairs"] for corpus in info["corpora"].values()] == [60, 7, 6]
    for corpus, split in zip(info["corpora"].values(), ("train", "valid", "test"), strict=True):
        sides = [tiny_corpus / f"{split}.{language}" for language in ("en", "de")]
        sums = [hashlib.sha256(side.read_bytes()).hexdigest() for side in sides]
        assert [corpus["sha256_source"], corpus["sha256_target"]] == sums
        assert (corpus["corpus"], corpus["places"]) == (None, [*map(str, sides)])


def test_scores_have_overrides_and_are_current_for_their_weights(run: Path) -> None:
    evaluated(run, "a")
    evaluated(run, "b", decoding={"search": "greedy", "beam": 2}, weights="5a")
    own: dict[str, object] = {
        "sentences": 5,
        "search": "beam 2",
        "BLEU": "31.50 (nrefs:1|tok:13a)",
        "chrF2": "55.25 (nrefs:1|nc:6)",
        "overrides": [],
        "current": True,
    }
    changed = {"search": "greedy", "overrides": ["search=greedy"], "current": False}
    assert read_info(run)["scores"] == {"a": own, "b": {**own, **changed}}


def test_unfinished_run_is_described(run: Path) -> None:
    for name in ("model.json", "model.safetensors"):
        (run / name).unlink()
    with (run / "metrics.jsonl").open("a") as journal:
        journal.write('{"event": "train", "update": 43}\n{"event": "tra')
    info = read_info(run)
    assert (info["state"], info["model"], info["updates"]) == ("unfinished", None, 43)
    assert info["tokenizer"] is not None
    shutil.rmtree(run / "tokenizer")
    for name in ("corpora.json", "metrics.jsonl", "environment.json"):
        (run / name).unlink()
    info = read_info(run)
    assert (info["tokenizer"], info["updates"], info["scores"]) == (None, 0, {})
    assert info["corpora"]["train"]["sha256_source"] is None
    assert info["environment"] == {}


def test_rows_are_the_values_of_a_record_by_their_keys() -> None:
    record = {"a_b": {"c": 1234, "d": None, "e": {"f": True}}, "g": ["x", 2], "h": [], "i": ""}
    rows = [("a b c", "1,234"), ("a b e f", "True"), ("g", "x, 2")]
    assert list(list_rows(record)) == rows


def swap_tokenizer(run: Path) -> None:
    """Replace the tokenizer by another valid one."""
    shutil.rmtree(run / "tokenizer")
    pairs = [SentencePair(f"word{index} other", f"Wort{index}") for index in range(50)]
    config = TokenizerConfig(vocabulary_size=310)
    train_tokenizer(lambda: iter(pairs), run / "tokenizer", config=config)


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(text)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda run: flip_bit(run / "model.safetensors"), "model.safetensors: damaged"),
    (swap_tokenizer, "tokenizer: is the tokenizer of another run"),
    (lambda run: (run / "model.safetensors").unlink(), "model.safetensors is missing"),
    (write("corpora.json", "{"), "corpora.json: damaged"),
    (lambda run: evaluated(run, "x", bleu=None), "x.json: damaged"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[message for _, message in DAMAGES])
def test_damaged_or_swapped_files_are_named(
    damage: Callable[[Path], object], message: str, run: Path
) -> None:
    damage(run)
    with pytest.raises(RunError) as error:
        read_info(run)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("tests", "split", "chosen"),
    [
        (["news", "test"], None, "test"),
        (["news"], None, "news"),
        ([], "valid", "valid"),
        (["news", "talks"], "new", None),
        (["news", "talks"], None, None),
    ],
)
def test_split_is_the_requested_one_or_the_only_test(
    tests: list[str], split: str | None, chosen: str | None
) -> None:
    source = {"source": "a", "target": "b"}
    sources = {"train": source, "valid": source, "tests": dict.fromkeys(tests, source)}
    languages = {"source_language": "de", "target_language": "en"}
    data = DataConfig.model_validate({**languages, **sources})
    if chosen:
        assert choose_split(data, split) == chosen
    else:
        with pytest.raises(UserError, match="news"):
            choose_split(data, split)


def test_export_is_described(exported_run: Path) -> None:
    info = read_info(exported_run)
    assert (info["state"], info["model"]) == ("exported", None)
    assert info["export"] == asdict(read_exported(exported_run))
    assert info["tokenizer"] is not None
