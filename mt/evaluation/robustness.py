"""How much a model loses on sources unlike those it has learnt from.

The same test split in several forms (`mt.evaluation.robustness`), each translated and scored, as in
Belinkov and Bisk 2018, "Synthetic and Natural Noise Both Break Neural Machine Translation".
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from mt.data.noise import in_capitals, with_typos, without_punctuation
from mt.decoding.translator import Translator
from mt.evaluation.checks import Text
from mt.evaluation.evaluate import PLAIN_JOB, EvaluationJob, OpenedSplit, made_with, open_run
from mt.evaluation.passport import Input, file_input, model_inputs, write_passport
from mt.evaluation.run_info import ROBUSTNESS_SUFFIX
from mt.evaluation.scores import Evaluation, Score, evaluate, form_of
from mt.files import write_text
from mt.languages import written_without_spaces
from mt.runs import EVALUATIONS_FOLDER
from mt.tables import aligned

SEED = 1
"""Together with the number of its line, decides the typos of a source."""
JOINED = 4
"""So many neighbouring lines make one long one."""
UNTOUCHED = "untouched"
LONG = "long input"


@dataclass(frozen=True, slots=True)
class Variant:
    """A test split in another form, line N of one side still the translation of line N."""

    name: str
    sources: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    """A tuple for each set."""
    changed: int
    """Lines that are not as they were."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A variant that would test nothing, and why."""

    name: str
    reason: str


def _in_small_letters(text: str, _random: Random) -> str:
    return text.lower()


_LINE_CHANGES: dict[str, Callable[[str, Random], str]] = {
    "upper case": in_capitals,
    "lower case": _in_small_letters,
    "no punctuation": without_punctuation,
    "typos": with_typos,
}
"""What is done to each source by itself; `mt.data.noise` does it in training."""
_CASES = frozenset({"upper case", "lower case"})


def variants(
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    source_language: str,
    target_language: str,
) -> tuple[tuple[Variant, ...], tuple[LeftOut, ...]]:
    """Return the split as it is, its variants, and those that would test nothing.

    `references` holds one list for each set. Sources alone are changed, but in `long input`, where
    the references of the lines that are joined are joined too.
    """
    right = tuple(map(tuple, references))
    made, left_out = [Variant(UNTOUCHED, tuple(sources), right, changed=0)], []
    for name, change in _LINE_CHANGES.items():
        if name in _CASES and not _has_case(sources):
            left_out.append(LeftOut(name, "the script of the sources has no capital letters"))
            continue
        noisy = tuple(change(text, Random(f"{SEED} {n}")) for n, text in enumerate(sources, 1))
        changed = sum(one != other for one, other in zip(sources, noisy, strict=True))
        if changed:
            made.append(Variant(name, noisy, right, changed))
        else:
            left_out.append(LeftOut(name, "it changes no line"))
    if len(sources) > 1:
        long = joined(sources, source_language)
        right = tuple(joined(lines, target_language) for lines in references)
        made.append(Variant(LONG, long, right, changed=len(long)))
    else:
        left_out.append(LeftOut(LONG, "there is one line alone"))
    return tuple(made), tuple(left_out)


def joined(lines: Sequence[str], language: str) -> tuple[str, ...]:
    """Return each `JOINED` neighbouring lines as one; the last one may be made of fewer.

    A space stands between them where the language, or a tokenised text, has spaces between words.
    """
    spaced = not written_without_spaces(language) or form_of(lines, language).is_tokenized
    starts = range(0, len(lines), JOINED)
    return tuple((" " if spaced else "").join(lines[at : at + JOINED]) for at in starts)


def _has_case(texts: Sequence[str]) -> bool:
    """Say whether at least half of the letters can be capital or small."""
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    return 2 * sum(letter.upper() != letter.lower() for letter in letters) >= max(len(letters), 1)


@dataclass(frozen=True, slots=True)
class ScoredVariant:
    """What a model makes of a variant, and what it makes of the text as it is."""

    variant: Variant
    scores: Evaluation
    untouched: Evaluation
    """Against the same references: of `long input` the single lines' translations, joined."""

    def drops(self) -> tuple[float, float]:
        """Return by how much BLEU and chrF are lower than for the untouched text."""
        return (
            self.untouched.bleu.value - self.scores.bleu.value,
            self.untouched.chrf.value - self.scores.chrf.value,
        )

    def as_record(self) -> dict[str, Any]:
        """Return scores, drops and how many lines they are of."""
        bleu, chrf = self.drops()
        return {
            "name": self.variant.name,
            "lines": len(self.variant.sources),
            "changed": self.variant.changed,
            "bleu": {**_record(self.scores.bleu), "drop": bleu},
            "chrf": {**_record(self.scores.chrf), "drop": chrf},
            "untouched_bleu": _record(self.untouched.bleu),
            "untouched_chrf": _record(self.untouched.chrf),
        }


@dataclass(frozen=True, slots=True)
class RobustnessCard:
    """The scores of a split as it is, and of its variants."""

    split: str
    scored: tuple[ScoredVariant, ...]
    """The untouched text first."""
    left_out: tuple[LeftOut, ...]

    def as_text(self) -> str:
        """Return a table, the signatures, what was left out, and what `long input` is."""
        head = ("source", "lines", "changed", "BLEU", "drop", "chrF2", "drop")
        table = aligned([head, *map(_cells, self.scored)], right=range(1, 7))
        first = self.scored[0].scores
        signatures = aligned([(each.name, each.signature) for each in (first.bleu, first.chrf)])
        return "\n\n".join([table, signatures, "\n".join(self._remarks())])

    def as_json(self) -> str:
        """Return everything, the scores in full precision, as indented JSON."""
        return json.dumps(self.as_record(), indent=2, ensure_ascii=False)

    def as_record(self) -> dict[str, Any]:
        """Return what `as_json` writes, before it is text."""
        return {
            "split": self.split,
            "seed": SEED,
            "joined": JOINED,
            "variants": [each.as_record() for each in self.scored],
            "left_out": [asdict(each) for each in self.left_out],
        }

    def _remarks(self) -> Iterator[str]:
        yield "drop: how much lower than for the untouched text; the references are the same."
        for each in self.scored:
            if each.variant.name == LONG:
                bleu, chrf = each.untouched.bleu.value, each.untouched.chrf.value
                yield (
                    f"{LONG}: each {JOINED} neighbouring lines as one, references too; the same "
                    f"lines one by one,\ntheir translations joined: BLEU {bleu:.2f}, "
                    f"chrF2 {chrf:.2f}."
                )
        for left_out in self.left_out:
            yield f"{left_out.name}: left out, {left_out.reason}."


@dataclass(frozen=True, slots=True)
class VariantTexts:
    """A test set in all its forms, and what scoring translations of them needs to know."""

    split: str
    forms: tuple[Variant, ...]
    """The untouched text first."""
    left_out: tuple[LeftOut, ...]
    target_language: str
    tokenizer: str
    """That of BLEU."""
    forced: str
    """The reasons of the guard that the scores are forced against."""

    def card(self, translations: Sequence[Sequence[str]]) -> RobustnessCard:
        """Score the translations of each form."""
        untouched = self._score(translations[0], self.forms[0])
        scored = []
        for form, made in zip(self.forms, translations, strict=True):
            beside = untouched
            if form.name == LONG:
                beside = self._score(joined(translations[0], self.target_language), form)
            scored.append(ScoredVariant(form, self._score(made, form), beside))
        return RobustnessCard(self.split, tuple(scored), self.left_out)

    def _score(self, made: Sequence[str], form: Variant) -> Evaluation:
        scores = evaluate(
            made,
            form.references,
            target_language=self.target_language,
            tokenizer=self.tokenizer,
        )
        return scores.marked("forced", self.forced)


def evaluate_robustness(
    run: Path,
    *,
    split: str | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    job: EvaluationJob = PLAIN_JOB,
) -> RobustnessCard:
    """Translate a split of a run, and variants of it, with the final model; score them all.

    Writes RUN/evaluations/SPLIT.robustness.json, the passport of the scores, and beside it a folder
    with the sources and the translations of each variant. Raises as `evaluate_run` does.
    """
    opened = open_run(run, split=split, overrides=overrides, device=device, job=job)
    language = opened.data.target_language
    forms, left_out = variants(
        [pair.source for pair in opened.pairs],
        [text.lines for text in opened.references],
        source_language=opened.data.source_language,
        target_language=language,
    )
    place = run / EVALUATIONS_FOLDER / f"{opened.name}{ROBUSTNESS_SUFFIX}"
    folder = place.with_suffix("")
    folder.mkdir(exist_ok=True)
    translations = list(_translations(opened, forms, folder))
    texts = VariantTexts(
        opened.name, forms, left_out, language, opened.tokenizer, opened.guard.forced
    )
    card = texts.card(translations)
    inputs = [
        *_described(folder, forms, left_out),
        *opened.inputs,
        *model_inputs(run, opened.translator.decoding.ensemble, beside=place.parent),
    ]
    record = {"given_texts": job.texts is not None, **card.as_record(), **_told(opened, job)}
    write_passport(place, {**record, **made_with(opened.translator, run)}, inputs)
    return card


def _translations(
    opened: OpenedSplit, forms: Sequence[Variant], folder: Path
) -> Iterator[list[str]]:
    """Yield the translations of each form, once they are written; the first are guarded."""
    for form, made in zip(forms, translate_variants(opened.translator, forms), strict=True):
        written = _write(folder, form, made)
        if form is forms[0]:
            language = opened.data.target_language
            opened.guard.check_made(written, opened.references, language=language)
        yield made


def _told(opened: OpenedSplit, job: EvaluationJob) -> dict[str, Any]:
    """Return what `mt evaluate --check` needs besides, to make the variants and score them."""
    return {
        "sentences": len(opened.pairs),
        "source_language": opened.data.source_language,
        "target_language": opened.data.target_language,
        "settings": job.settings(opened.tokenizer, opened.guard.forced),
    }


def translate_variants(translator: Translator, forms: Sequence[Variant]) -> Iterator[list[str]]:
    """Yield the translations of each variant, all made in one go with one progress bar."""
    total = sum(len(form.sources) for form in forms)
    stream = translator.stream(source for form in forms for source in form.sources)
    made = iter(tqdm(stream, "translating", total, unit="line", leave=False, disable=None))
    return ([each.text for each in islice(made, len(form.sources))] for form in forms)


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    """Return where the sources of a variant and their translations lie."""
    stem = name.replace(" ", "-")
    return folder / f"{stem}.sources.txt", folder / f"{stem}.hypotheses.txt"


def _write(folder: Path, form: Variant, made: Sequence[str]) -> Text:
    """Write the sources of a form and their translations; return these."""
    sources, hypotheses = _files(folder, form.name)
    for path, lines in ((sources, form.sources), (hypotheses, made)):
        write_text(path, "".join(f"{line}\n" for line in lines))
    return Text(str(hypotheses), made)


def _described(
    folder: Path, forms: Sequence[Variant], left_out: Sequence[LeftOut]
) -> Iterator[Input]:
    """Describe all files for the passport, once those of an earlier card are gone."""
    for gone in left_out:
        for path in _files(folder, gone.name):
            path.unlink(missing_ok=True)
    for form in forms:
        paths = zip(("variant", "hypotheses"), _files(folder, form.name), strict=True)
        for role, path in paths:
            yield file_input(role, path, lines=len(form.sources), beside=folder.parent)


def _cells(each: ScoredVariant) -> tuple[str, ...]:
    bleu, chrf = each.drops() if each.variant.changed else ("-", "-")
    return (
        each.variant.name,
        f"{len(each.variant.sources):,}",
        f"{each.variant.changed:,}" if each.variant.changed else "-",
        f"{each.scores.bleu.value:.2f}",
        bleu if isinstance(bleu, str) else f"{bleu:.2f}",
        f"{each.scores.chrf.value:.2f}",
        chrf if isinstance(chrf, str) else f"{chrf:.2f}",
    )


def _record(score: Score) -> dict[str, Any]:
    return {"score": score.value, "signature": score.signature}
