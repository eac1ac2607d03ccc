"""Scoring a file of translations, or a run on one of its splits; validation scores the same way."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from mt.config import DataConfig, Source
from mt.config.load import load_config
from mt.data.lines import LineReader, existing_file
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.decoding.exported import is_exported, read_exported
from mt.decoding.run import load_translator
from mt.decoding.run_files import (
    CONFIG_FILE,
    EVALUATIONS_FOLDER,
    MODEL_FILE,
    read_description,
)
from mt.decoding.translation import Translation, log_notes
from mt.decoding.translator import Translator
from mt.errors import DataError, UserError, did_you_mean, listed
from mt.evaluation.model_card import refresh_card
from mt.evaluation.notes import identical_to_source, looks_processed
from mt.evaluation.scores import Evaluation, choose_tokenizer, evaluate
from mt.files import write_json, write_text
from mt.model.allocator import keep_freed_memory

_logger = logging.getLogger(__name__)
_MOST_LINES_TOLD = 5


@dataclass(frozen=True, slots=True)
class ValidationScores:
    """What a translator made of some pairs, and what that is worth."""

    evaluation: Evaluation
    translations: tuple[Translation, ...]


def evaluate_files(
    hypotheses: Path,
    references: Sequence[Path],
    *,
    target_language: str,
    tokenizer: str = "auto",
    sources: Path | None = None,
) -> Evaluation:
    """Score a file of translations against one or several files of references, line by line.

    `sources` is what was translated: it must have as many lines, and lines that were only copied
    are told on stderr, as are texts that look tokenised.

    Raises DataError naming the files and both counts where the lengths differ, UserError where the
    hypotheses are one of the references.
    """
    choose_tokenizer(target_language, tokenizer)
    _refuse_reference_as_hypotheses(hypotheses, references)
    paths = [hypotheses, *references, *([sources] if sources else [])]
    texts = [list(LineReader(existing_file(path))) for path in paths]
    _check_same_length(paths, texts)
    notes = [looks_processed(str(path), text) for path, text in zip(paths, texts, strict=True)]
    if sources:
        notes.append(identical_to_source(str(hypotheses), texts[0], texts[-1]))
    for note in filter(None, notes):
        _logger.warning("note: %s", note)
    scores = evaluate(
        texts[0],
        texts[1 : 1 + len(references)],
        target_language=target_language,
        tokenizer=tokenizer,
    )
    return replace(scores, hypotheses=str(hypotheses), references=tuple(map(str, references)))


def evaluate_run(
    run: Path,
    *,
    split: str | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
) -> Evaluation:
    """Translate a split of a run's config with its final model, and score the translations.

    `overrides` are `decoding.KEY=VALUE`. Writes RUN/evaluations/SPLIT.json, with what decoded, and
    SPLIT.hypotheses.txt, and the model card anew. Without `split` it is `test`, or the only test
    split.

    Raises RunError for a folder that holds no finished run, UserError for an unknown split.
    """
    keep_freed_memory()
    translator = load_translator(run, overrides=overrides, device=device)
    config = load_config(run / CONFIG_FILE)
    data, bleu = config.data, config.evaluation.bleu_tokenizer
    split = choose_split(data, split)
    choose_tokenizer(data.target_language, bleu)
    source = open_source(_source(data, split), data)
    pairs = tuple(source.pairs())
    folder = run / EVALUATIONS_FOLDER
    folder.mkdir(exist_ok=True)  # before the work, so that a missing permission does not cost it
    started_at = time.perf_counter()
    scores = score_pairs(translator, pairs, target_language=data.target_language, tokenizer=bleu)
    seconds = time.perf_counter() - started_at
    _tell_notes(scores.translations)
    hypotheses = folder / f"{split}.hypotheses.txt"
    evaluation = replace(
        scores.evaluation, hypotheses=str(hypotheses), references=(source.target_description,)
    )
    write_text(hypotheses, "".join(f"{each.text}\n" for each in scores.translations))
    record = {"split": split, **evaluation.as_record(), **_made_with(translator, run)}
    write_json(folder / f"{split}.json", {**record, "seconds": seconds})
    refresh_card(run)
    return evaluation


def _made_with(translator: Translator, run: Path) -> dict[str, object]:
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
) -> ValidationScores:
    """Translate the sources of `pairs` and score the result against their targets.

    The one path behind `mt evaluate RUN` and behind validation, so that the two agree.
    """
    stream = translator.stream(pair.source for pair in pairs)
    made = tuple(tqdm(stream, "translating", len(pairs), unit="line", leave=False, disable=None))
    translations = [translation.text for translation in made]
    references = [pair.target for pair in pairs]
    evaluation = evaluate(
        translations, [references], target_language=target_language, tokenizer=tokenizer
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


def _source(data: DataConfig, split: str) -> Source:
    source = data.split(split)
    assert source is not None, "choose_split returns only what is there"
    return source


def _refuse_reference_as_hypotheses(hypotheses: Path, references: Sequence[Path]) -> None:
    for path in (hypotheses, *references):
        existing_file(path)
    for reference in references:
        if hypotheses.samefile(reference):
            raise UserError(f"{hypotheses}: hypotheses and references are the same file")


def _check_same_length(paths: Sequence[Path], texts: Sequence[Sequence[str]]) -> None:
    first = texts[0]
    for path, text in zip(paths, texts, strict=True):
        if len(text) != len(first):
            raise DataError(
                f"{paths[0]} has {len(first)} lines, {path} has {len(text)}: "
                "line N of one must answer line N of the other"
            )
    if not first:
        raise DataError(f"{paths[0]}: is empty, there is nothing to score")


def _tell_notes(translations: Sequence[Translation]) -> None:
    """Tell of the first lines that were split or cut, and how many more there are."""
    noted = [translation for translation in translations if translation.notes]
    for translation in noted[:_MOST_LINES_TOLD]:
        log_notes(translation)
    if (more := len(noted) - _MOST_LINES_TOLD) > 0:
        _logger.warning("and %d more such lines of %d", more, len(translations))
