"""Evaluation of a run on a split, and of files of translations."""

import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mt.config import Config, DataConfig, DecodingConfig
from mt.config.data import Direction, TextSource, chosen_direction
from mt.config.loading import load_config
from mt.data.glossary import Glossary, read_terms
from mt.data.pairs import SentencePair
from mt.data.splits import open_split
from mt.data.words import WORD
from mt.decoding.load import require_tag
from mt.decoding.translator import Translation, Translator, load_translator, log_notes
from mt.errors import DataError, RunError, UserError
from mt.evaluation.checks import ScoredText, TextChecks, check_named_once
from mt.evaluation.passport import InputPath, list_model_files, passport_beside, write_passport
from mt.evaluation.run_info import (
    choose_split,
    read_config,
    render_card,
    update_card,
    weights_sha256,
)
from mt.evaluation.scores import (
    Evaluation,
    check_metrics,
    evaluate,
    measure_off_target,
    translate_pairs,
)
from mt.files import hash_file, read_json, require_regular_file, resolved, write_text
from mt.model.device import keep_freed_memory
from mt.runs import (
    CONFIG_FILE,
    EVALUATIONS_FOLDER,
    export_folder,
    is_exported,
    is_finished,
    read_exported,
)

_MAX_LOGGED_LINES = 5

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GivenTexts:
    """Test set that is not in the config; line N of each file answers line N of the sources."""

    sources: Path
    references: tuple[Path, ...]
    """At least one file; the first is the target side of the split that `with_texts` adds."""

    def further(self, lines: int) -> tuple[ScoredText, ...]:
        """Read the other references; raise DataError unless each has `lines` lines."""
        texts = tuple(ScoredText.of_file(path) for path in self.references[1:])
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
    resamples: int = 0
    allow: tuple[str, ...] = ()
    """Reasons in `mt.evaluation.checks.REASONS` that do not stop the evaluation."""
    texts: GivenTexts | None = None
    """Test set for a run, instead of a split of its config."""
    data: DataConfig | None = None
    """Corpora for an imported run, whose config has none."""
    glossary: Path | None = None
    """File with terms to use; their share in the translations is counted."""

    def make_checks(self) -> TextChecks:
        """Return the checks of the texts; raise UserError for an unknown metric or reason."""
        check_metrics(self.metrics)
        return TextChecks(self.allow)

    def settings(self, tokenizer: str, forced: str) -> dict[str, Any]:
        """Return the scoring settings for a passport."""
        return {
            "bleu_tokenizer": tokenizer,
            "metrics": list(self.metrics),
            "resamples": self.resamples,
            "forced": forced,
        }


@dataclass(frozen=True, slots=True)
class OpenedSplit:
    """Checked split of a run, before translation."""

    run: Path
    name: str
    direction: Direction
    pairs: tuple[SentencePair, ...]
    references: tuple[ScoredText, ...]
    """Target side of the pairs, then further references of a given test set."""
    inputs: tuple[InputPath, ...]
    translator: Translator
    tokenizer: str
    checks: TextChecks
    is_multilingual: bool
    is_finished: bool
    """False if the model is a checkpoint of a run that has not finished."""

    def output(self, suffix: str) -> Path:
        """Return the path of an output in the folder of evaluations."""
        return self.run / EVALUATIONS_FOLDER / f"{self.name}{suffix}"

    def write_passport(
        self,
        path: Path,
        record: Mapping[str, Any],
        hypotheses: Sequence[InputPath],
        *,
        job: EvaluationJob,
    ) -> None:
        """Write a passport with the inputs, the model and the settings."""
        decoding = self.translator.decoding
        record = {
            **record,
            "weights": weights_sha256(self.run),
            "settings": job.settings(self.tokenizer, self.checks.forced),
            "decoding": decoding.model_dump(mode="json"),
        }
        if is_exported(self.run):
            record["quantization"] = read_exported(self.run).quantization
        others = list(decoding.ensemble)
        if decoding.quantization != "none" and not is_exported(self.run):
            others.append(export_folder(self.run, decoding.quantization))
        models = list_model_files(self.run, others)
        terms = [("glossary", job.glossary)] if job.glossary else []
        write_passport(path, record, [*hypotheses, *self.inputs, *terms, *models])


def evaluate_run(
    run: Path,
    *,
    split: str | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    job: EvaluationJob = EvaluationJob(),
) -> Evaluation:
    """Translate a split with the final model of a run or with an export, and score it.

    Writes evaluations/SPLIT.json, the passport, and evaluations/SPLIT.*.txt, the texts, into the
    run folder, and updates its model card. Without `split`, the split is `test` or the only test
    split; with `job.texts`, `split` names the given test set. A run that has not finished is scored
    with its best checkpoint; the signatures say so, and there is no passport.

    Raises RunError if there is no model, DataError if the checks reject the texts.
    """
    terms = read_terms(job.glossary)
    opened = open_run(run, split=split, overrides=overrides, device=device, job=job)
    opened.translator.use_terms(terms)
    checks, language = opened.checks, opened.direction.target
    started_at = time.perf_counter()
    translations = translate_pairs(opened.translator, opened.pairs)
    texts = [translation.text for translation in translations]
    evaluation = evaluate(
        texts,
        [text.lines for text in opened.references],
        target_language=language,
        tokenizer=opened.tokenizer,
        metrics=job.metrics,
        resamples=job.resamples,
    )
    seconds = time.perf_counter() - started_at
    noted = [line for line in translations if line.notes]
    for line in noted[:_MAX_LOGGED_LINES]:
        log_notes(line)
    if len(noted) > _MAX_LOGGED_LINES:
        more = len(noted) - _MAX_LOGGED_LINES
        _logger.warning("and %d more such lines of %d", more, len(translations))
    path = opened.output(".hypotheses.txt")
    hypotheses = _write_lines(path, texts)
    checks.check_made(hypotheses, opened.references, language=language)
    if opened.is_multilingual:
        references = opened.references[0].lines
        try:
            rate = measure_off_target(hypotheses.lines, references, target_language=language)
            evaluation = replace(evaluation, off_target=rate)
        except DataError as error:
            _logger.warning("note: no off-target rate: %s", error)
    evaluation = replace(
        checks.mark(evaluation),
        hypotheses=hypotheses.name,
        references=tuple(text.name for text in opened.references),
    )
    if terms:
        evaluation = replace(evaluation, terms=_count_terms(opened.translator, translations))
    if not opened.is_finished:
        return evaluation.marked("model", "checkpoint")
    card = render_card(run)
    record = {"split": opened.name, **evaluation.as_record(), "seconds": seconds}
    opened.write_passport(opened.output(".json"), record, [("hypotheses", path)], job=job)
    update_card(run, card)
    return evaluation


def _count_terms(translator: Translator, translations: Sequence[Translation]) -> Counter[str]:
    """Count terms by what became of them, and lines that are otherwise as without the glossary."""
    lines = [translation for translation in translations if translation.terms]
    without = Glossary((), translator.direction)
    plain = translator.stream([line.source for line in lines], glossary=without)
    uses = [use for line in lines for use in line.terms]
    counts = Counter([*(use.fate for use in uses), *(use.way for use in uses)])
    counts["lines"] = len(lines)
    counts["unchanged"] = sum(map(_is_otherwise, lines, (other.text for other in plain)))
    return counts


def _is_otherwise(line: Translation, plain: str) -> bool:
    """Test for a translation that differs from a plain one in its terms alone.

    In their places it has at most one word more than the term has on its longer side.
    """
    places = [(use.places[1], use) for use in line.terms if use.places]
    places.sort(key=lambda place: place[0])
    pattern, end = "", 0
    for (start, stop), _ in places:
        pattern, end = f"{pattern}{re.escape(line.text[end:start])}(.*?)", stop
    match = re.fullmatch(pattern + re.escape(line.text[end:]), plain)
    if not match:
        return False
    counts = [[len(WORD.findall(x)) for x in (use.source, use.target)] for _, use in places]
    others = [len(WORD.findall(other)) for other in match.groups()]
    return all(other <= max(own) + 1 for other, own in zip(others, counts, strict=True))


def open_run(
    run: Path, *, split: str | None, overrides: Sequence[str], device: str, job: EvaluationJob
) -> OpenedSplit:
    """Check a split of a run, load the model and create the folder of evaluations."""
    keep_freed_memory()
    checks = job.make_checks()
    finished = is_exported(run) or is_finished(run)
    config, split, translator = load_for_split(run, split, overrides, device, job)
    data = config.data
    opened = open_split(data, split)
    source, language = opened.source, opened.direction.target
    tokenizer = checks.check_tokenizer(language, config.evaluation.bleu_tokenizer)
    pairs = tuple(source.pairs())
    further = job.texts.further(len(pairs)) if job.texts else ()
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    left = ScoredText(f"{source.description}, source side", sources)
    right = [ScoredText(f"{source.description}, target side", targets), *further]
    checks.check_sources(left, right, language=language)
    # Before translation, so that a missing permission does not waste it.
    folder = run / EVALUATIONS_FOLDER
    folder.mkdir(exist_ok=True)
    if job.texts:
        references = [("references", path) for path in job.texts.references]
        inputs = [("sources", job.texts.sources), *references]
    else:
        inputs = [(side, folder / f"{split}.{side}.txt") for side in ("sources", "references")]
        for (_, path), lines in zip(inputs, (sources, targets), strict=True):
            _write_lines(path, lines)
    return OpenedSplit(
        run,
        split,
        opened.direction,
        pairs,
        references=(ScoredText(source.target_description, targets), *further),
        inputs=tuple(inputs),
        translator=translator,
        tokenizer=tokenizer,
        checks=checks,
        is_multilingual=data.is_multilingual,
        is_finished=finished,
    )


def load_for_split(
    run: Path, split: str | None, overrides: Sequence[str], device: str, job: EvaluationJob
) -> tuple[Config, str, Translator]:
    """Return the config of a run with the texts of a job, the name of the split, and the model."""
    config = read_config(run, job.data)
    if job.texts:
        chosen = load_config(run / CONFIG_FILE, overrides=overrides)
        require_tag(chosen.tags_to_choose(), overrides, name=run)
        data, split = with_texts(config.data, run, split, job.texts, decoding=chosen.decoding)
        config = config.changed(data=data)
    split = choose_split(config.data, split)
    tagged = [f"decoding.{key}={tag or 'null'}" for key, tag in config.split_tags(split).items()]
    return config, split, load_translator(run, overrides=[*tagged, *overrides], device=device)


def with_texts(
    data: DataConfig, run: Path, split: str | None, texts: GivenTexts, *, decoding: DecodingConfig
) -> tuple[DataConfig, str]:
    """Return the data of a run with the given test set as one more split, and the split's name.

    The default name is the file name of the sources up to its first dot. The tags of
    `decoding` choose the direction of a multilingual run.

    Raises UserError if the config has a split of this name or other texts were scored under it,
    DataError if a file is missing or is a pipe.
    """
    files = [require_regular_file(path) for path in (texts.sources, *texts.references)]
    check_named_once(texts.references)
    name = split or re.sub(r"[^\w-]+", "-", texts.sources.name.split(".")[0]) or "texts"
    another = "give these texts another name with --split NAME"
    if name in data.split_names():
        raise UserError(f"split `{name}` is already in the config of the run; {another}")
    if re.fullmatch(r"[\w-]+", name) is None:
        raise UserError(f"split `{name}`: a name has only letters, digits, `-` and `_`")
    folder = run / EVALUATIONS_FOLDER
    passport = folder / f"{name}.json"
    if passport.exists() and not _has_scored(passport, files):
        raise UserError(f"{passport}: is the score of other texts; {another}")
    output = resolved(folder / f"{name}.hypotheses.txt")
    for path in files:
        if output == resolved(path):
            raise UserError(f"{path}: the translations would replace this file; {another}")
    direction = chosen_direction(data, decoding.tag, decoding.target_tag)
    source = TextSource(
        source=str(texts.sources),
        target=str(texts.references[0]),
        source_language=direction.source,
        target_language=direction.target,
        tag=decoding.tag,
        target_tag=decoding.target_tag,
    )
    return data.changed(tests={**data.tests, name: source}), name


def _has_scored(passport: Path, files: Sequence[Path]) -> bool:
    """Return True if a passport names these texts, by path or by content."""
    try:
        inputs = read_json(passport, dict[str, Any])["inputs"]
        scored = [
            (resolved(passport.parent / item["path"]), item["sha256"])
            for item in inputs
            if item["role"] in {"sources", "references"}
        ]
    except (RunError, TypeError, KeyError):
        return False
    return len(scored) == len(files) and all(
        resolved(file) == path or hash_file(file) == sha256
        for file, (path, sha256) in zip(files, scored, strict=True)
    )


def evaluate_files(
    hypotheses: Path,
    references: Sequence[Path],
    *,
    target_language: str,
    tokenizer: str = "auto",
    sources: Path | None = None,
    job: EvaluationJob = EvaluationJob(),
) -> Evaluation:
    """Score a file of translations against one or more files of references, line by line.

    With `sources`, log the share of translations that are copies of their source.

    Raises DataError if the checks reject the texts, UserError for language, tokenizer or job.
    """
    checks = job.make_checks()
    check_named_once(references)
    tokenizer = checks.check_tokenizer(target_language, tokenizer)
    scored, *right = (ScoredText.of_file(path) for path in (hypotheses, *references))
    left = ScoredText.of_file(sources) if sources else None
    checks.check_texts(scored, right, left, language=target_language)
    passport = passport_beside(hypotheses, [*references, *([sources] if sources else [])])
    # Other lengths are allowed by name.
    shortest = min(len(text.lines) for text in (scored, *right, *([left] if left else [])))
    lines = scored.lines[:shortest]
    if left:
        pairs = zip(lines, left.lines, strict=False)
        copies = [line == source for line, source in pairs if source]
        share = 100 * sum(copies) / max(len(copies), 1)
        message = "note: %s: %d of %d lines (%.1f%%) are identical to their source"
        _logger.warning(message, scored.name, sum(copies), len(copies), share)
    scores = evaluate(
        lines,
        [text.lines[:shortest] for text in right],
        target_language=target_language,
        tokenizer=tokenizer,
        metrics=job.metrics,
        resamples=job.resamples,
    )
    names = tuple(text.name for text in right)
    scores = replace(checks.mark(scores), hypotheses=scored.name, references=names)
    if passport:
        inputs = [("hypotheses", hypotheses), *(("references", path) for path in references)]
        inputs += [("sources", sources)] if sources else []
        record = {**scores.as_record(), "settings": job.settings(tokenizer, checks.forced)}
        write_passport(passport, record, inputs)
    return scores


def _write_lines(path: Path, lines: Sequence[str]) -> ScoredText:
    write_text(path, "".join(f"{line}\n" for line in lines))
    return ScoredText(str(path), lines)
