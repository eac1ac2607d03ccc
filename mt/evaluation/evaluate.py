"""Evaluation of a run on a split, of its robustness, and of files of translations."""

import logging
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mt.config import Config, DataConfig, DecodingConfig
from mt.config.data import TextSource, chosen_direction
from mt.config.loading import load_config
from mt.data.pairs import SentencePair
from mt.data.splits import open_split
from mt.decoding.load import require_tag
from mt.decoding.translator import Translation, Translator, load_translator, log_notes
from mt.errors import DataError, RunError, UserError
from mt.evaluation.checks import Text, TextChecks, check_named_once, cut_alike
from mt.evaluation.model_card import refresh_card
from mt.evaluation.passport import (
    Input,
    check_place,
    corpus_inputs,
    file_input,
    model_inputs,
    write_passport,
)
from mt.evaluation.robustness import RobustnessCard, score_variants, variants
from mt.evaluation.run_info import ROBUSTNESS_SUFFIX, choose_split, read_config, weights_sha256
from mt.evaluation.scores import Evaluation, check_metrics, evaluate, off_target
from mt.files import aside, file_sha256, put_in_place, read_json, regular_file, resolved, write_text
from mt.model.device import keep_freed_memory
from mt.runs import (
    CONFIG_FILE,
    EVALUATIONS_FOLDER,
    check_finished,
    is_exported,
    is_finished,
    read_exported,
)

COMET_MODEL = "Unbabel/wmt22-comet-da"
_MAX_LOGGED_LINES = 5

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GivenTexts:
    """Test set that is not in the config; line N of each file answers line N of the sources."""

    sources: Path
    references: tuple[Path, ...]
    """At least one file; the first is the target side of the split that `with_texts` adds."""

    def further(self, lines: int) -> tuple[Text, ...]:
        """Read the other references; raise DataError unless each has `lines` lines."""
        texts = tuple(Text.of_file(path) for path in self.references[1:])
        for text in texts:
            if len(text.lines) != lines:
                raise DataError(
                    f"{text.name} has {len(text.lines)} lines, {self.sources} has {lines}: line N "
                    "of one must answer line N of the other"
                )
        return texts


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """Options of an evaluation."""

    metrics: tuple[str, ...] = ()
    """Names in `mt.evaluation.scores.METRICS`."""
    resamples: int = 0
    """Number of bootstrap samples for the intervals; 0 for no intervals."""
    allow: tuple[str, ...] = ()
    """Reasons in `mt.evaluation.checks.REASONS` that do not stop the evaluation."""
    comet: Path | None = None
    """New folder for the input files of COMET."""
    texts: GivenTexts | None = None
    """Test set for a run, instead of a split of its config."""
    data: DataConfig | None = None
    """Corpora for an imported run, whose config has none."""
    passport: Path | None = None
    """Passport of a score of files; the passport of a run is in the run folder."""

    def begin(self) -> TextChecks:
        """Check the options and return the checks of the texts.

        Raises UserError for an unknown metric or reason, and for a file that would be replaced.
        """
        check_metrics(self.metrics)
        if self.comet and self.comet.exists():
            raise UserError(f"{self.comet}: exists already; name a new folder for COMET's files")
        if self.passport:
            check_place(self.passport)
        return TextChecks(self.allow)

    def settings(self, tokenizer: str, forced: str) -> dict[str, Any]:
        """Return the scoring settings for a passport."""
        return {
            "bleu_tokenizer": tokenizer,
            "metrics": list(self.metrics),
            "resamples": self.resamples,
            "forced": forced,
        }


DEFAULT_JOB = EvaluationJob()


@dataclass(frozen=True, slots=True)
class ValidationScores:
    """Translations of some pairs, and their scores."""

    evaluation: Evaluation
    translations: tuple[Translation, ...]


@dataclass(frozen=True, slots=True)
class OpenedSplit:
    """Checked split of a run, before translation."""

    run: Path
    name: str
    data: DataConfig
    """Data config with the languages of the split."""
    pairs: tuple[SentencePair, ...]
    references: tuple[Text, ...]
    """Target side of the pairs, then further references of a given test set."""
    inputs: tuple[Input, ...]
    """Sources and references, for a passport in the folder of evaluations."""
    translator: Translator
    tokenizer: str
    """BLEU's tokenizer."""
    checks: TextChecks
    is_multilingual: bool
    """True if the run has more than one target language."""
    is_finished: bool
    """False if the model is a checkpoint of a run that has not finished."""

    @property
    def folder(self) -> Path:
        """Folder of evaluations."""
        return self.run / EVALUATIONS_FOLDER

    def write_passport(
        self, path: Path, record: Mapping[str, Any], kept: Iterable[Input], *, job: EvaluationJob
    ) -> None:
        """Write a passport with the inputs, the model and the settings; `kept` are texts made."""
        record = {
            "given_texts": job.texts is not None,
            **record,
            "weights": weights_sha256(self.run),
            "settings": job.settings(self.tokenizer, self.checks.forced),
            "decoding": self.translator.decoding.model_dump(mode="json"),
        }
        if is_exported(self.run):
            record["quantization"] = read_exported(self.run).quantization
        models = model_inputs(self.run, self.translator.decoding.ensemble, beside=self.folder)
        write_passport(path, record, [*kept, *self.inputs, *models])


def evaluate_run(
    run: Path,
    *,
    split: str | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    job: EvaluationJob = DEFAULT_JOB,
) -> Evaluation:
    """Translate a split with the final model of a run or with an export, and score it.

    Writes evaluations/SPLIT.json, the passport, and evaluations/SPLIT.hypotheses.txt into the run
    folder, and updates its model card. Without `split`, the split is `test` or the only test split;
    with `job.texts`, `split` names the given test set. A run that has not finished is scored with
    its best checkpoint; the signatures say so, and there is no passport.

    Raises RunError if there is no model, DataError if the checks reject the texts.
    """
    opened = open_run(run, split=split, overrides=overrides, device=device, job=job)
    checks, language = opened.checks, opened.data.target_language
    started_at = time.perf_counter()
    scores = score_pairs(
        opened.translator,
        opened.pairs,
        target_language=language,
        tokenizer=opened.tokenizer,
        job=job,
        further=[text.lines for text in opened.references[1:]],
    )
    seconds = time.perf_counter() - started_at
    _log_notes(scores.translations)
    place = opened.folder / f"{opened.name}.hypotheses.txt"
    made = _write_lines(place, [translation.text for translation in scores.translations])
    checks.check_made(made, opened.references, language=language)
    evaluation = scores.evaluation
    if opened.is_multilingual:
        try:
            found = off_target(made.lines, opened.references[0].lines, target_language=language)
            evaluation = replace(evaluation, off_target=found)
        except DataError as error:
            _logger.warning("note: no off-target rate: %s", error)
    evaluation = replace(
        checks.mark(evaluation),
        hypotheses=made.name,
        references=tuple(text.name for text in opened.references),
    )
    if job.comet:
        sources = [pair.source for pair in opened.pairs]
        texts = [made.lines, *(text.lines for text in opened.references), sources]
        write_comet(job.comet, texts, references=len(opened.references))
    if not opened.is_finished:
        return evaluation.marked("model", "checkpoint")
    record = {"split": opened.name, **evaluation.as_record(), "seconds": seconds}
    kept = file_input("hypotheses", place, lines=len(opened.pairs), beside=opened.folder)
    opened.write_passport(opened.folder / f"{opened.name}.json", record, [kept], job=job)
    refresh_card(run)
    return evaluation


def evaluate_robustness(
    run: Path,
    *,
    split: str | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    job: EvaluationJob = DEFAULT_JOB,
) -> RobustnessCard:
    """Translate and score a split of a run and its variants (see `mt.evaluation.robustness`).

    Writes evaluations/SPLIT.robustness.json, the passport, and a folder with the sources and
    translations of each variant into the run folder. Raises as `evaluate_run` does, and RunError
    for a run that has not finished.
    """
    if not is_exported(run):
        check_finished(run)
    opened = open_run(run, split=split, overrides=overrides, device=device, job=job)
    language = opened.data.target_language
    forms, left_out = variants(
        [pair.source for pair in opened.pairs],
        [text.lines for text in opened.references],
        source_language=opened.data.source_language,
        target_language=language,
    )
    place = opened.folder / f"{opened.name}{ROBUSTNESS_SUFFIX}"
    folder = place.with_suffix("")
    folder.mkdir(exist_ok=True)
    stream = opened.translator.stream(source for form in forms for source in form.sources)
    total = sum(len(form.sources) for form in forms)
    made = iter(tqdm(stream, "translating", total, unit="line", leave=False, disable=None))
    translations: list[list[str]] = []
    kept = []
    for form in forms:
        lines = [translation.text for translation in islice(made, len(form.sources))]
        for role, name, text in (
            ("variant", "sources", form.sources),
            ("hypotheses", "hypotheses", lines),
        ):
            written = _write_lines(form_file(folder, form.name, name), text)
            path = Path(written.name)
            kept.append(file_input(role, path, lines=len(lines), beside=opened.folder))
        if not translations:
            opened.checks.check_made(written, opened.references, language=language)
        translations.append(lines)
    tokenizer, forced = opened.tokenizer, opened.checks.forced
    scored = score_variants(
        forms, translations, target_language=language, tokenizer=tokenizer, forced=forced
    )
    card = RobustnessCard(opened.name, scored, left_out)
    record = {
        **card.as_record(),
        "sentences": len(opened.pairs),
        "source_language": opened.data.source_language,
        "target_language": language,
    }
    opened.write_passport(place, record, kept, job=job)
    for omitted in left_out:  # an earlier card may have had these forms
        for name in ("sources", "hypotheses"):
            form_file(folder, omitted.name, name).unlink(missing_ok=True)
    return card


def form_file(folder: Path, form: str, name: str) -> Path:
    """Return the file of a form's sources or hypotheses in the folder of a robustness card."""
    return folder / f"{form.replace(' ', '-')}.{name}.txt"


def open_run(
    run: Path, *, split: str | None, overrides: Sequence[str], device: str, job: EvaluationJob
) -> OpenedSplit:
    """Check a split of a run, load the model and create the folder of evaluations."""
    keep_freed_memory()
    checks = job.begin()
    config, finished = read_config(run, job.data), is_exported(run) or is_finished(run)
    if job.texts:
        require_tag(run, overrides)
        decoding = load_config(run / CONFIG_FILE, overrides=overrides).decoding
        config, split = with_texts(config, run, split, job.texts, decoding=decoding)
    split = choose_split(config.data, split)
    data, source = config.data.of_split(split), open_split(config.data, split)
    language = data.target_language
    tagged = [f"decoding.{key}={tag or 'null'}" for key, tag in config.split_tags(split).items()]
    translator = load_translator(run, overrides=[*tagged, *overrides], device=device)
    tokenizer = checks.check_tokenizer(language, config.evaluation.bleu_tokenizer)
    pairs = tuple(source.pairs())
    further = job.texts.further(len(pairs)) if job.texts else ()
    targets = [pair.target for pair in pairs]
    sources = Text(f"{source.description}, source side", [pair.source for pair in pairs])
    sides = [Text(f"{source.description}, target side", targets), *further]
    checks.check_no_source(sources, sides)
    checks.check_tokens([sources, *sides])
    checks.check_direction(sources, sides, language=language)
    # Before translation, so that a missing permission does not waste it.
    folder = run / EVALUATIONS_FOLDER
    folder.mkdir(exist_ok=True)
    others = (
        file_input("references", Path(text.name), lines=len(pairs), beside=folder)
        for text in further
    )
    return OpenedSplit(
        run,
        split,
        data,
        pairs,
        references=(Text(source.target_description, targets), *further),
        inputs=(*corpus_inputs(source, lines=len(pairs), beside=folder), *others),
        translator=translator,
        tokenizer=tokenizer,
        checks=checks,
        is_multilingual=config.data.is_multilingual,
        is_finished=finished,
    )


def with_texts(
    config: Config, run: Path, split: str | None, texts: GivenTexts, *, decoding: DecodingConfig
) -> tuple[Config, str]:
    """Return the config with the given test set as one more split, and the name of the split.

    The default name is the file name of the sources up to its first dot. The tags of
    `decoding` choose the direction of a multilingual run.

    Raises UserError if the config has a split of this name or other texts were scored under it,
    DataError if a file is missing or is a pipe.
    """
    files = [regular_file(path) for path in (texts.sources, *texts.references)]
    check_named_once(texts.references)
    name = split or re.sub(r"[^\w-]+", "-", texts.sources.name.split(".")[0]) or "texts"
    another = "give these texts another name with --split NAME"
    if name in config.data.split_names():
        raise UserError(f"split `{name}` is already in the config of the run; {another}")
    if re.fullmatch(r"[\w-]+", name) is None:
        raise UserError(f"split `{name}`: a name has only letters, digits, `-` and `_`")
    folder = run / EVALUATIONS_FOLDER
    for written in (folder / f"{name}.json", folder / f"{name}{ROBUSTNESS_SUFFIX}"):
        if written.exists() and not _has_scored(written, files):
            raise UserError(f"{written}: is the score of other texts; {another}")
    made = {folder / f"{name}.hypotheses.txt", folder / f"{name}.robustness"}
    for path in files:
        if {resolved(place) for place in made} & {resolved(path), resolved(path).parent}:
            raise UserError(f"{path}: the translations would replace this file; {another}")
    direction = chosen_direction(config.data, decoding.tag, decoding.target_tag)
    source = TextSource(
        source=str(texts.sources),
        target=str(texts.references[0]),
        source_language=direction.source,
        target_language=direction.target,
        tag=decoding.tag,
        target_tag=decoding.target_tag,
    )
    data = config.data.model_copy(update={"tests": {**config.data.tests, name: source}})
    return config.model_copy(update={"data": data}), name


def _has_scored(passport: Path, files: Sequence[Path]) -> bool:
    """Return True if a passport names these texts, by path or by content."""
    try:
        inputs = read_json(passport, dict[str, Any])["inputs"]
        scored = [
            (resolved(passport.parent / each["path"]), each["sha256"])
            for each in inputs
            if each["role"] in {"sources", "references"}
        ]
    except (RunError, TypeError, KeyError):
        return False
    return len(scored) == len(files) and all(
        resolved(file) == place or file_sha256(file) == sha256
        for file, (place, sha256) in zip(files, scored, strict=True)
    )


def score_pairs(
    translator: Translator,
    pairs: Sequence[SentencePair],
    *,
    target_language: str,
    tokenizer: str = "auto",
    job: EvaluationJob = DEFAULT_JOB,
    further: Sequence[Sequence[str]] = (),
) -> ValidationScores:
    """Translate the sources of `pairs` and score the translations against their targets.

    `further` are additional reference sets. Validation during training and `mt evaluate RUN` both
    score here, so that they agree.
    """
    stream = translator.stream(pair.source for pair in pairs)
    made = tuple(tqdm(stream, "translating", len(pairs), unit="line", leave=False, disable=None))
    evaluation = evaluate(
        [translation.text for translation in made],
        [[pair.target for pair in pairs], *further],
        target_language=target_language,
        tokenizer=tokenizer,
        metrics=job.metrics,
        resamples=job.resamples,
    )
    return ValidationScores(evaluation, made)


def evaluate_files(
    hypotheses: Path,
    references: Sequence[Path],
    *,
    target_language: str,
    tokenizer: str = "auto",
    sources: Path | None = None,
    job: EvaluationJob = DEFAULT_JOB,
) -> Evaluation:
    """Score a file of translations against one or more files of references, line by line.

    With `sources`, log the share of translations that are copies of their source.

    Raises DataError if the checks reject the texts, UserError for language, tokenizer or job.
    """
    checks = job.begin()
    check_named_once(references)
    if job.comet and not sources:
        raise UserError("COMET also reads the sources: name them with --sources")
    tokenizer = checks.check_tokenizer(target_language, tokenizer)
    made, *right = (Text.of_file(path) for path in (hypotheses, *references))
    given = [made, *right, *([Text.of_file(sources)] if sources else [])]
    checks.check_texts(made, right, given[-1] if sources else None, language=target_language)
    texts = cut_alike(given)
    if sources:
        _log_copies(made.name, texts[0], texts[-1])
    scores = evaluate(
        texts[0],
        texts[1 : 1 + len(right)],
        target_language=target_language,
        tokenizer=tokenizer,
        metrics=job.metrics,
        resamples=job.resamples,
    )
    names = tuple(text.name for text in right)
    scores = replace(checks.mark(scores), hypotheses=made.name, references=names)
    if job.comet:
        write_comet(job.comet, texts, references=len(right))
    if job.passport:
        roles = ["hypotheses", *["references"] * len(right), "sources"]
        inputs = [
            file_input(role, Path(text.name), lines=len(text.lines), beside=job.passport.parent)
            for role, text in zip(roles, given, strict=False)
        ]
        record = {**scores.as_record(), "settings": job.settings(tokenizer, checks.forced)}
        write_passport(job.passport, record, inputs)
    return scores


def write_comet(folder: Path, texts: Sequence[Sequence[str]], *, references: int) -> None:
    """Write a new folder with source.txt, hypothesis.txt and a file for each reference set.

    `texts` are the hypotheses, the references and the sources. A carriage return inside a line
    becomes a space, because COMET ends a line there.
    """
    names = ["hypothesis.txt", *_reference_names(references), "source.txt"]
    with aside(folder) as temporary:
        for name, lines in zip(names, texts, strict=True):
            _write_lines(temporary / name, [line.replace("\r", " ") for line in lines])
        put_in_place(temporary, folder)


def comet_commands(folder: Path, references: int) -> str:
    """Return shell commands that install COMET and score the files of `write_comet`.

    COMET compares with one reference, so there is one command for each reference set.
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


def _reference_names(count: int) -> list[str]:
    return ["reference.txt", *(f"reference-{number}.txt" for number in range(2, count + 1))]


def _write_lines(path: Path, lines: Sequence[str]) -> Text:
    write_text(path, "".join(f"{line}\n" for line in lines))
    return Text(str(path), lines)


def _log_notes(translations: Sequence[Translation]) -> None:
    noted = [translation for translation in translations if translation.notes]
    for translation in noted[:_MAX_LOGGED_LINES]:
        log_notes(translation)
    if (more := len(noted) - _MAX_LOGGED_LINES) > 0:
        _logger.warning("and %d more such lines of %d", more, len(translations))


def _log_copies(name: str, translations: Sequence[str], sources: Sequence[str]) -> None:
    filled = [(line, source) for line, source in zip(translations, sources, strict=True) if source]
    count = sum(line == source for line, source in filled)
    share = f"{count / max(len(filled), 1):.1%}"
    values = name, count, len(filled), share
    _logger.warning("note: %s: %d of %d lines (%s) are identical to their source", *values)
