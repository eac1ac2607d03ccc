from pathlib import Path
from typing import Any

import pytest
from sacrebleu import sentence_bleu, sentence_chrf

from mt.augment.distill import Distillation, Interpolation, Similarity
from mt.augment.teacher import Sources, Teacher
from mt.config.loading import load_config
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.decoding.shards import Shard, complete
from mt.errors import UserError


@pytest.fixture(scope="module")
def teacher(finished_run: Path) -> Teacher:
    return Teacher.read(finished_run, overrides=["decoding.beam=4"], device="cpu")


def translated(teacher: Teacher, lines: list[str]) -> list[tuple[str, str]]:
    """Return (line, translation) of the lines with a complete translation."""
    return [
        (each.source, each.text)
        for each in teacher.translator.stream(lines)
        if all(part.hypothesis.finished for part in each.alternatives[0].parts)
    ]


def written(work: Distillation, folder: Path) -> list[list[str]]:
    job = work.job(folder, Shard())
    result = complete(job, lambda: lambda lines: work.teacher.windows(work.make(lines)))
    assert result is not None
    return [path.read_bytes().decode().split("\n")[:-1] for path in result.files]


def test_the_training_sources_of_a_config_are_translated(
    teacher: Teacher, tiny_recipe: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    # The files have the codes of the config, not those of the teacher.
    data = load_config(tiny_recipe, overrides=["data.target_language=deu-Latn"]).data
    sources, targets = written(Distillation(teacher, Sources(data)), tmp_path)
    lines = (tiny_corpus / "train.en").read_text().splitlines()
    assert list(zip(sources, targets, strict=True)) == translated(teacher, lines)
    assert len(sources) > 30
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
    sources, _ = written(Distillation(teacher, Sources(data)), tmp_path)
    assert len(sources) > 30
    assert {*sources} <= {*(tiny_corpus / "train.en").read_text().splitlines()}
    only = type(data).model_validate(
        usual | {"train": {"format": "mixture", "corpora": {"de-en": back}}}
    )
    with pytest.raises(UserError, match="no training corpus of the config is en to de"):
        written(Distillation(teacher, Sources(only)), tmp_path / "other")


def test_cleaning_applies(teacher: Teacher, tiny_recipe: Path, tmp_path: Path) -> None:
    data = load_config(tiny_recipe, overrides=["data.cleaning.min_characters=20"]).data
    pairs = list(open_source(data.train, data).pairs())
    wanted = [pair.source for pair in pairs if min(len(pair.source), len(pair.target)) >= 20]
    assert 0 < len(wanted) < len(pairs)
    sources, targets = written(Distillation(teacher, Sources(data)), tmp_path)
    assert list(zip(sources, targets, strict=True)) == translated(teacher, wanted)


@pytest.mark.parametrize("similarity", ["bleu", "chrf"])
def test_interpolation_takes_the_translation_nearest_to_the_reference(
    similarity: Similarity, teacher: Teacher, tiny_recipe: Path, tmp_path: Path
) -> None:
    data = load_config(tiny_recipe).data
    work = Distillation(teacher, Sources(data), Interpolation(4, similarity))
    made = [each for each in work.make(range(20)) if isinstance(each, SentencePair)]
    sources, targets = [pair.source for pair in made], [pair.target for pair in made]
    references = [pair.target for pair in open_source(data.train, data).pairs()]
    metrics: dict[Similarity, Any] = {"bleu": sentence_bleu, "chrf": sentence_chrf}
    metric = metrics[similarity]
    moved = 0
    for target, reference, translation in zip(
        targets, references, teacher.translator.stream(sources, n_best=4), strict=False
    ):
        texts = [
            each.text
            for each in translation.alternatives
            if each.text and all(part.hypothesis.finished for part in each.parts)
        ]
        scores = [metric(text, [reference]).score for text in texts]
        assert target == texts[scores.index(max(scores))]
        moved += target != texts[0]
    assert moved > 2


def test_a_text_is_translated(teacher: Teacher, tmp_path: Path) -> None:
    text = tmp_path / "more.en.txt"
    text.write_text("one two\n\nthree four\n")
    sources, targets = written(Distillation(teacher, Sources(text)), tmp_path / "out")
    assert sources == ["one two", "three four"]
    assert targets == teacher.translator.translate(sources)
    assert (tmp_path / "out" / "more.json").exists()


def test_unsuitable_origins_are_errors(teacher: Teacher, tiny_recipe: Path, tmp_path: Path) -> None:
    text = tmp_path / "more.en"
    text.write_text("one\n")
    with pytest.raises(UserError, match="--n-best needs a CONFIG"):
        Distillation(teacher, Sources(text), Interpolation(2, "bleu")).job(tmp_path, Shard())
    turned = load_config(
        tiny_recipe, overrides=["data.source_language=de", "data.target_language=en"]
    )
    with pytest.raises(UserError, match="from en into de, the config's corpora are from de into"):
        Distillation(teacher, Sources(turned.data)).job(tmp_path, Shard())
    work = Distillation(teacher, Sources(load_config(tiny_recipe).data), Interpolation(5, "bleu"))
    with pytest.raises(UserError, match="`decoding.beam` must be at least 5, it is 4"):
        work.job(tmp_path, Shard())
