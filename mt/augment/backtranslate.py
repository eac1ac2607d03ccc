"""Back-translation: a parallel corpus from monolingual target-language text.

Sennrich et al. 2016, "Improving Neural Machine Translation Models with Monolingual Data": a model
of the reverse direction writes the source side; the target side is human text.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from mt.augment.teacher import Made, Teacher, base_name, existing_text, why_left_out
from mt.data.augmentation import Noise
from mt.data.corpus_files import scan
from mt.data.pairs import SentencePair
from mt.decoding.files import read_lines
from mt.decoding.shards import Extent, Job, Shard
from mt.errors import UserError


@dataclass(frozen=True)
class BackTranslation:
    """Text in a teacher's source language, and the noise for its translations."""

    teacher: Teacher
    text: Path
    noise: Noise

    def job(self, folder: Path, shard: Shard) -> Job:
        """Return the job; raise UserError or DataError if the text is unsuitable.

        The corpus is in the teacher's reverse direction: its source side is the translation.
        """
        source, target = self.teacher.source_language, self.teacher.target_language
        text = existing_text(self.text)
        name = base_name(text, source)
        if name.endswith(f".{target}"):
            raise UserError(
                f"{text}: is in {target} by its name, but {self.teacher.run} translates from "
                f"{source} into {target}; give a text in {source}"
            )
        settings = {
            "command": "backtranslate",
            "input": scan(text).sha256,
            **{f"noise.{key}": value for key, value in asdict(self.noise).items()},
        }
        extent = Extent.of(read_lines(text), self.teacher.window)
        return self.teacher.job(folder / name, (target, source), settings, extent, shard)

    def make(self, lines: range) -> Iterator[Made]:
        """Yield the pair, or the reason for leaving it out, of each of some lines of the text."""
        texts = islice(read_lines(self.text), lines.start, lines.stop)
        translations = self.teacher.translator.stream(texts, look_ahead=self.teacher.window)
        for line, translation in zip(lines, translations, strict=False):
            if reason := why_left_out(translation.source, *translation.alternatives[:1]):
                yield reason
                continue
            noisy = self.noise.on(
                translation.text,
                language=self.teacher.target_language,
                seed=self.teacher.decoding.seed,
                line=line,
            )
            yield SentencePair(noisy, translation.source)
