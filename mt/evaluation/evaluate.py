"""Scoring a run on one of its splits; validation scores the same way."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mt.config import Config, DataConfig
from mt.config.load import load_config
from mt.data.pairs import PairSource, SentencePair
from mt.data.sources import open_source
from mt.decoding.exported import is_exported, read_exported
from mt.decoding.run import load_translator, require_tag
from mt.decoding.run_files import (
    CONFIG_FILE,
    EVALUATIONS_FOLDER,
    MODEL_FILE,
    check_finished,
    read_description,
)
from mt.decoding.translation import Translation, log_notes
from mt.decoding.translator import Translator
from mt.errors import DataError, UserError, did_you_mean, listed
from mt.evaluation.comet import write_comet
from mt.evaluation.given_texts import GivenTexts, with_texts
from mt.evaluation.guard import Guard, Text
from mt.evaluation.job import PLAIN_JOB, EvaluationJob
from mt.evaluation.model_card import refresh_card
from mt.evaluation.off_target import off_target
from mt.evaluation.passport import (
    Input,
    corpus_inputs,
    file_input,
    model_inputs,
    write_passport,
)
from mt.evaluation.scores import Evaluation, evaluate
from mt.files import write_text
from mt.model.allocator import keep_freed_memory

_logger = logging.getLogger(__name__)
_MOST_LINES_TOLD = 5


@dataclass(frozen=True, slots=True)
class ValidationScores:
    """What a translator made of some pairs, and what that is worth."""

    evaluation: Evaluation
    translations: tuple[Translation, ...]


@dataclass(frozen=True, slots=True)
class OpenedSplit:
    """A split of a run that can be scored: checked, and none of it translated yet."""

    name: str
    config: Config
    data: DataConfig
    """With the languages of the split, which may be its own."""
    source: PairSource
    pairs: tuple[SentencePair, ...]
    references: tuple[Text, ...]
    """The target side of the pairs first; further ones are of texts that were given."""
    inputs: tuple[Input, ...]
    """Sources and references as they were read, for a passport among the run's evaluations."""
    translator: Translator
    tokenizer: str
    """That of BLEU."""
    guard: Guard


def evaluate_run(
    run: Path,
    *,
    split: str | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    job: EvaluationJob = PLAIN_JOB,
) -> Evaluation:
    """Translate a split of a run's config with its final model, and score the translations.

    Writes RUN/evaluations/SPLIT.json, the passport of the scores, SPLIT.hypotheses.txt, and the
    model card anew. Without `split` it is `test`, or the only test split; with `job.texts` those
    are scored and `split` is their name. Raises RunError where no finished run is, DataError where
    the texts are refused.
    """
    opened = open_run(run, split=split, overrides=overrides, device=device, job=job)
    guard, pairs, language = opened.guard, opened.pairs, opened.data.target_language
    place = run / EVALUATIONS_FOLDER / f"{opened.name}.json"
    started_at = time.perf_counter()
    scores = score_pairs(
        opened.translator,
        pairs,
        target_language=language,
        tokenizer=opened.tokenizer,
        job=job,
        further=[text.lines for text in opened.references[1:]],
    )
    seconds = time.perf_counter() - started_at
    made = _written(place.with_name(f"{opened.name}.hypotheses.txt"), scores.translations)
    guard.check_made(made, opened.references, language=language)
    scores = _with_off_target(scores, pairs) if opened.config.data.is_multilingual else scores
    evaluation = guard.mark(scores.evaluation)
    right = tuple(text.name for text in opened.references)
    evaluation = replace(evaluation, hypotheses=made.name, references=right)
    _write_record(place, {**evaluation.as_record(), "seconds": seconds}, opened, job)
    _hand_over(job, opened, made)
    refresh_card(run)
    return evaluation


def open_run(
    run: Path, *, split: str | None, overrides: Sequence[str], device: str, job: EvaluationJob
) -> OpenedSplit:
    """Open a split of a run as `evaluate_run` does, and make the folder for what comes of it."""
    keep_freed_memory()
    guard = job.begin()
    config = read_config(run)
    if job.texts:
        require_tag(run, overrides)
        tag = load_config(run / CONFIG_FILE, overrides=overrides).decoding.tag
        config, split = with_texts(config, run, split, job.texts, tag=tag)
    split = choose_split(config.data, split)
    language, source = open_split(config.data, split)
    tagged = f"decoding.tag={config.split_tag(split) or 'null'}"
    translator = load_translator(run, overrides=[tagged, *overrides], device=device)
    tokenizer = guard.check_tokenizer(language, config.evaluation.bleu_tokenizer)
    pairs, references = _checked_texts(guard, source, language, job.texts)
    # Before the work, so that a missing permission does not cost it.
    folder = run / EVALUATIONS_FOLDER
    folder.mkdir(exist_ok=True)
    data = config.data.of(config.data.tests.get(split, config.data.valid))
    return OpenedSplit(
        split,
        config,
        data,
        source,
        pairs,
        references,
        tuple(_sides(source, references, beside=folder)),
        translator=translator,
        tokenizer=tokenizer,
        guard=guard,
    )


def _sides(source: PairSource, references: Sequence[Text], *, beside: Path) -> Iterator[Input]:
    lines = len(references[0].lines)
    yield from corpus_inputs(source, lines=lines, beside=beside)
    for each in references[1:]:
        yield file_input("references", Path(each.name), lines=lines, beside=beside)


def _written(path: Path, translations: Sequence[Translation]) -> Text:
    """Write the translations, a line each, and tell what there is to tell of them."""
    texts = [translation.text for translation in translations]
    write_text(path, "".join(f"{text}\n" for text in texts))
    _tell_notes(translations)
    return Text(str(path), texts)


def _hand_over(job: EvaluationJob, opened: OpenedSplit, made: Text) -> None:
    """Write the files of COMET if they are wanted."""
    if job.comet:
        texts = [made.lines, *(text.lines for text in opened.references)]
        sources = [pair.source for pair in opened.pairs]
        write_comet(job.comet, [*texts, sources], references=len(opened.references))


def _write_record(
    path: Path, scores: Mapping[str, Any], opened: OpenedSplit, job: EvaluationJob
) -> None:
    """Write the passport of the scores into the run in whose folder `path` lies."""
    folder, run = path.parent, path.parent.parent
    made = Path(scores["hypotheses"])
    inputs = [
        file_input("hypotheses", made, lines=len(opened.pairs), beside=folder),
        *opened.inputs,
        *model_inputs(run, opened.translator.decoding.ensemble, beside=folder),
    ]
    record = {
        "split": opened.name,
        "given_texts": job.texts is not None,
        **scores,
        "settings": job.settings(opened.tokenizer, opened.guard.forced),
        **made_with(opened.translator, run),
    }
    write_passport(path, record, inputs)


def read_config(run: Path) -> Config:
    """Return the config of a run or of an exported folder; RunError where there is none."""
    if not (run / CONFIG_FILE).is_file():
        check_finished(run)  # it says what is missing
    return load_config(run / CONFIG_FILE)


def _with_off_target(scores: ValidationScores, pairs: Sequence[SentencePair]) -> ValidationScores:
    """Return the scores with the off-target rate, or log why there is none."""
    language = scores.evaluation.target_language
    texts = [translation.text for translation in scores.translations]
    try:
        found = off_target(texts, [pair.target for pair in pairs], target_language=language)
    except DataError as error:
        _logger.warning("note: no off-target rate: %s", error)
        return scores
    return replace(scores, evaluation=replace(scores.evaluation, off_target=found))


def made_with(translator: Translator, run: Path) -> dict[str, object]:
    """Return what the translations depend on besides their sources."""
    decoding = translator.decoding.model_dump(mode="json")
    if is_exported(run):
        exported = read_exported(run)
        made = {"weights": exported.weights, "quantization": exported.quantization}
        return {"decoding": decoding, **made}
    return {"decoding": decoding, "weights": read_description(run / MODEL_FILE).weights}


def score_pairs(
    translator: Translator,
    pairs: Sequence[SentencePair],
    *,
    target_language: str,
    tokenizer: str = "auto",
    job: EvaluationJob = PLAIN_JOB,
    further: Sequence[Sequence[str]] = (),
) -> ValidationScores:
    """Translate the sources of `pairs` and score the result against their targets.

    `further` are more sets of references, line N of each for pair N. The one path behind
    `mt evaluate RUN` and behind validation, so that the two agree.
    """
    stream = translator.stream(pair.source for pair in pairs)
    made = tuple(tqdm(stream, "translating", len(pairs), unit="line", leave=False, disable=None))
    translations = [translation.text for translation in made]
    references = [pair.target for pair in pairs]
    evaluation = evaluate(
        translations,
        [references, *further],
        target_language=target_language,
        tokenizer=tokenizer,
        metrics=job.metrics,
        resamples=job.resamples,
    )
    return ValidationScores(evaluation, made)


def choose_split(data: DataConfig, split: str | None) -> str:
    """Return the name of the split to score: the one asked for, else `test`, else the only test."""
    names = data.split_names()
    if split is not None:
        if split not in names:
            near = did_you_mean(split, names) or f"; there are {listed(names)}"
            raise UserError(f"split `{split}` is unknown{near}")
        return split
    if "test" in data.tests:
        return "test"
    if len(data.tests) == 1:
        return next(iter(data.tests))
    raise UserError(f"which split? name one with --split: {listed(names)}")


def open_split(data: DataConfig, split: str) -> tuple[str, PairSource]:
    """Return the target language of a split that is there, and its pairs, still to be read."""
    source = data.split(split)
    assert source is not None, "choose_split returns only what is there"
    data = data.of(source)
    return data.target_language, open_source(source, data)


def _checked_texts(
    guard: Guard, source: PairSource, language: str, given: GivenTexts | None
) -> tuple[tuple[SentencePair, ...], tuple[Text, ...]]:
    """Return pairs and references, if they can be scored: before any of them is translated."""
    pairs = tuple(source.pairs())
    further = given.further(len(pairs)) if given else ()
    sources = Text(f"{source.description}, source side", [pair.source for pair in pairs])
    targets = [pair.target for pair in pairs]
    sides = [Text(f"{source.description}, target side", targets), *further]
    guard.check_no_source(sources, sides)
    guard.check_pieces([sources, *sides])
    guard.check_direction(sources, sides, language=language)
    return pairs, (Text(source.target_description, targets), *further)


def _tell_notes(translations: Sequence[Translation]) -> None:
    """Tell of the first lines that were split or cut, and how many more there are."""
    noted = [translation for translation in translations if translation.notes]
    for translation in noted[:_MOST_LINES_TOLD]:
        log_notes(translation)
    if (more := len(noted) - _MOST_LINES_TOLD) > 0:
        _logger.warning("and %d more such lines of %d", more, len(translations))
