import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt import Translator
from mt.augment.distill import BackTranslation, Distillation
from mt.augment.teacher import Sources, Teacher
from mt.data.augmentation import Noise
from mt.data.pairs import SentencePair
from mt.decoding.shards import Job, Record, Shard, complete
from mt.errors import DataError, UserError
from mt.export.export import export_ctranslate2
from mt.runs import ModelRecord, read_exported

SAMPLE = ["decoding.search=sample"]
NO_NOISE = Noise()
LINES = ["one two three four", "nine eight", "five five five five", "four", "six one"]


@pytest.fixture(scope="module")
def teacher(finished_run: Path) -> Teacher:
    return Teacher.read(finished_run, overrides=SAMPLE, device="cpu")


def mono(folder: Path, lines: list[str], name: str = "news.en") -> Path:
    path = folder / name
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return path


def work(teacher: Teacher, text: Path, noise: Noise = NO_NOISE) -> BackTranslation:
    return BackTranslation(teacher, text, noise)


def written(each: BackTranslation, job: Job) -> Record:
    result = complete(job, lambda: lambda lines: each.teacher.windows(each.make(lines)))
    assert result is not None
    return result.record


def translated(translator: Translator, lines: list[str]) -> list[tuple[str, str]]:
    """Return (translation, line) of the lines with a complete translation."""
    return [
        (each.text, each.source)
        for each in translator.stream(lines)
        if all(part.hypothesis.finished for part in each.alternatives[0].parts)
    ]


def made(each: BackTranslation | Distillation) -> list[Any]:
    text = each.text if isinstance(each, BackTranslation) else each.sources.origin
    assert isinstance(text, Path)
    return list(each.make(range(len(text.read_bytes().splitlines()))))


def test_the_translation_is_the_source_and_the_text_the_target(
    teacher: Teacher, finished_run: Path, tmp_path: Path
) -> None:
    each = work(teacher, mono(tmp_path, LINES))
    job = each.job(tmp_path / "out", Shard())
    record = written(each, job)
    translator = Translator.load(finished_run, overrides=SAMPLE, device="cpu")
    wanted = translated(translator, LINES)
    assert [path.name for path in job.files] == ["news.de", "news.en"]
    texts = [path.read_bytes().decode().split("\n")[:-1] for path in job.files]
    assert list(zip(*texts, strict=True)) == wanted
    assert record.counts["written"] == len(wanted)
    assert sum(record.counts.values()) == len(LINES)
    assert record.settings["model"] == ModelRecord.read(finished_run).sha256
    assert record.settings["decoding.search"] == "sample"
    assert len(wanted) > 2


def test_a_sampled_translation_depends_on_sentence_and_seed(
    teacher: Teacher, finished_run: Path, tmp_path: Path
) -> None:
    pairs = made(work(teacher, mono(tmp_path, LINES)))
    assert made(work(teacher, mono(tmp_path, LINES[::-1]))) == pairs[::-1]
    assert list(work(teacher, mono(tmp_path, LINES)).make(range(3, 5))) == pairs[3:]
    other = Teacher.read(finished_run, overrides=[*SAMPLE, "decoding.seed=2"], device="cpu")
    assert made(work(other, mono(tmp_path, LINES))) != pairs


def test_unusable_lines_are_left_out_and_counted(finished_run: Path, tmp_path: Path) -> None:
    limits = ["decoding.max_length_ratio=0", "decoding.max_length_extra=12"]
    teacher = Teacher.read(finished_run, overrides=limits, device="cpu")
    lines = ["one", " \u3000", "two \udcff", *LINES, ""]
    each = work(teacher, mono(tmp_path, lines))
    job = each.job(tmp_path / "out", Shard())
    record = written(each, job)
    whole = translated(teacher.translator, [line for line in lines if line in [*LINES, "one"]])
    cut = len(lines) - 3 - len(whole)
    assert cut
    assert whole
    texts = [path.read_bytes().decode().split("\n")[:-1] for path in job.files]
    assert list(zip(*texts, strict=True)) == whole
    assert record.counts == {
        "written": len(whole),
        "blank line": 2,
        "line that is not UTF-8": 1,
        "translation cut at its length limit": cut,
    }


def test_an_empty_translation_is_left_out(
    teacher: Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(teacher.translator.tokenizer), "decode_target", lambda *_: " ")
    assert made(work(teacher, mono(tmp_path, LINES))) == ["empty translation"] * len(LINES)


def test_noise_changes_the_translation_alone_by_line(teacher: Teacher, tmp_path: Path) -> None:
    plain = made(work(teacher, mono(tmp_path, LINES)))
    noise = Noise(mask=0.5, swap=2)
    noisy = made(work(teacher, mono(tmp_path, LINES), noise))
    assert noisy == [
        replace(pair, source=noise.on(pair.source, language="de", seed=1, line=line))
        if isinstance(pair, SentencePair)
        else pair
        for line, pair in enumerate(plain)
    ]
    assert noisy != plain
    again = work(teacher, mono(tmp_path, LINES), noise).make(range(2, 5))
    assert list(again) == noisy[2:]


def test_the_batch_size_changes_only_the_window(finished_run: Path, tmp_path: Path) -> None:
    text = mono(tmp_path, LINES * 3)
    windows = []
    for size in (1, 4):
        options = [*SAMPLE, f"decoding.batch_size={size}"]
        each = work(Teacher.read(finished_run, overrides=options, device="cpu"), text)
        windows.append(each.teacher.window)
        written(each, each.job(tmp_path / str(size), Shard()))
    assert windows == [32, 128]
    for name in ("news.de", "news.en", "news.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "4" / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("news.en", "news"),
        ("a.b.txt", "a.b"),
        ("news.en.gz", "news"),
        ("en", "en"),
        (".en", "text"),
    ],
)
def test_file_names_follow_from_the_text(
    name: str, left: str, teacher: Teacher, tmp_path: Path
) -> None:
    content = b"one\ntwo\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    job = work(teacher, tmp_path / name).job(tmp_path / "out", Shard(2, 2))
    assert [path.name for path in job.part_files] == [f"{left}.2-of-2.de", f"{left}.2-of-2.en"]
    assert job.extent.lines == 2


def test_an_exported_model_can_teach_but_not_sample(finished_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    exported = tmp_path / "exported"
    export_ctranslate2(finished_run, exported)
    # Greedy, because the engines block the repetitions of a weak model differently.
    greedy = ["decoding.search=greedy"]
    of_run, of_export = (
        Teacher.read(folder, overrides=greedy, device="cpu") for folder in (finished_run, exported)
    )
    text = mono(tmp_path, LINES)
    pairs = made(work(of_export, text))
    assert pairs == made(work(of_run, text))
    assert any(isinstance(pair, SentencePair) for pair in pairs)
    hashes = [each.settings["model"] for each in (of_export, of_run)]
    assert hashes == [read_exported(exported).model, ModelRecord.read(finished_run).sha256]
    assert made(Distillation(of_export, Sources(text))) == [
        SentencePair(pair.target, pair.source) if isinstance(pair, SentencePair) else pair
        for pair in pairs
    ]
    with pytest.raises(UserError, match="exported: an exported model cannot sample; add `--set"):
        Teacher.read(exported, overrides=SAMPLE)


def test_unsuitable_texts_are_errors(teacher: Teacher, tmp_path: Path) -> None:
    def refused(path: Path, shard: Shard) -> str:
        with pytest.raises((UserError, DataError)) as error:
            work(teacher, path).job(tmp_path / "out", shard)
        return str(error.value)

    assert "is in de by its name" in refused(mono(tmp_path, LINES, "news.de"), Shard())
    assert "is empty" in refused(mono(tmp_path, [], "no.en"), Shard())
    assert "no such file; did you mean `news.de`" in refused(tmp_path / "news.dee", Shard())
    assert "is not a regular file; a pipe" in refused(Path("/dev/null"), Shard())
