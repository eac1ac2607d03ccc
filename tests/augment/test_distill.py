"""Distillation of a config and of a text, and back-translation."""

import gzip
from pathlib import Path

import pytest
from sacrebleu import sentence_bleu

from mt import Translator
from mt.augment.distill import NOISE, Distillation, Sources, Teacher
from mt.config.loading import load_config
from mt.data.pairs import SentencePair
from mt.data.splits import open_training_corpora
from mt.decoding.shards import Record, Shard, run_shard
from mt.errors import DataError, UserError
from mt.export.export import ExportOptions
from mt.runs import ModelRecord, read_exported
from tests.factories import export_run

SAMPLE = ["decoding.search=sample"]
LINES = ["one two three four", "nine eight", "five five five five", "four", "six one"]
Rows = list[tuple[str, str]]


@pytest.fixture(scope="module")
def teacher(finished_run: Path) -> Teacher:
    return Teacher.read(finished_run, overrides=["decoding.beam=4"], device="cpu")


@pytest.fixture(scope="module")
def sampler(finished_run: Path) -> Teacher:
    return Teacher.read(finished_run, overrides=SAMPLE, device="cpu")


def text_of(folder: Path, lines: list[str], name: str = "news.en") -> Path:
    path = folder / name
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return path


def translate_whole(translator: Translator, lines: list[str]) -> Rows:
    """Return (line, translation) of the lines with a complete translation."""
    return [
        (translation.source, translation.text)
        for translation in translator.stream(lines)
        if all(part.hypothesis.finished for part in translation.alternatives[0].parts)
    ]


def write(work: Distillation, folder: Path) -> tuple[Rows, Record]:
    result = run_shard(work.plan_job(folder, Shard()), lambda: work.make_windows)
    assert result is not None
    sides = [path.read_bytes().decode().split("\n")[:-1] for path in result.files]
    return list(zip(*sides, strict=True)), result.record


def distil(teacher: Teacher, text: Path) -> list[SentencePair | str]:
    lines = len(text.read_bytes().splitlines())
    return list(Distillation(teacher, Sources(text)).translate(range(lines)))


def test_the_training_sources_of_a_config_are_translated(
    teacher: Teacher, tiny_recipe: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    # The files have the codes of the config, not those of the teacher.
    data = load_config(tiny_recipe, overrides=["data.target_language=deu-Latn"]).data
    rows, _ = write(Distillation(teacher, Sources(data)), tmp_path)
    lines = (tiny_corpus / "train.en").read_text().splitlines()
    assert rows == translate_whole(teacher.translator, lines)
    assert len(rows) > 30
    names = {path.name for path in tmp_path.glob("[!.]*")}
    assert names == {"train.en", "train.deu-Latn", "train.json"}


def test_corpora_of_other_directions_are_left_out(
    teacher: Teacher, tiny_recipe: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    usual = load_config(tiny_recipe).data.model_dump()
    here = usual["train"]
    back = here | {"source": here["target"], "target": here["source"]}
    back |= {"source_language": "de", "target_language": "en"}
    mixture = {"format": "mixture", "corpora": {"en-de": here, "de-en": back}}
    data = type(load_config(tiny_recipe).data).model_validate(usual | {"train": mixture})
    rows, _ = write(Distillation(teacher, Sources(data)), tmp_path)
    assert len(rows) > 30
    assert {source for source, _ in rows} <= {*(tiny_corpus / "train.en").read_text().splitlines()}
    only = type(data).model_validate(
        usual | {"train": {"format": "mixture", "corpora": {"de-en": back}}}
    )
    with pytest.raises(UserError):
        write(Distillation(teacher, Sources(only)), tmp_path / "other")


def test_cleaning_applies(teacher: Teacher, tiny_recipe: Path, tmp_path: Path) -> None:
    data = load_config(tiny_recipe, overrides=["data.cleaning.min_characters=20"]).data
    pairs = list(open_training_corpora(data)[0].pairs())
    long = [pair.source for pair in pairs if min(len(pair.source), len(pair.target)) >= 20]
    assert 0 < len(long) < len(pairs)
    rows, _ = write(Distillation(teacher, Sources(data)), tmp_path)
    assert rows == translate_whole(teacher.translator, long)


def test_the_translation_nearest_to_the_reference_is_taken(
    teacher: Teacher, tiny_recipe: Path
) -> None:
    data = load_config(tiny_recipe).data
    results = Distillation(teacher, Sources(data), n_best=4).translate(range(20))
    pairs = [result for result in results if isinstance(result, SentencePair)]
    references = [pair.target for pair in open_training_corpora(data)[0].pairs()]
    translations = teacher.translator.stream([pair.source for pair in pairs], n_best=4)
    moved = 0
    for pair, reference, translation in zip(pairs, references, translations, strict=False):
        texts = [
            choice.text
            for choice in translation.alternatives
            if choice.text and all(part.hypothesis.finished for part in choice.parts)
        ]
        scores = [sentence_bleu(text, [reference]).score for text in texts]
        assert pair.target == texts[scores.index(max(scores))]
        moved += pair.target != texts[0]
    assert moved > 2


def test_a_text_is_translated_by_samples(
    sampler: Teacher, finished_run: Path, tmp_path: Path
) -> None:
    work = Distillation(sampler, Sources(text_of(tmp_path, LINES, "news.en.txt")))
    rows, record = write(work, tmp_path / "out")
    translator = Translator.load(finished_run, overrides=SAMPLE, device="cpu")
    assert rows == translate_whole(translator, LINES)
    assert len(rows) > 2
    assert (tmp_path / "out" / "news.de").exists()
    assert record.counts["written"] == len(rows)
    assert sum(record.counts.values()) == len(LINES)
    assert record.settings["model"] == ModelRecord.read(finished_run).sha256
    assert record.settings["decoding.search"] == "sample"


def test_a_sampled_translation_depends_on_sentence_and_seed(
    sampler: Teacher, finished_run: Path, tmp_path: Path
) -> None:
    text = text_of(tmp_path, LINES)
    pairs = distil(sampler, text)
    assert distil(sampler, text_of(tmp_path, LINES[::-1], "back.en")) == pairs[::-1]
    assert list(Distillation(sampler, Sources(text)).translate(range(3, 5))) == pairs[3:]
    other = Teacher.read(finished_run, overrides=[*SAMPLE, "decoding.seed=2"], device="cpu")
    assert distil(other, text) != pairs


def test_unusable_lines_are_left_out_and_counted(finished_run: Path, tmp_path: Path) -> None:
    limits = ["decoding.max_length_ratio=0", "decoding.max_length_extra=8"]
    teacher = Teacher.read(finished_run, overrides=limits, device="cpu")
    lines = ["one", " \u3000", "two \udcff", *LINES, ""]
    rows, record = write(Distillation(teacher, Sources(text_of(tmp_path, lines))), tmp_path / "out")
    whole = translate_whole(teacher.translator, ["one", *LINES])
    assert rows == whole
    assert 0 < len(whole) < 1 + len(LINES)
    assert record.counts == {
        "written": len(whole),
        "blank line": 2,
        "line that is not UTF-8": 1,
        "translation cut at its length limit": 1 + len(LINES) - len(whole),
    }


def test_an_empty_translation_is_left_out(
    sampler: Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(sampler.translator.tokenizer), "decode_target", lambda *_: " ")
    assert distil(sampler, text_of(tmp_path, LINES)) == ["empty translation"] * len(LINES)


def test_noise_changes_the_translation_alone_by_line(sampler: Teacher, tmp_path: Path) -> None:
    text = text_of(tmp_path, LINES * 4)
    work = Distillation(sampler, Sources(text), noise=NOISE)
    noisy = list(work.translate(range(20)))
    plain = distil(sampler, text)
    assert noisy == [
        SentencePair(pair.source, NOISE.on(pair.target, language="de", seed=1, line=line))
        if isinstance(pair, SentencePair)
        else pair
        for line, pair in enumerate(plain)
    ]
    assert noisy != plain
    assert list(work.translate(range(2, 5))) == noisy[2:5]


def test_the_batch_size_changes_only_the_window(finished_run: Path, tmp_path: Path) -> None:
    text = text_of(tmp_path, LINES * 3)
    windows = []
    for size in (1, 4):
        options = [*SAMPLE, f"decoding.batch_size={size}"]
        teacher = Teacher.read(finished_run, overrides=options, device="cpu")
        windows.append(teacher.window)
        write(Distillation(teacher, Sources(text)), tmp_path / str(size))
    assert windows == [32, 128]
    for name in ("news.de", "news.en", "news.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "4" / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("news.en", "news"),
        ("a.b.txt", "a.b"),
        ("news.en.gz", "news"),
        ("en", "en"),
        (".en", "text"),
    ],
)
def test_file_names_follow_from_the_text(
    name: str, base: str, teacher: Teacher, tmp_path: Path
) -> None:
    content = b"one\ntwo\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    job = Distillation(teacher, Sources(tmp_path / name)).plan_job(tmp_path / "out", Shard(2, 2))
    assert [path.name for path in job.paths[:-1]] == [f"{base}.2-of-2.en", f"{base}.2-of-2.de"]
    assert job.total == 2


def test_an_exported_model_can_teach_but_not_sample(finished_run: Path, tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    export_run(finished_run, exported, ExportOptions())
    # Greedy, because the engines block the repetitions of a weak model differently.
    greedy = ["decoding.search=greedy"]
    of_run, of_export = (
        Teacher.read(folder, overrides=greedy, device="cpu") for folder in (finished_run, exported)
    )
    text = text_of(tmp_path, LINES)
    pairs = distil(of_export, text)
    assert pairs == distil(of_run, text)
    assert any(isinstance(pair, SentencePair) for pair in pairs)
    assert of_export.stored.settings["model"] == read_exported(exported).model
    with pytest.raises(UserError):
        Teacher.read(exported, overrides=SAMPLE)


def test_unsuitable_origins_are_errors(teacher: Teacher, tiny_recipe: Path, tmp_path: Path) -> None:
    def refuse(origin: Sources, n_best: int = 1) -> str:
        with pytest.raises((UserError, DataError)) as error:
            Distillation(teacher, origin, n_best).plan_job(tmp_path / "out", Shard())
        return str(error.value)

    assert "--n-best needs a CONFIG" in refuse(Sources(text_of(tmp_path, LINES)), 2)
    assert "is in de by its name" in refuse(Sources(text_of(tmp_path, LINES, "news.de")))
    assert "is empty" in refuse(Sources(text_of(tmp_path, [], "no.en")))
    assert "no such file; did you mean `news.de`" in refuse(Sources(tmp_path / "news.dee"))
    assert "is a pipe or device" in refuse(Sources(Path("/dev/null")))
    turned = load_config(
        tiny_recipe, overrides=["data.source_language=de", "data.target_language=en"]
    )
    assert "the config's corpora are from de into" in refuse(Sources(turned.data))
    data = load_config(tiny_recipe).data
    assert "`decoding.beam` must be at least 5, it is 4" in refuse(Sources(data), 5)
