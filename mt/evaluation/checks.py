"""Checks that reject texts with misleading scores, unless the user allows them by name."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mt.data.corpus_files import LineReader
from mt.data.filters import (
    can_be_judged,
    has_identical_sides,
    holds_tokens,
    in_other_language,
    in_wrong_script,
    is_blank,
)
from mt.errors import DataError, UserError, did_you_mean, listed
from mt.evaluation.forms import Sides, find_differences
from mt.evaluation.scores import (
    TOKENIZER_BY_LANGUAGE,
    choose_tokenizer,
    evaluate,
    why_unable_to_rank,
)
from mt.files import require_file, resolved
from mt.languages import base_language, script_share, scripts_of

FORMS = ("tokens", "tokenized", "lowercased")
"""Reasons that the output of a poor model may trigger by chance."""
REASONS = (*FORMS, "line-counts", "13a", "references", "swapped", "shifted")
"""Names for `--allow`."""
_SAMPLE = 200
_MOST = 0.5
_HARDLY = 0.2
_TOKENS = 0.01
_RELATED = 1.05
"""Times the chrF with references of other lines that translations have with their own."""
_LEAST_COST = 0.1
"""BLEU that a difference in form costs before it is noted."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScoredText:
    """Lines of one side, with the name that messages give them."""

    name: str
    lines: Sequence[str]

    @classmethod
    def of_file(cls, path: Path) -> "ScoredText":
        """Read a file, named by its path; raise DataError if it is missing."""
        return cls(str(path), list(LineReader(require_file(path))))


class TextChecks:
    """Checks of texts before scoring; records the allowed reasons that applied."""

    def __init__(self, allow: Sequence[str] = ()) -> None:
        """Set the allowed reasons; raise UserError for a name that is not in `REASONS`."""
        for reason in allow:
            if reason not in REASONS:
                near = did_you_mean(reason, REASONS) or f"; known: {listed(REASONS)}"
                raise UserError(f"--allow {reason}: unknown{near}")
        self._allow = frozenset(allow)
        self._forced: dict[str, None] = {}
        self._tokenizer = "auto"

    @property
    def forced(self) -> str:
        """Comma-separated reasons that applied and were allowed."""
        return ",".join(self._forced)

    def refuse(self, reason: str, message: str) -> None:
        """Raise DataError with `message`; only log it if `reason` is allowed."""
        if reason not in self._allow:
            raise DataError(f"{message}; pass `--allow {reason}` to score anyway")
        self._forced[reason] = None
        _logger.warning("note: %s", message)

    def check_tokenizer(self, language: str, tokenizer: str) -> str:
        """Return the result of `choose_tokenizer`; refuse 13a for zh, ja and ko.

        Log a warning if 13a may not find the words of an unknown language.
        """
        tokenizer = self._tokenizer = choose_tokenizer(language, tokenizer)
        right = TOKENIZER_BY_LANGUAGE.get(base_language(language))
        if tokenizer != "13a":
            return tokenizer
        if right and right != "flores200":  # its model may be missing
            message = f"BLEU tokenizer `13a` splits words at spaces and is not for `{language}`"
            self.refuse("13a", f"{message}; the right one is `{right}`")
        elif not scripts_of(language):
            _logger.warning(
                "note: the language `%s` is not known; BLEU splits words at spaces (13a)", language
            )
        return tokenizer

    def check_texts(
        self,
        hypotheses: ScoredText,
        references: Sequence[ScoredText],
        sources: ScoredText | None,
        *,
        language: str,
    ) -> None:
        """Refuse texts that do not belong together or differ in form."""
        texts = [hypotheses, *references, *([sources] if sources else [])]
        try:
            require_same_lengths(hypotheses, texts[1:])
        except DataError as error:
            self.refuse("line-counts", str(error))
        for text in texts:
            if not text.lines:
                raise DataError(f"{text.name}: is empty, there is nothing to score")
        self._check_differs("references", hypotheses, "hypotheses", references, "references")
        if sources:
            self.check_sources(sources, references, language=language)
            self.check_direction(sources, [hypotheses], language=language)
            self._check_differs("swapped", hypotheses, "hypotheses", [sources], "sources")
        else:
            _note_lines(references, language)
            self.check_tokens(references)
        self.check_made(hypotheses, references, language=language)

    def check_sources(
        self, sources: ScoredText, references: Sequence[ScoredText], *, language: str
    ) -> None:
        """Refuse a split of subwords, with swapped sides, or with one side twice."""
        _note_lines(references, language, sources)
        self._check_differs("swapped", sources, "sources", references, "references")
        self.check_tokens([sources, *references])
        self.check_direction(sources, references, language=language)

    def check_made(
        self, hypotheses: ScoredText, references: Sequence[ScoredText], *, language: str
    ) -> None:
        """Refuse or note translations that are subwords or differ in form from the references.

        A difference comes with the BLEU that the same form on both sides has. One without a reason
        in `REASONS` is a note if it costs anything.
        """
        self.check_tokens([hypotheses])
        if reason := why_unable_to_rank(
            references[0].lines, target_language=language, tokenizer=self._tokenizer
        ):
            _logger.warning("note: BLEU hardly counts these texts: %s; use chrF", reason)
        texts = hypotheses, *references
        shortest = min(len(text.lines) for text in texts)
        sides: Sides = [text.lines[:shortest] for text in texts]
        differences = [
            difference
            for number in range(1, len(sides))
            for difference in find_differences(
                (hypotheses.name, texts[number].name), (sides[0], sides[number]), language
            )
        ]
        score = partial(evaluate, target_language=language, tokenizer=self._tokenizer)
        half = shortest // 2
        if half >= _SAMPLE // 4:
            moved = [[*lines[half:], *lines[:half]] for lines in sides[1:]]
            own, chance = (score(sides[0], lines).chrf.value for lines in (sides[1:], moved))
            if own < _RELATED * chance:
                message = "note: %s: chrF2 is %.1f, and %.1f with the references of other lines; "
                message += "are these the references of this text?"
                _logger.warning(message, references[0].name, own, chance)
        if not differences:
            return
        before = score(sides[0], sides[1:]).bleu.value
        for difference in {item.feature: item for item in differences}.values():
            sides = difference.equalize(sides)
        after = score(sides[0], sides[1:]).bleu.value if sides[0] else 0.0
        cost = f"BLEU is {before:.2f}, and {after:.2f} without the difference"
        for difference in differences:
            if difference.feature in REASONS:
                self.refuse(difference.feature, f"{difference.text}; {cost}")
            elif after - before >= _LEAST_COST:
                _logger.warning("note: %s; %s", difference.text, cost)

    def check_tokens(self, texts: Sequence[ScoredText]) -> None:
        """Refuse texts that are split into subwords."""
        for text in texts:
            lines = [line for line in dict.fromkeys(text.lines) if line.strip()]
            tokens = sum(map(holds_tokens, lines))
            if tokens > _TOKENS * len(lines):
                self.refuse(
                    "tokens",
                    f"{text.name}: {tokens} of {len(lines)} lines have subword marks "
                    "(`▁`, `@@ `, ` ##`); join the tokens before scoring",
                )

    def check_direction(
        self, sources: ScoredText, others: Sequence[ScoredText], *, language: str
    ) -> None:
        """Refuse sources in the target language next to another side that is not."""
        elsewhere = _share_elsewhere(sources.lines, language)
        if elsewhere is None or elsewhere > _HARDLY:
            return
        for other in others:
            if (_share_elsewhere(other.lines, language) or 0) > _MOST:
                self.refuse(
                    "swapped",
                    f"{sources.name} is in the target language `{language}`, {other.name} is not: "
                    "the sides are swapped",
                )

    def _check_differs(
        self, reason: str, text: ScoredText, side: str, others: Sequence[ScoredText], of: str
    ) -> None:
        for other in others:
            if text.lines == other.lines:
                message = f"{text.name}: the {side} are the same text as the {of} {other.name}"
                self.refuse(reason, message)


def _note_lines(
    references: Sequence[ScoredText], language: str, sources: ScoredText | None = None
) -> None:
    """Log the number of lines that are blank, not translated, or in another script."""
    for text in (*references, *([sources] if sources else [])):
        blank = [number for number, line in enumerate(text.lines, 1) if is_blank(line)]
        if blank:
            message = "note: %s: %d of %d lines are blank, the first is line %d; they are scored"
            _logger.warning(message, text.name, len(blank), len(text.lines), blank[0])
    for text in references:
        pairs = zip(sources.lines if sources else (), text.lines, strict=False)
        copies = sum(has_identical_sides(source, line) for source, line in pairs)
        if copies > _MOST * len(text.lines):
            message = "note: %s: %d of %d lines are the same as their source, not translated"
            _logger.warning(message, text.name, copies, len(text.lines))
        lettered = [line for line in text.lines if any(map(str.isalpha, line))]
        wrong = sum(in_wrong_script(line, language) for line in lettered)
        if wrong > _MOST * len(lettered):
            message = "note: %s: %d of %d lines are in another script than that of `%s`"
            _logger.warning(message, text.name, wrong, len(text.lines), language)


def check_named_once(references: Sequence[Path]) -> None:
    """Raise UserError if a file of references is named twice, as if it were two sets."""
    if len(set(map(resolved, references))) < len(references):
        raise UserError("--references: a file is named twice; each file is one set")


def require_same_lengths(text: ScoredText, others: Sequence[ScoredText]) -> None:
    """Raise DataError unless all texts have the same number of lines."""
    for other in others:
        if len(other.lines) != len(text.lines):
            raise DataError(
                f"{text.name} has {len(text.lines)} lines, {other.name} has {len(other.lines)}: "
                "line N of one must answer line N of the other"
            )


def _share_elsewhere(lines: Sequence[str], language: str) -> float | None:
    """Return the share of sampled lines in another language; None if none can be judged."""
    sample = lines[:: max(1, len(lines) // _SAMPLE)]
    try:
        verdicts = [
            in_wrong_script(line, language) or in_other_language(line, language)
            for line in sample
            if can_be_judged(line, language)
        ]
    except DataError:  # without the extra `langid`, only the script is checked
        verdicts = []
    if not verdicts:
        lettered = [line for line in sample if script_share(line, language) is not None]
        verdicts = [in_wrong_script(line, language) for line in lettered]
    return sum(verdicts) / len(verdicts) if verdicts else None
