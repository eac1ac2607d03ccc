"""Scoring a run on one of its splits; validation scores the same way."""

import json
import logging
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mt.config import Config, DataConfig
from mt.config.data import TextSource, chosen_direction
from mt.config.loading import load_config
from mt.data.lines import regular_file
from mt.data.pairs import PairSource, SentencePair
from mt.data.sources import open_source
from mt.decoding.load import require_tag
from mt.decoding.translator import Translation, Translator, load_translator, log_notes
from mt.errors import DataError, UserError, did_you_mean, listed
from mt.evaluation.checks import Guard, Text, check_named_once, cut_alike
from mt.evaluation.model_card import refresh_card
from mt.evaluation.off_target import off_target
from mt.evaluation.passport import (
    Input,
    check_place,
    corpus_inputs,
    file_input,
    model_inputs,
    write_passport,
)
from mt.evaluation.run_info import ROBUSTNESS_SUFFIX
from mt.evaluation.scores import Evaluation, check_metrics, evaluate
from mt.files import aside, file_sha256, put_in_place, write_text
from mt.model.device import keep_freed_memory
from mt.runs import (
    CONFIG_FILE,
    EVALUATIONS_FOLDER,
    MODEL_FILE,
    check_finished,
    is_exported,
    read_description,
    read_exported,
)


def identical_to_source(name: str, translations: Sequence[str], sources: Sequence[str]) -> str:
    """Return how many translations are their source again, empty lines left out."""
    filled = [(line, source) for line, source in zip(translations, sources, strict=True) if source]
    count = sum(line == source for line, source in filled)
    share = count / max(len(filled), 1)
    return f"{name}: {count} of {len(filled)} lines ({share:.1%}) are identical to their source"


COMET_MODEL = "Unbabel/wmt22-comet-da"


def check_new_folder(folder: Path) -> None:
    """Raise UserError where something of that name is there: nothing is written over."""
    if folder.exists():
        raise UserError(f"{folder}: exists already; name a new folder for the files of COMET")


def write_comet(folder: Path, texts: Sequence[Sequence[str]], *, references: int) -> None:
    """Write a new folder with source.txt, hypothesis.txt, and a file for each reference set.

    `texts` are the hypotheses, the references and the sources. COMET ends a line at a carriage
    return too, so one inside a line becomes a space.
    """
    names = ["hypothesis.txt", *_reference_names(references), "source.txt"]
    with aside(folder) as temporary:
        for name, lines in zip(names, texts, strict=True):
            text = "".join(line.replace("\r", " ") + "\n" for line in lines)
            write_text(temporary / name, text)
        put_in_place(temporary, folder)


def comet_commands(folder: Path, references: int) -> str:
    """Return the lines of a shell that install COMET apart and score what `write_comet` wrote.

    COMET compares with one reference, so there is a line for each set.
    """
    lines = ["python3 -m venv comet-env", "comet-env/bin/pip install unbabel-comet"]
    for name in _reference_names(references):
        files = [str(folder / each) for each in ("source.txt", "hypothesis.txt", name)]
        source, hypothesis, reference = map(shlex.quote, files)
        lines.append(
            f"comet-env/bin/comet-score -s {source} -t {hypothesis} -r {reference} "
            f"--model {COMET_MODEL}"
        )
    return "\n".join(lines)


def _reference_names(count: int) -> Iterator[str]:
    yield "reference.txt"
    for number in range(2, count + 1):
        yield f"reference-{number}.txt"


@dataclass(frozen=True, slots=True)
class GivenTexts:
    """A test set of the user's own, line N of each file answering line N of the sources."""

    sources: Path
    references: tuple[Path, ...]
    """One at least; the first is the target side of the split that `with_texts` makes."""

    def files(self) -> tuple[Path, ...]:
        """Return all of them."""
        return self.sources, *self.references

    def further(self, lines: int) -> tuple[Text, ...]:
        """Read the other references; DataError where one has not as many lines as the sources."""
        texts = tuple(Text.of_file(path) for path in self.references[1:])
        for text in texts:
            if len(text.lines) != lines:
                raise DataError(
                    f"{text.name} has {len(text.lines)} lines, {self.sources} has {lines}: line N "
                    "of one must answer line N of the other"
                )
        return texts


def with_texts(
    config: Config, run: Path, split: str | None, texts: GivenTexts, *, tag: str | None
) -> tuple[Config, str]:
    """Return the config with sources and first references as one more test split, and its name.

    Its direction is that of `tag` where the run has learnt several. Without `split` the name is
    what that of the sources begins with: `news` of `news.en.gz`. Raises UserError where the config
    has a split of that name, or other texts were scored under it, and DataError where a file is
    not there or cannot be read twice.
    """
    for path in texts.files():
        regular_file(path)
    check_named_once(texts.references)
    name = split or re.sub(r"[^\w-]+", "-", texts.sources.name.split(".")[0]) or "texts"
    another = "give these texts another name with --split NAME"
    if name in config.data.split_names():
        raise UserError(f"split `{name}` is one of the run's config; {another}")
    if re.fullmatch(r"[\w-]+", name) is None:
        raise UserError(f"split `{name}`: only letters, digits, `-` and `_` make a name")
    if lost := _would_be_lost(run / EVALUATIONS_FOLDER, name, texts.files()):
        raise UserError(f"{lost}; {another}")
    direction = chosen_direction(config.data, tag)
    source = TextSource(
        source=str(texts.sources),
        target=str(texts.references[0]),
        source_language=direction.source,
        target_language=direction.target,
        tag=tag,
    )
    data = config.data.model_copy(update={"tests": {**config.data.tests, name: source}})
    return config.model_copy(update={"data": data}), name


def _would_be_lost(folder: Path, name: str, files: Sequence[Path]) -> str:
    """Return what would be written over by a score of this name, or ""."""
    for written in (folder / f"{name}.json", folder / f"{name}{ROBUSTNESS_SUFFIX}"):
        if written.exists() and not _is_of(written, files):
            return f"{written}: is the score of other texts"
    made = {
        (folder / f"{name}.hypotheses.txt").resolve(),
        (folder / f"{name}.robustness").resolve(),
    }
    for path in files:
        if made & {path.resolve(), path.resolve().parent}:
            return f"{path}: the translations would be written over it"
    return ""


def _is_of(written: Path, files: Sequence[Path]) -> bool:
    """Say whether a score is of these files, or of others that hold the same."""
    try:
        inputs = json.loads(written.read_bytes())["inputs"]
        scored = [
            ((written.parent / each["path"]).resolve(), each["sha256"])
            for each in inputs
            if each["role"] in {"sources", "references"}
        ]
    except (ValueError, TypeError, KeyError):
        return False  # whatever it is, it is not written over
    return len(scored) == len(files) and all(
        file.resolve() == place or file_sha256(file) == sha256
        for file, (place, sha256) in zip(files, scored, strict=True)
    )


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """The wishes of whoever asks for an evaluation."""

    metrics: tuple[str, ...] = ()
    """Of `mt.evaluation.scores.METRICS`."""
    resamples: int = 0
    """Bootstrap samples for the intervals; 0 for none."""
    allow: tuple[str, ...] = ()
    """Of `mt.evaluation.checks.REASONS`."""
    comet: Path | None = None
    """A new folder for the files that COMET reads."""
    texts: GivenTexts | None = None
    """Of a run: what to score it on, which its config does not know."""
    passport: Path | None = None
    """Where the passport of a score of files lies; that of a run lies in the run."""

    def begin(self) -> Guard:
        """Return the guard of the texts, once it is sure that all the rest can be done.

        Raises UserError for an unknown metric or reason, and for what would be written over.
        """
        check_metrics(self.metrics)
        if self.comet:
            check_new_folder(self.comet)
        if self.passport:
            check_place(self.passport)
        return Guard(self.allow)

    def settings(self, tokenizer: str, forced: str) -> dict[str, Any]:
        """Return what a passport says of how the scores were computed."""
        return {
            "bleu_tokenizer": tokenizer,
            "metrics": list(self.metrics),
            "resamples": self.resamples,
            "forced": forced,
        }


PLAIN_JOB = EvaluationJob()
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
    guard.check_tokens([sources, *sides])
    guard.check_direction(sources, sides, language=language)
    return pairs, (Text(source.target_description, targets), *further)


def _tell_notes(translations: Sequence[Translation]) -> None:
    """Tell of the first lines that were split or cut, and how many more there are."""
    noted = [translation for translation in translations if translation.notes]
    for translation in noted[:_MOST_LINES_TOLD]:
        log_notes(translation)
    if (more := len(noted) - _MOST_LINES_TOLD) > 0:
        _logger.warning("and %d more such lines of %d", more, len(translations))


def evaluate_files(
    hypotheses: Path,
    references: Sequence[Path],
    *,
    target_language: str,
    tokenizer: str = "auto",
    sources: Path | None = None,
    job: EvaluationJob = PLAIN_JOB,
) -> Evaluation:
    """Score a file of translations against one or several files of references, line by line.

    `sources` is what was translated: lines that were only copied are told on stderr.

    Raises DataError where the texts are refused, UserError for language, tokenizer or job.
    """
    guard = job.begin()
    _check_wishes(job, references, sources)
    tokenizer = guard.check_tokenizer(target_language, tokenizer)
    made, *right = (Text.of_file(path) for path in (hypotheses, *references))
    given = [made, *right, *([Text.of_file(sources)] if sources else [])]
    guard.check_texts(made, right, given[-1] if sources else None, language=target_language)
    texts = cut_alike(given)
    if sources:
        _logger.warning("note: %s", identical_to_source(made.name, texts[0], texts[-1]))
    scores = evaluate(
        texts[0],
        texts[1 : 1 + len(right)],
        target_language=target_language,
        tokenizer=tokenizer,
        metrics=job.metrics,
        resamples=job.resamples,
    )
    names = tuple(text.name for text in right)
    scores = replace(guard.mark(scores), hypotheses=made.name, references=names)
    if job.comet:
        write_comet(job.comet, texts, references=len(right))
    if job.passport:
        record = {**scores.as_record(), "settings": job.settings(tokenizer, guard.forced)}
        write_passport(job.passport, record, _inputs(given, len(right), job.passport.parent))
    return scores


def _check_wishes(job: EvaluationJob, references: Sequence[Path], sources: Path | None) -> None:
    check_named_once(references)
    if job.comet and not sources:
        raise UserError("COMET reads the sources too: name them with --sources")


def _inputs(given: Sequence[Text], references: int, beside: Path) -> list[Input]:
    """Describe the files for a passport: hypotheses, references, and sources where given."""
    roles = ["hypotheses", *["references"] * references, "sources"]
    return [
        file_input(role, Path(text.name), lines=len(text.lines), beside=beside)
        for role, text in zip(roles, given, strict=False)
    ]
