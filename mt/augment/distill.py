"""Sequence-level distillation: sources with a teacher's translations; and back-translation.

Kim and Rush 2016, "Sequence-Level Knowledge Distillation", sections 3.2 and 3.3. The teacher of
back-translation (Sennrich et al. 2016, "Improving Neural Machine Translation Models with
Monolingual Data") has the reverse direction; its translations are the sources of the next training.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice, tee
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from mt.config.data import DataConfig, Direction
from mt.config.decoding import LOOK_AHEAD_BATCHES
from mt.data.augmentation import Noise
from mt.data.corpus_files import COMPRESSED, scan
from mt.data.pairs import SentencePair
from mt.data.splits import OpenedCorpus, open_training_corpora, read_cleaned_pairs
from mt.decoding.load import StoredModel
from mt.decoding.shards import Job, Shard, Window
from mt.decoding.text_files import load_for_files, read_lines
from mt.decoding.translator import RankedTranslation, Translator, check_n_best
from mt.errors import UserError
from mt.evaluation.scores import choose_tokenizer
from mt.files import require_regular_file
from mt.languages import base_language
from mt.runs import check_finished, is_exported

NOISE = Noise(drop=0.1, mask=0.1, swap=3)
"""Strength in Edunov et al. 2018, "Understanding Back-Translation at Scale", section 3."""
WRITTEN, PAIRS = "written", "pairs written"
"""Count of pairs in the record of a distillation, and in that of a selection."""
BLANK, NOT_UTF_8 = "blank line", "line that is not UTF-8"
EMPTY, CUT = "empty translation", "translation cut at its length limit"
"""Reasons for leaving a line out."""


@dataclass(frozen=True)
class Teacher:
    """A run or an export; the model is loaded on first use."""

    stored: StoredModel
    device: str

    @classmethod
    def read(cls, run: Path, *, overrides: Sequence[str] = (), device: str = "auto") -> "Teacher":
        """Read a run; raise UserError if an exported model would have to sample."""
        is_export = is_exported(run)
        stored = StoredModel.read(run, overrides, finished=not is_export)
        decoding = stored.config.decoding
        if is_export and decoding.search == "sample":
            raise UserError(
                f"{run}: an exported model cannot sample; add `--set decoding.search=beam`, or "
                "name the run that it was exported from"
            )
        for member in decoding.ensemble:
            check_finished(member)
        return cls(stored, device)

    @cached_property
    def translator(self) -> Translator:
        """The model, loaded as `mt translate` does."""
        return load_for_files(self.stored, self.device)

    @property
    def window(self) -> int:
        """Lines to translate between two saves: several batches, whatever their size."""
        return LOOK_AHEAD_BATCHES * self.stored.config.decoding.sentences_at_once


def strip_suffixes(path: Path, language: str) -> str:
    """Return a file name without the suffixes of compression, `.txt` and `.LANGUAGE`."""
    name = path.name
    for ending in (*COMPRESSED, ".txt", f".{language}"):
        name = name.removesuffix(ending)
    return name or "text"


def find_source_fault(source: str) -> str:
    """Return the reason for not translating a line, "" without one."""
    if not source.strip():
        return BLANK
    try:
        source.encode()
    except UnicodeEncodeError:  # invalid bytes are lone surrogates
        return NOT_UTF_8
    return ""


def find_pair_fault(source: str, choice: RankedTranslation | None) -> str:
    """Return the reason for leaving out a line and its translation, "" without one."""
    if reason := find_source_fault(source):
        return reason
    if choice is None or not choice.text.strip():
        return EMPTY
    return "" if all(part.hypothesis.finished for part in choice.parts) else CUT


@dataclass(frozen=True)
class Sources:
    """Sources, with references if they come from a config."""

    origin: DataConfig | Path
    """Corpora of a config, or a text in the source language."""

    def choose_name(self, language: str) -> str:
        """Return the base name of output files."""
        return strip_suffixes(self.origin, language) if isinstance(self.origin, Path) else "train"

    def read_settings(self) -> dict[str, Any]:
        """Return the values that determine the sources; raise DataError if they are unreadable."""
        if isinstance(self.origin, Path):
            return {"input": scan(require_regular_file(self.origin)).sha256}
        corpora = _open_corpora(self.origin)
        sums = {corpus.key: asdict(corpus.source.checksums()) for corpus in corpora}
        return {"input": sums, "cleaning": corpora[0].cleaning.fingerprint}

    def read_pairs(self) -> Iterator[SentencePair]:
        """Stream the sources and references; a text has the reference ""."""
        if isinstance(self.origin, Path):
            return (SentencePair(line, "") for line in read_lines(self.origin))
        return read_cleaned_pairs(_open_corpora(self.origin))


def _open_corpora(data: DataConfig) -> list[OpenedCorpus]:
    """Return the training corpora with the languages of the config; raise UserError without any."""
    direction = data.source_language, data.target_language
    corpora = [corpus for corpus in open_training_corpora(data) if corpus.direction == direction]
    if not corpora:
        raise UserError(f"no training corpus of the config is {' to '.join(direction)}")
    return corpora


def build_sentence_bleu(language: str) -> BLEU:
    """Return a measure of the similarity of sentences in a language."""
    return BLEU(tokenize=choose_tokenizer(language), effective_order=True)


@dataclass(frozen=True)
class Distillation:
    """Translation of sources by a run."""

    teacher: Teacher
    sources: Sources
    n_best: int = 1
    """Translations of a source, of which the one most similar to the reference is taken."""
    noise: Noise | None = None

    def plan_job(self, folder: Path, shard: Shard) -> Job:
        """Return the job; raise UserError or DataError if the sources are unsuitable."""
        stored, origin = self.teacher.stored, self.sources.origin
        direction = languages = stored.config.direction
        if isinstance(origin, Path):
            if self.n_best > 1:
                raise UserError(f"{origin}: has no references; --n-best needs a CONFIG")
        else:
            languages = Direction(origin.source_language, origin.target_language)
            if [*map(base_language, languages)] != [*map(base_language, direction)]:
                raise UserError(
                    f"{stored.path}: translates from {direction.source} into {direction.target}, "
                    f"the config's corpora are from {languages.source} into {languages.target}"
                )
        name = self.sources.choose_name(languages[0])
        if languages[0] == languages[1]:
            raise UserError(
                f"{stored.path}: translates from {languages[0]} into the same language, so both "
                "files would have the same name"
            )
        if name.endswith(f".{languages[1]}"):
            raise UserError(
                f"{origin}: is in {languages[1]} by its name, but {stored.path} translates from "
                f"{languages[0]} into {languages[1]}; give a text in {languages[0]}"
            )
        settings = {"command": "distill", **self.sources.read_settings(), **stored.settings}
        settings |= {"source_language": direction.source, "target_language": direction.target}
        if self.n_best > 1:
            check_n_best(self.n_best, stored.config.decoding)
            settings["n_best"] = self.n_best
        if self.noise is not None:
            settings |= {f"noise.{key}": value for key, value in asdict(self.noise).items()}
        total = sum(1 for _ in self.sources.read_pairs())
        if not total:
            raise UserError(f"{name}: is empty")
        left, right, record = (folder / f"{name}.{ending}" for ending in (*languages, "json"))
        return Job((left, right, record), settings, total, self.teacher.window, shard)

    def make_windows(self, lines: range) -> Iterator[Window]:
        """Yield the texts of pairs, and the numbers of pairs and of lines left out."""
        results = self.translate(lines)
        while window := list(islice(results, self.teacher.window)):
            pairs = [result for result in window if isinstance(result, SentencePair)]
            texts = ((pair.source for pair in pairs), (pair.target for pair in pairs))
            left, right = ("".join(f"{text}\n" for text in side).encode() for side in texts)
            counts = Counter(result if isinstance(result, str) else WRITTEN for result in window)
            yield Window(len(window), (left, right), counts)

    def translate(self, lines: range) -> Iterator[SentencePair | str]:
        """Yield the pair, or the reason for leaving it out, of each of some sources."""
        pairs, ahead = tee(islice(self.sources.read_pairs(), lines.start, lines.stop))
        language = self.teacher.stored.config.direction.target
        metric = build_sentence_bleu(language) if self.n_best > 1 else None
        translations = self.teacher.translator.stream(
            (pair.source for pair in ahead), n_best=self.n_best, look_ahead=self.teacher.window
        )
        for line, translation, pair in zip(lines, translations, pairs, strict=False):
            choices = translation.alternatives
            faults = [find_pair_fault(pair.source, choice) for choice in choices or [None]]
            usable = [choice for choice, fault in zip(choices, faults, strict=False) if not fault]
            if not usable:
                yield faults[0]
                continue
            target = usable[0].text
            if metric is not None:
                scores = [
                    metric.sentence_score(choice.text, [pair.target]).score for choice in usable
                ]
                # Among equals `index` returns the first, which the teacher prefers.
                target = usable[scores.index(max(scores))].text
            if self.noise is not None:
                seed = self.teacher.stored.config.decoding.seed
                target = self.noise.on(target, language=language, seed=seed, line=line)
            yield SentencePair(pair.source, target)
