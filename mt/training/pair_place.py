"""Where a pair that is trained on stands in its corpus."""

from mt.config import Config
from mt.data.sources import SentencePair, TextPairs, TsvPairs
from mt.data.store import PairStore
from mt.data.tokenizer import Tokenizer
from mt.data.training_corpora import TrainingCorpus, open_training_corpora
from mt.training.corpus import Corpus


def pair_place(config: Config, corpus: Corpus, index: int) -> str:
    """Return "line N of ..." for a pair of the store; the corpus is read again where it has to be.

    Of pairs that are the same, the first that it can be.
    """
    within = index
    for origin in open_training_corpora(config.data):
        store = corpus.parts[origin.key]
        if within < len(store):
            break
        within -= len(store)
    source = origin.source
    number = _number(origin, store, within, tokenizer=corpus.tokenizer)
    if number is None:  # its text has characters that the tokenizer does not know
        return f"pair {within + 1:,} of those trained on, of {source.description}"
    word = "line" if isinstance(source, TextPairs | TsvPairs) else "pair"
    return f"{word} {number:,} of {source.description}"


def _number(
    origin: TrainingCorpus, store: PairStore, index: int, *, tokenizer: Tokenizer
) -> int | None:
    """Return the place of a pair among all pairs of its corpus, from 1."""
    if len(store) == store.left_out.total:
        return index + 1
    (example,) = store.examples([index])
    wanted = SentencePair(
        tokenizer.decode_source(example.source.tolist()),
        tokenizer.decode_target(example.target.tolist()),
    )
    # What the cleaning takes out cannot be meant: of the same pairs, it leaves the first.
    judged = enumerate(origin.cleaning.judge(origin.source.pairs()), 1)
    return next((number for number, each in judged if number > index and each.pair == wanted), None)
