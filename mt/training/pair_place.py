"""Where a pair that is trained on stands in its corpus."""

from mt.config import Config
from mt.data.sources import PairSource, SentencePair, TextPairs, TsvPairs, open_source
from mt.training.corpus import Corpus


def pair_place(config: Config, corpus: Corpus, index: int) -> str:
    """Return "line N of ..." for a pair of the store; the corpus is read again where it has to be.

    Of pairs that are the same, the first that it can be.
    """
    source = open_source(config.data.train, config.data)
    number = _number(source, corpus, index)
    if number is None:  # its text has characters that the tokenizer does not know
        return f"pair {index + 1:,} of those trained on, of {source.description}"
    word = "line" if isinstance(source, TextPairs | TsvPairs) else "pair"
    return f"{word} {number:,} of {source.description}"


def _number(source: PairSource, corpus: Corpus, index: int) -> int | None:
    """Return the place of a pair among all pairs of the corpus, from 1."""
    store, tokenizer = corpus.store, corpus.tokenizer
    if store.left_out.too_long + store.left_out.empty == 0:
        return index + 1
    (example,) = store.examples([index])
    wanted = SentencePair(
        tokenizer.decode_source(example.source.tolist()),
        tokenizer.decode_target(example.target.tolist()),
    )
    pairs = enumerate(source.pairs(), 1)
    return next((number for number, pair in pairs if number > index and pair == wanted), None)
