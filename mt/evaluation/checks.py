"""What makes a score mislead: refused, unless the user names it and so takes it on himself."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mt.data.language_id import can_be_judged, in_other_language
from mt.data.lines import LineReader, existing_file
from mt.data.pair_checks import in_wrong_script
from mt.errors import DataError, UserError, did_you_mean, listed
from mt.evaluation.scores import TOKENIZER_BY_LANGUAGE, Evaluation, Form, choose_tokenizer, form_of
from mt.languages import base_language, script_share, scripts_of, written_without_spaces

REASONS = ("line-counts", "tokens", "tokenized", "lowercased", "13a", "references", "swapped")
"""What may be let pass by name."""

FORMS = ("tokens", "tokenized", "lowercased")
"""Those of them that the poor translations of a bad model may show by chance."""

_SAMPLE = 200
"""Lines whose language is looked at."""
_MOST = 0.5
_HARDLY = 0.2

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Text:
    """One side: its lines, and the name that a message gives it."""

    name: str
    lines: Sequence[str]

    @classmethod
    def of_file(cls, path: Path) -> "Text":
        """Read a file, whose path is the name; DataError where it is not there."""
        return cls(str(path), list(LineReader(existing_file(path))))


class Guard:
    """Refuses what makes a score mislead, and remembers what it was told to let pass."""

    def __init__(self, allow: Sequence[str] = ()) -> None:
        """Take the reasons of `REASONS` to let pass; UserError for any other word."""
        for reason in allow:
            if reason not in REASONS:
                near = did_you_mean(reason, REASONS) or f"; known: {listed(REASONS)}"
                raise UserError(f"--allow {reason}: unknown{near}")
        self._allow = frozenset(allow)
        self._forced: list[str] = []

    @property
    def forced(self) -> str:
        """The reasons that a score was forced against, with commas between."""
        return ",".join(dict.fromkeys(self._forced))

    def mark(self, evaluation: Evaluation) -> Evaluation:
        """Return the scores, with what they were forced against in their signatures."""
        return evaluation.marked("forced", self.forced)

    def refuse(self, reason: str, message: str) -> None:
        """Raise DataError with `message`, or only tell it where `reason` is to pass."""
        if reason not in self._allow:
            raise DataError(f"{message}; `--allow {reason}` scores it all the same")
        self._forced.append(reason)
        _logger.warning("note: %s", message)

    def check_tokenizer(self, language: str, tokenizer: str) -> str:
        """Return BLEU's tokenizer as `choose_tokenizer` does, but refuse 13a where it is wrong.

        A language whose words it may not find is told.
        """
        tokenizer = choose_tokenizer(language, tokenizer)
        right = TOKENIZER_BY_LANGUAGE.get(base_language(language))
        if tokenizer != "13a":
            return tokenizer
        if right:
            self.refuse(
                "13a",
                f"BLEU tokenizer `13a` takes words at spaces and is not for `{language}`: such a "
                f"score compares with no other; the right one is `{right}`",
            )
        elif written_without_spaces(language):
            _logger.warning(
                "note: `%s` is written without spaces, and BLEU with 13a takes a whole sentence "
                "for a word; go by chrF, or take the BLEU tokenizer `char`",
                language,
            )
        elif not scripts_of(language):
            _logger.warning(
                "note: the language `%s` is not known; BLEU takes words at spaces (13a)", language
            )
        return tokenizer

    def check_texts(
        self, hypotheses: Text, references: Sequence[Text], sources: Text | None, *, language: str
    ) -> None:
        """Refuse texts that do not belong together, or are not in one form."""
        given = [sources] if sources else []
        self.check_lengths([hypotheses, *references, *given])
        self.check_no_copy(hypotheses, references, sources)
        self.check_tokens([hypotheses, *references, *given])
        self.check_forms(hypotheses, references, language=language)
        for each in given:
            self.check_direction(each, [hypotheses, *references], language=language)

    def check_made(self, hypotheses: Text, references: Sequence[Text], *, language: str) -> None:
        """Refuse translations of a run that are in tokens, or in another form than the references.

        They are written by then, so that nothing is lost.
        """
        self.check_tokens([hypotheses])
        self.check_forms(hypotheses, references, language=language)

    def check_lengths(self, texts: Sequence[Text]) -> None:
        """Refuse texts of different line counts; DataError where the first has no line."""
        first = texts[0]
        for text in texts:
            if len(text.lines) != len(first.lines):
                self.refuse(
                    "line-counts",
                    f"{first.name} has {len(first.lines)} lines, {text.name} has "
                    f"{len(text.lines)}: line N of one must answer line N of the other",
                )
        for text in texts:
            if not text.lines:
                raise DataError(f"{text.name}: is empty, there is nothing to score")

    def check_no_copy(
        self, hypotheses: Text, references: Sequence[Text], sources: Text | None
    ) -> None:
        """Refuse texts that are, line by line, the text of another side."""
        self._check_other("references", "hypotheses", hypotheses, references)
        if sources:
            self.check_no_source(sources, references)
        if sources and _same(hypotheses, sources):
            self.refuse(
                "swapped",
                f"{hypotheses.name}: the hypotheses are the same text as the sources "
                f"{sources.name}, nothing is translated",
            )

    def check_no_source(self, sources: Text, references: Sequence[Text]) -> None:
        """Refuse references that are, line by line, the sources."""
        self._check_other("swapped", "sources", sources, references)

    def _check_other(self, reason: str, side: str, text: Text, references: Sequence[Text]) -> None:
        for reference in references:
            if _same(text, reference):
                self.refuse(
                    reason,
                    f"{text.name}: the {side} are the same text as the references {reference.name}",
                )

    def check_tokens(self, texts: Sequence[Text]) -> None:
        """Refuse text that is cut into subwords."""
        for text in texts:
            form = form_of(text.lines, "")
            if form.in_tokens:
                self.refuse(
                    "tokens",
                    f"{text.name}: {form.tokens} of {form.lines} lines hold marks of subwords "
                    "(`▁`, `@@ `, ` ##`); scores are of text, so join the tokens first",
                )

    def check_forms(self, hypotheses: Text, references: Sequence[Text], *, language: str) -> None:
        """Refuse where one side is tokenised or lower-cased and the other is not."""
        made = form_of(hypotheses.lines, language)
        for reference in references:
            right = form_of(reference.lines, language)
            sides = (hypotheses.name, made), (reference.name, right)
            for (name, form), (other, beside) in (sides, sides[::-1]):
                self._check_alike(name, form, other=other, beside=beside)

    def _check_alike(self, name: str, form: Form, *, other: str, beside: Form) -> None:
        if form.is_tokenized and beside.is_untokenized:
            self.refuse(
                "tokenized",
                f"{name}: {form.tokenized} of {form.lines} lines look tokenised, {other} does "
                "not; the two must be in one form, best both plain text",
            )
        if form.is_lowercased_beside(beside):
            self.refuse(
                "lowercased",
                f"{name}: is lower-cased, {other} is not; the two must be in one form, best both "
                "with their capitals",
            )

    def check_direction(self, sources: Text, others: Sequence[Text], *, language: str) -> None:
        """Refuse where the sources are in the target language, and a side to compare is not."""
        elsewhere = _share_elsewhere(sources.lines, language)
        if elsewhere is None or elsewhere > _HARDLY:
            return
        for other in others:
            share = _share_elsewhere(other.lines, language)
            if share is not None and share > _MOST:
                self.refuse(
                    "swapped",
                    f"{sources.name} is in the target language `{language}`, {other.name} is not: "
                    "the sides are swapped",
                )


def check_named_once(references: Sequence[Path]) -> None:
    """Raise UserError where a file of references is named twice, as if it were two sets."""
    places = [path.resolve() for path in references]
    for number, path in enumerate(references):
        if places[number] in places[:number]:
            raise UserError(f"--references {path}: is named twice; each file is one set")


def cut_alike(texts: Sequence[Text]) -> list[Sequence[str]]:
    """Return the lines of each text, as many as the shortest has."""
    shortest = min(len(text.lines) for text in texts)
    return [text.lines[:shortest] for text in texts]


def _same(one: Text, other: Text) -> bool:
    return one.lines == other.lines


def _share_elsewhere(lines: Sequence[str], language: str) -> float | None:
    """Return the share of some lines that are not in a language, None where none can be judged."""
    sample = lines[:: max(1, len(lines) // _SAMPLE)]
    try:
        judged = [line for line in sample if can_be_judged(line, language)]
        found = [
            in_wrong_script(line, language) or in_other_language(line, language) for line in judged
        ]
    except DataError:  # without the extra `langid` the scripts alone are looked at
        found = []
    if not found:
        lettered = [line for line in sample if script_share(line, language) is not None]
        found = [in_wrong_script(line, language) for line in lettered]
    return sum(found) / len(found) if found else None
