"""Back-translation: a corpus out of text in the target language alone.

Sennrich et al. 2016, "Improving Neural Machine Translation Models with Monolingual Data": a model
of the other direction makes the source side, and the target side is what people wrote.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from mt.augment.resumable import Job, Made, Shard
from mt.augment.teacher import Teacher, plain_name, read_twice, why_left_out
from mt.data.lines import existing_file, scan
from mt.data.noise import Noise
from mt.data.pairs import SentencePair
from mt.decoding.files import read_lines
from mt.errors import UserError


@dataclass(frozen=True)
class BackTranslation:
    """Text in the source language of a teacher, and what is done to its translations."""

    teacher: Teacher
    text: Path
    noise: Noise

    def job(self, folder: Path, shard: Shard) -> Job:
        """Return what is to be written; raise UserError or DataError for a text that will not do.

        The corpus is one of the other direction: its source is the translation.
        """
        source, target = self.teacher.source_language, self.teacher.target_language
        text = read_twice(existing_file(self.text))
        name = plain_name(text, source)
        if name.endswith(f".{target}"):
            raise UserError(
                f"{text}: is in {target} by its name, and {self.teacher.run} translates from "
                f"{source} into {target}; the text must be in {source}"
            )
        found = scan(text)
        if not found.lines:
            raise UserError(f"{text}: is empty")
        noise = {f"noise.{key}": value for key, value in asdict(self.noise).items()}
        settings = {"command": "backtranslate", "input": found.sha256, "shards": shard.of}
        return Job(
            folder,
            name,
            (target, source),
            self.teacher.run,
            {**settings, **self.teacher.settings, **noise},
            found.lines,
            self.teacher.window,
            shard,
        )

    def make(self, lines: range) -> Iterator[Made]:
        """Yield what becomes of each of some lines of the text."""
        texts = islice(read_lines(self.text), lines.start, lines.stop)
        translations = self.teacher.translator.stream(texts, look_ahead=self.teacher.window)
        for line, translation in zip(lines, translations, strict=False):
            best = translation.alternatives[0] if translation.alternatives else None
            if reason := why_left_out(translation.source, best):
                yield reason
                continue
            noisy = self.noise.on(
                translation.text,
                language=self.teacher.target_language,
                seed=self.teacher.translator.decoding.seed,
                line=line,
            )
            yield SentencePair(noisy, translation.source)
