"""The corpora that a config trains on: one, or those of a mixture."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mt.config.data import DataConfig
from mt.data.cleaning import Cleaning
from mt.data.pairs import Checksums, PairSource, SentencePair
from mt.data.sources import open_source


@dataclass(frozen=True)
class TrainingCorpus:
    """A corpus to train on, and what is done to it; of several each is cleaned by itself."""

    key: str
    """Where it stands below `data`: `train`, or `train.corpora.NAME`."""
    source: PairSource
    cleaning: Cleaning
    weight: float
    tag: str | None

    def cleaned(self) -> Iterator[SentencePair]:
        """Stream the pairs that its cleaning leaves."""
        return self.cleaning.clean(self.source.pairs())

    def pinned(self, sums: Checksums) -> "TrainingCorpus":
        """Return the same corpus, which must from now on be what it was at these checksums."""
        return replace(self, source=replace(self.source, expected=sums))


def open_training_corpora(data: DataConfig) -> tuple[TrainingCorpus, ...]:
    """Find the files of all corpora to train on, as `open_source` does; none is read yet."""
    return tuple(
        TrainingCorpus(
            key,
            open_source(source, data),
            Cleaning(data.of(source)),
            weight=source.weight,
            tag=source.tag,
        )
        for key, source in data.train_corpora().items()
    )


def cleaned_pairs(corpora: Iterable[TrainingCorpus]) -> Iterator[SentencePair]:
    """Stream the pairs that the cleaning leaves of all corpora, each pair once."""
    return (pair for corpus in corpora for pair in corpus.cleaned())
