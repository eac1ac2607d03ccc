"""Command `mt init`."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mt.config import Config, TokenizerConfig, TrainingConfig
from mt.config.data import MixtureSource, TextSource, TsvSource
from mt.config.loading import dump_config, load_config, with_values
from mt.data.pairs import SentencePair
from mt.data.splits import open_training_corpora, scan_corpora
from mt.export.bergamot import why_not_bergamot
from mt.export.marian import why_not_marian
from mt.training.automatic import WIDTHS, measure_corpora
from mt.training.resolve import choose_length, choose_settings, with_settings
from tests.factories import CPU, DIGITS, Program, Refused

CHINESE = "零一二三四五六七八九"
SPEED = 20_000.0
"""Target tokens a second of the pretended machine."""


def pairs(first: int, count: int) -> list[tuple[str, str]]:
    """Return distinct pairs of Chinese and English numbers."""
    numbers = [str(number) for number in range(first, first + count)]
    return [
        (
            f"{''.join(CHINESE[int(digit)] for digit in number)}个苹果在桌子上。",
            f"There are {' '.join(DIGITS[int(digit)] for digit in number)} apples on the table.",
        )
        for number in numbers
    ]


def write(name: str, content: list[tuple[str, str]], suffixes: str = "zh en") -> None:
    for side, suffix in enumerate(suffixes.split()):
        text = "".join(f"{pair[side]}\n" for pair in content)
        Path(f"{name}.{suffix}").write_text(text, encoding="utf-8")


@pytest.fixture(autouse=True)
def _user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with corpora, on a machine of a fixed speed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mt.recipes.init.measure_speed", lambda *_, **__: SPEED)
    write("train", pairs(1000, 700))
    write("few", pairs(1000, 150))
    write("valid", pairs(5000, 60))
    write("other", pairs(6000, 60), "zh de")
    write("same", [(source, "A few apples.") for source, _ in pairs(1000, 600)])
    numbers = pairs(1000, 700)
    write("swapped", [(target, source) for source, target in numbers])
    write("copied", [(source, source) for source, _ in numbers])
    targets = [target for _, target in numbers if "three zero zero" not in target]
    targets += (700 - len(targets)) * ["A few apples."]  # without the line 301
    write("slip", [(pair[0], target) for pair, target in zip(numbers, targets, strict=True)])
    Path("train.tsv").write_text("一\tone\n" * 900, encoding="utf-8")
    Path("kept.yaml").write_text("seed: 1\n")
    with Path("short.en").open("w", encoding="utf-8") as file:
        file.writelines(f"{target}\n" for _, target in pairs(1000, 600))


BAD = {
    "train.zh": "train.zh: a text file is one side of a corpus: name the file with the other side",
    "train.zh short.en": "train.zh has 700 lines, short.en has 600: line N of one must translate",
    "trian.zh train.en": "trian.zh: no such file; did you mean `train.zh`?",
    "train.zh train.zh": "source and target language are both `zh`",
    "train.zh train.en --target-language english": "--target-language english: write a language",
    "few.zh few.en": "few.zh and few.en: 150 different pairs are too few; at least 500 are needed",
    "train.tsv --source-language zh --target-language en": "train.tsv: 1 different pairs are too",
    "train.zh train.en --test other.zh --test few.en": "other.zh has 60 lines, few.en has 150",
    "same.zh same.en": "only 1 pairs of `data.train` can be held out, 15 are asked for",
    "valid.zh valid.en --valid few.zh --valid few.en --test few.zh --test few.en": (
        "valid.zh and valid.en: 60 different pairs are too few; at least 100 are needed"
    ),
    "train.zh train.en --valid other.zh --valid other.de": "other.de: a side is in `de`, but",
    "train.zh train.en --valid valid.zh valid.en": "as in `--valid valid.zh --valid FILE`; a",
    "swapped.zh swapped.en": "swapped.zh and swapped.en: the sides look swapped: `en` on the sou",
    "copied.zh copied.en": "copied.zh and copied.en: 100% of the lines: text in a script of ano",
    "slip.zh slip.en": "slip.zh and slip.en: the sides go out of step near line 301: from there on",
    "train.zh train.en --valid slip.zh --valid slip.en": "slip.en: the sides go out of step near",
    "train.zh train.en --test swapped.zh --test swapped.en": "swapped.en: the sides look swapped",
    "train.zh train.en --valid train.zh --valid train.en": "is a training corpus as well",
    "train.zh train.en --valid few.zh --valid few.en --test few.zh --test few.en": (
        "few.zh and few.en: all pairs are also in `valid`; give `test` others"
    ),
    "train.zh train.en --source-language cn": "--source-language `cn` is a country; did you mean",
    "train.zh train.en --budget 30": "--budget 30: write a number and a unit, such as 90s, 30m",
    "train.zh train.en --budget 0.1s": "budget 0.1s: too short; on this machine",
    "train.zh train.en --output kept.yaml": "kept.yaml: exists; delete it, or choose",
    "hub:owner/name --source-language zh": "name a commit, 40 hexadecimal digits",
    "hub:name@abc": "write a dataset of the hub as hub:OWNER/NAME[/SUBSET]@COMMIT[:SPLIT]",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_line_and_writes_nothing(arguments: str, program: Program) -> None:
    before = {path: path.read_bytes() for path in Path().iterdir()}
    status, out, err = program("init", *arguments.split())
    assert (status, out) == (2, "")
    assert BAD[arguments] in err.splitlines()[-1]
    assert err.count("error: ") == 1
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_config_without_chosen_keys_trains_the_same_model(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    status, out, _ = program("init", "train.zh", "train.en", "--budget", "30m")
    assert (status, out) == (0, "train.yaml\n")
    written = load_config(Path("train.yaml"))
    assert (written.data.source_language, written.data.target_language) == ("zh", "en")
    assert written.data.train == TextSource(source="train.zh", target="train.en")
    text = Path("train.yaml").read_text(encoding="utf-8")
    assert written.data.augmentation == "strong"
    assert "  # typos, missing marks and the like" in text
    assert (written.data.terms, text.count("\n  # terms: 0.3  # ")) == (0, 1)
    sampling = TokenizerConfig(subword_dropout=(0.05, 0.0))
    assert "  # source words are cut in other ways in each epoch" in text
    splits = written.data.valid, written.data.tests["test"]
    assert [split.model_dump()["held_out"] for split in splits] == [17, 17]
    assert {"model.d_model", "training.learning_rate"} <= list_set_keys(written)
    assert "training.max_updates" not in list_set_keys(written)
    assert "languages: zh to en" in caplog.messages
    assert "training pairs: 700; 17 are held out for valid and as many for test" in caplog.messages
    assert "training on cpu: 30m; about " in caplog.text
    assert caplog.messages[-1].startswith("next: mt train train.yaml; then mt translate runs/train")

    minimal = Config(data=written.data, tokenizer=sampling, training=TrainingConfig(budget="30m"))
    assert (
        {"tokenizer.subword_dropout", "training.budget"}
        == list_set_keys(minimal)
        < list_set_keys(written)
    )
    assert resolved(minimal, monkeypatch) == resolved(written, monkeypatch)


@pytest.mark.parametrize(
    ("few", "augmentation"), [("AUGMENTED_PASSES", "off"), ("SAMPLED_PASSES", "on")]
)
def test_a_training_of_few_passes_has_fewer_changes(
    few: str, augmentation: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"mt.recipes.init.{few}", 1e9)
    assert program("init", "train.zh", "train.en", "--budget", "30m")[0] == 0
    written = load_config(Path("train.yaml"))
    assert written.data.augmentation == augmentation
    assert written.tokenizer.subword_dropout == (0, 0)
    assert ("  # terms" in Path("train.yaml").read_text(encoding="utf-8")) is (augmentation == "on")


def list_set_keys(config: Config) -> set[str]:
    sections = {name: getattr(config, name) for name in ("tokenizer", "model", "training")}
    return {
        f"{name}.{key}" for name, section in sections.items() for key in section.model_fields_set
    }


def resolved(config: Config, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the settings of a training with 40 updates an epoch, prepared in a minute."""
    corpus: Any = SimpleNamespace(
        store=SimpleNamespace(lengths=np.full((700, 2), 12)),
        vocabularies=(500, 500),
        valid=17 * [SentencePair("我们走吧。", "Let us go there.")],
        valid_lengths=np.full((17, 2), 12),
        translation_table=None,
        plan_epoch=lambda: [None] * 40,
    )
    scan = scan_corpora(open_training_corpora(config.data))
    facts = measure_corpora(scan, config.data.max_tokens)
    settings, _ = choose_settings(config, facts, CPU, lambda *_: SPEED)
    sized = with_settings(config, settings)
    monkeypatch.setattr(time, "perf_counter", lambda: 60.0)
    monkeypatch.setattr("mt.training.resolve.measure_validation", lambda *_: (0.01, 0.01))
    ends_at = config.training.budget_seconds or 0.0
    length = choose_length(sized, corpus, CPU, lambda *_: SPEED, ends_at=ends_at)
    return dump_config(with_values(sized, length))


@pytest.mark.parametrize(("size", "width"), WIDTHS.items())
def test_size_and_form_are_written(size: str, width: int, program: Program) -> None:
    assert program("init", "train.zh", "train.en", "--size", size, "--for", "huggingface")[0] == 0
    model = load_config(Path("train.yaml")).model
    assert (model.d_model, model.d_ff, why_not_marian(model)) == (width, 4 * width, None)


def test_the_form_of_bergamot_has_widths_that_it_multiplies(program: Program) -> None:
    assert program("init", "train.zh", "train.en", "--budget", "1m", "--for", "bergamot")[0] == 0
    assert why_not_bergamot(load_config(Path("train.yaml")).model) is None


def test_cleaning_is_written_with_the_number_of_pairs(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    dirty = [*pairs(1000, 696), ("", "Nothing." * 9), ("二。", "cafÃ©"), pairs(1000, 1)[0]]
    write("train", [*dirty, dirty[-2]])
    assert program("init", "train.zh", "train.en")[0] == 0
    text = Path("train.yaml").read_text(encoding="utf-8")
    assert "    min_characters: 1  # 1: pairs with an empty side\n" in text
    assert "    broken_text:  # 2: text decoded with the wrong encoding\n" in text
    assert "    duplicates: pair  # 1: repeated pairs\n" in text
    assert "max_length_ratio" not in text
    removed = caplog.messages[caplog.messages.index("removed in training:") + 1 :]
    assert "  1: pairs with an empty side (`min_characters`)" in removed


def test_large_corpus_is_checked_by_a_sample_without_line_numbers(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mt.recipes.init.MAX_CHECKED", 2000)
    many = pairs(1000, 6000)
    many[4000:4100] = [("", target) for _, target in many[4000:4100]]  # blocks 0 and 4 are read
    write("train", [*many, *many[:5]])
    lines = [source for source, _ in many[4500:]], [target for _, target in many[4501:]]
    write("slip", [*many[:4500], *zip(*lines, strict=False)])
    place = "slip.zh and slip.en: the sides go out of step near line 4,501 or before"
    assert place in program("init", "slip.zh", "slip.en")[2]
    assert program("init", "train.zh", "train.en", "--output", "new.yaml")[0] == 0
    text = Path("new.yaml").read_text(encoding="utf-8")
    assert "# 100 of 2,000 checked: pairs with an empty side" in text
    assert "duplicates: pair  # 5: repeated pairs" in text
    assert "checked: an even sample of 2,000 pairs" in caplog.messages
    assert "line" not in text


def test_overlap_is_counted_in_the_whole_corpus_in_both_directions(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mt.recipes.init.MAX_CHECKED", 2000)
    many = pairs(10_000, 6000)
    write("train", many)
    inside = [(many[n][0].replace("。", ""), f"Number {n}.") for n in range(1000, 1050)]
    turned = [(f"这是{n}。", many[n][0]) for n in range(1050, 1060)]  # blocks 0 and 3 are checked
    write("test", [*pairs(50_000, 20), *inside, *turned])
    arguments = "train.zh train.en --valid valid.zh --valid valid.en --test test.zh --test test.en"
    assert program("init", *arguments.split())[0] == 0
    written = load_config(Path("train.yaml"))
    assert written.data.cleaning.overlap == "normalized"
    assert "    overlap: normalized  # 60 of 80 in `test`: pai" in Path("train.yaml").read_text()
    assert "  60 of 80 in `test`: pairs with a text" in caplog.text
    (corpus,) = open_training_corpora(written.data)
    assert len(list(corpus.cleaned())) == 5940


def test_columns_of_text_are_shown_and_written(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{n / 7:.3f}\t{s}\t{n}\t{t}" for n, (s, t) in enumerate(pairs(1000, 600))]
    Path("mined.tsv").write_text("\n".join(rows), encoding="utf-8")
    languages = "--source-language", "en", "--target-language", "zh"
    assert program("init", "mined.tsv", *languages)[0] == 0
    train = load_config(Path("mined.yaml")).data.train
    assert train == TsvSource(format="tsv", path="mined.tsv", columns=(3, 1))
    assert "mined.tsv: columns: [1, 3], of 0: `0.143`, 1: `一零零一" in caplog.text
    assert "mined.tsv: column 3 is the source side" in caplog.messages


def test_given_splits_and_several_corpora(program: Program) -> None:
    Path("more").mkdir()
    swapped = [(target, source) for source, target in pairs(3000, 500)]
    write("more/train", swapped, "en.txt zh.txt")
    arguments = "train.zh train.en more/train.en.txt more/train.zh.txt --valid valid.zh --valid "
    arguments += "valid.en --test few.zh --test few.en --output new.yaml"
    status, _, err = program("init", *arguments.split())
    assert status == 0, err
    data = load_config(Path("new.yaml")).data
    assert isinstance(data.train, MixtureSource)
    assert data.train.corpora == {
        "train": TextSource(source="train.zh", target="train.en"),
        "train-2": TextSource(source="more/train.zh.txt", target="more/train.en.txt"),
    }
    assert data.valid == TextSource(source="valid.zh", target="valid.en")
    assert data.tests == {"test": TextSource(source="few.zh", target="few.en")}
    assert data.cleaning.overlap == "normalized"
    assert "# 150 of 150 in `test`" in Path("new.yaml").read_text(encoding="utf-8")


def test_a_short_budget_is_a_warning(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mt.recipes.init.measure_speed", lambda *_, **__: 35_000.0)
    write("train", pairs(1500, 1050))
    assert program("init", "train.zh", "train.en", "--budget", "0.4s")[0] == 0
    assert "warning: 0 passes over 1,050 pairs are too little for a translator" in caplog.text


def test_adaptation_mixes_new_and_old_pairs_and_ends_with_a_comparison(
    finished_run: Path, run: Path, tiny_corpus: Path, program: Program, refused: Refused
) -> None:
    spelled = [" ".join(DIGITS[int(digit)] for digit in str(n)) for n in range(20_000, 20_200)]
    write("new", [(line, " ".join(line.split()[::-1])) for line in spelled], "en de")
    for sides in ("new.de", "new.en"), ("new.en", "train.zh"):
        assert "translates en to de" in refused("init", *sides, "--from", finished_run)
    assert program("init", "new.en", "new.de", "--from", finished_run)[0] == 0
    config, folder = load_config(Path("new.yaml")), Path("new.data")
    for name in ("old.en", "train.en"), ("old-test.de", "test.de"):
        assert (folder / name[0]).read_text() == (tiny_corpus / name[1]).read_text()
    new, old = open_training_corpora(config.data)
    sizes = [sum(1 for _ in one.cleaned()) for one in (new, old)]
    assert old.weight * sizes[1] == pytest.approx(4 * new.weight * sizes[0], rel=0.3)
    held_out = {*(folder / "test.en").read_text().split("\n")}
    assert len(held_out) == 21
    assert held_out.isdisjoint(pair.source for pair in new.cleaned())
    keys = "budget=null", "max_updates=2", "export=off", "best_metric=loss"
    settings = [word for key in keys for word in ("--set", f"training.{key}")]
    rows = program("train", "new.yaml", *settings)[1].split("after is\n")[1].splitlines()
    assert [row[:20] for row in rows[:4:2]] == ["test, 20 pairs, gree", "old-test, 6 pairs, g"]

    text = (run / "config.yaml").read_text()
    for split in ("train.", "test."):  # of the run are the new pairs
        (run / "config.yaml").write_text(text.replace(f"{tiny_corpus}/{split}", "new."))
        arguments = "new.en", "new.de", "--from", run, "--output", "b.yaml"
        assert "200 of 200 pairs are in" in refused("init", *arguments)
    (run / "config.yaml").write_text(text.replace("train.", "gone."))
    assert "new.yaml: exists" in refused("init", "new.en", "new.de", "--from", run)
    assert program("init", "new.en", "new.de", "--from", run, "--output", "b.yaml")[0] == 0
    translated = program("translate", run, "b.data/old.en", "--set", "decoding.search=greedy")[1]
    assert translated == Path("b.data/old.de").read_text()
    assert load_config(Path("b.yaml")).training.is_open("learning_rate")
