"""Training and extension of tokenizers: the tokenizer of a new run, and SentencePiece models."""

import io
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import sentencepiece

from mt.config import TokenizerConfig
from mt.config.data import DataConfig, MixtureSource
from mt.data.filters import hash_pair
from mt.data.normalization import normalize_source, normalize_target
from mt.data.pairs import EvenSample, SentencePair, spread
from mt.data.sentencepiece_model import (
    CONTROL,
    NORMAL,
    append_tokens,
    encode_token,
    with_normal_form,
)
from mt.data.store import mix
from mt.data.tokenizer import (
    JOINT,
    SOURCE,
    SPACE_MARK,
    TARGET,
    Tokenizer,
    Vocabulary,
    escape,
    read_models,
    write_models,
)
from mt.errors import ConfigError, DataError
from mt.special_ids import BOS, EOS, PAD, UNK

_logger = logging.getLogger(__name__)
_THREADS = 4
"""Fixed, because the trained model depends on the number of threads."""
_LONGEST_LINE_BYTES = 1 << 30
"""Maximum of SentencePiece, which silently drops longer lines."""
_RESERVED = "\u2585"
"""SentencePiece silently drops lines with this character."""
_ERRORS_ONLY = 2
_LEAST_COVERAGE = 0.98
"""Least `character_coverage` that SentencePiece takes."""
_SAMPLE_PAIRS = 500_000
"""Largest sample of a corpus, from which a tokenizer is learnt."""
_CHARACTERS_A_TOKEN = 3000
"""Text from which a tokenizer is learnt, at most; SentencePiece needs 20 bytes a character."""


def provide_tokenizer(
    settings: TokenizerConfig,
    folder: Path,
    *,
    origin: tuple[str, Path] | None,
    text: "TokenizerText | None",
) -> Tokenizer:
    """Return the tokenizer in `folder`; create it as configured if it does not exist.

    It is trained on the sampled `text`, or copied from `origin`, the config key and the run or
    tokenizer folder that it names, and extended if the config adds tokens or tags. Raises
    ConfigError or DataError if it cannot be created, or is not of the configured layout.
    """
    if any(folder.glob("*.json")):
        tokenizer = Tokenizer.load(folder)
    else:
        if origin is None:
            assert text is not None, "a new tokenizer is trained on a sample"
            names = [JOINT] if settings.vocabulary == "joint" else [SOURCE, TARGET]
            most = _CHARACTERS_A_TOKEN * settings.vocabulary_size * len(names)
            models = {
                name: train_model(lines, settings, name) for name, lines in text.take(names, most)
            }
        else:
            models = read_models(origin[1])
            for name, lines in text.take(models) if text else [(name, []) for name in models]:
                models[name] = extend_model(models[name], lines, settings)
        tokenizer = write_models(folder, models)
    layout = "joint" if tokenizer.source is tokenizer.target else "separate"
    if layout != settings.vocabulary:
        assert origin is not None, "a trained tokenizer has the config's layout"
        raise ConfigError(
            f"`{origin[0]}` {origin[1]}: its vocabulary is {layout}, `tokenizer.vocabulary` says "
            f"{settings.vocabulary}"
        )
    return tokenizer


def train_tokenizer(
    pairs: Callable[[], Iterator[SentencePair]], folder: Path, *, config: TokenizerConfig
) -> Tokenizer:
    """Train the vocabularies on pairs, write them into `folder` and load them."""
    text = TokenizerText()
    text.add(list(pairs()), ("", ""))
    return provide_tokenizer(config, folder, origin=None, text=text)


class TokenizerText:
    """Pairs from whose lines a tokenizer is learnt, sampled while the corpora are read once.

    Those of a mixture whose corpora are drawn unequally are the pairs of an epoch: a corpus with
    two passes an epoch has each pair twice. For an extension, a side in another than the new
    languages becomes empty, because tokens learnt from it would change the segmentation of text
    that the old model translates. It stays if it has a character that its old vocabulary lacks.
    """

    def __init__(
        self,
        mixture: MixtureSource | None = None,
        old: Sequence[Vocabulary] = (),
        new_languages: Sequence[str] = (),
    ) -> None:
        """Sample all text, or text in `new_languages` that `old` vocabularies of both sides lack.

        The corpora of a `mixture` with weights or a temperature are sampled each for itself.
        """
        self._mixture, self._old, self._new_languages = mixture, old, new_languages
        self._known = [{SPACE_MARK, *vocabulary.texts().values()} for vocabulary in old]
        self._is_normal = all(vocabulary.is_normal for vocabulary in old)
        self._samples: dict[str, EvenSample[SentencePair]] = {}
        """By corpus; one for all corpora without weights."""

    @classmethod
    def for_run(
        cls, settings: TokenizerConfig, data: DataConfig, *, origin: Path | None
    ) -> "TokenizerText | None":
        """Return the text to sample for a new run; None if its tokenizer learns no token.

        Raises RunError if the tokenizer of `origin` cannot be read.
        """
        mixture = data.train if isinstance(data.train, MixtureSource) else None
        if mixture is not None and mixture.temperature == 1:
            weights = {source.weight for source in mixture.corpora.values()}
            mixture = mixture if len(weights) > 1 else None
        if origin is None:
            return cls(mixture)
        if not settings.added_tokens:
            return None
        models = [Vocabulary.from_model(model) for model in read_models(origin).values()]
        old = models[0], models[-1]
        new, replayed = dict[str, None](), set[str]()
        for source in data.train_corpora().values():
            languages = data.direction_of(source)
            if {source.tag, source.target_tag} - {None, *old[0].tags, *old[1].tags}:
                new |= dict.fromkeys(languages)  # only corpora with a new tag may have them
            else:
                replayed.update(languages)
        added = [language for language in new if language not in replayed]
        if added:
            _logger.info("tokenizer: new tokens are learnt from text in %s", " and ".join(added))
        return cls(mixture, old, added)

    def add(
        self, pairs: Sequence[SentencePair], languages: tuple[str, str], *, corpus: str = ""
    ) -> None:
        """Add cleaned pairs of a corpus of a mixture in the given languages."""

        def change(pair: SentencePair) -> SentencePair:
            if not self._is_normal:
                return pair
            return SentencePair(normalize_source(pair.source), normalize_target(pair.target))

        if self._new_languages:
            selected = (self._select(change(pair), languages) for pair in pairs)
            pairs = [pair for pair in selected if pair.source or pair.target]
        key = corpus if self._mixture else ""
        # Only the sample is changed, because that of all pairs is slow.
        self._samples.setdefault(key, EvenSample(_SAMPLE_PAIRS)).add(pairs, change)

    def _select(self, pair: SentencePair, languages: tuple[str, str]) -> SentencePair:
        texts = [pair.source, pair.target]
        for side, (language, old) in enumerate(zip(languages, self._old, strict=True)):
            is_known = self._known[side].issuperset(old.processor.normalize(texts[side]))
            if language not in self._new_languages and is_known:
                texts[side] = ""
        return SentencePair(*texts)

    def leave_out(self, texts: set[int]) -> None:
        """Drop the pairs of which a normalized text has one of these hashes."""
        for sample in self._samples.values():
            sample.items = [pair for pair in sample.items if texts.isdisjoint(hash_pair(pair))]

    def take(
        self, names: Iterable[str], most_characters: float = math.inf
    ) -> Iterator[tuple[str, list[str]]]:
        """Yield the lines for each of these model files, and free their memory at the end.

        Of pairs with more characters, an even sample is taken.
        """
        samples = {corpus: sample for corpus, sample in self._samples.items() if sample.seen}
        pairs = [pair for sample in samples.values() for pair in sample.items]
        if self._mixture is not None:
            sizes = [sample.seen for sample in samples.values()]
            weights = [self._mixture.corpora[key.rpartition(".")[2]].weight for key in samples]
            passes = mix(sizes, weights, temperature=self._mixture.temperature).weights
            counts = [size * count for size, count in zip(sizes, passes, strict=True)]
            # No more than a sample has; at least one whole corpus.
            scale = 1 / min(1.0, max(passes, default=1.0))
            scale = min(scale, _SAMPLE_PAIRS / max(sum(counts), 1.0))
            pairs = []
            for sample, count in zip(samples.values(), counts, strict=True):
                times, rest = divmod(round(scale * count), max(len(sample.items), 1))
                pairs += [*sample.items * times, *spread(sample.items, rest)]
        self._samples = {}
        characters = sum(len(pair.source) + len(pair.target) for pair in pairs)
        share = min(1.0, most_characters / max(characters, 1))
        pairs = [*spread(pairs, round(share * len(pairs)))]
        for name in names:
            lines: list[str] = []
            for pair in pairs:
                if name != TARGET:
                    lines.append(pair.source)
                if name != SOURCE:
                    lines.append(pair.target)
            yield name, list(filter(None, lines))


def copied_layout(source: Path) -> Literal["joint", "separate"]:
    """Return the layout of the vocabularies of a run folder or tokenizer folder."""
    return "joint" if len(read_models(source)) == 1 else "separate"


def train_model(lines: Iterable[str], config: TokenizerConfig, name: str = JOINT) -> bytes:
    """Return a serialized SentencePiece model trained on `lines`, which all are read.

    BPE: Sennrich et al. 2016; unigram: Kudo 2018. Unseen characters are spelled in bytes. If the
    text has too few tokens, the vocabulary becomes smaller, which is logged. Raises
    `DataError` if all lines are blank, `ConfigError` if the vocabulary is too small for the
    characters.
    """
    began = time.monotonic()
    sample = prepare_lines(lines)
    vocabulary = Vocabulary.from_model(with_normal_form(learn(sample, config)))
    tokens = len(vocabulary)
    _logger.info(
        "%s tokenizer: %s tokens learnt from %s lines in %.1f s",
        name.removesuffix(".model"),
        *(f"{tokens:,}", f"{len(sample):,}", time.monotonic() - began),
    )
    if tokens < config.vocabulary_size:
        _logger.warning(
            "tokenizer: the text has only %s tokens, `tokenizer.vocabulary_size` asks for %s; "
            "going on with %s",
            *(f"{tokens:,}", f"{config.vocabulary_size:,}", f"{tokens:,}"),
        )
    model: bytes = vocabulary.processor.serialized_model_proto()
    return model


def prepare_lines(lines: Iterable[str]) -> list[str]:
    """Return lines as SentencePiece reads them; raise `DataError` if all are blank."""
    prepared = [escape(line).replace(_RESERVED, " ") for line in lines]
    if not any(line.strip() for line in prepared):
        raise DataError("the training corpus has no text to learn a tokenizer from")
    return prepared


def learn(sample: list[str], config: TokenizerConfig) -> bytes:
    """Return a serialized SentencePiece model of prepared lines; errors as of `train_model`."""
    model, coverage = io.BytesIO(), config.character_coverage
    if coverage < _LEAST_COVERAGE:  # a space takes the place of the rare characters
        counts = Counter(chain.from_iterable(sample))
        covered, rare = coverage * counts.total(), {}
        for character, count in counts.most_common():
            if covered <= 0:
                rare[ord(character)] = " "
            covered -= count
        sample, coverage = [line.translate(rare) for line in sample], 1.0
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type=config.algorithm,
            vocab_size=config.vocabulary_size,
            hard_vocab_limit=False,
            character_coverage=coverage,
            byte_fallback=True,
            control_symbols=list(dict.fromkeys(config.tags)),
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            shuffle_input_sentence=False,
            max_sentence_length=_LONGEST_LINE_BYTES,
            num_threads=_THREADS,
            minloglevel=_ERRORS_ONLY,
        )
    except RuntimeError as error:
        if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            raise ConfigError(
                f"`tokenizer.vocabulary_size` {config.vocabulary_size} is too small: the "
                f"characters of the corpus take {needed[1]} tokens; raise it, or lower "
                "`tokenizer.character_coverage`"
            ) from error
        raise
    return model.getvalue()


_EXAMPLES = 5


def extend_model(model: bytes, lines: Sequence[str], config: TokenizerConfig) -> bytes:
    """Return a SentencePiece model with `tags` and up to `added_tokens` learnt from `lines`.

    New tokens are those of a vocabulary trained on the lines that the old one lacks: characters
    first, then longer tokens, by frequency. Old tokens keep ids and scores. Text without a new
    token keeps its segmentation: BPE merges new tokens after all old ones, and a unigram model
    gets them as further choices. Without a line, only tags are added.
    """
    old = Vocabulary.from_model(model)
    tags = [tag for tag in dict.fromkeys(config.tags) if tag not in old.tags]
    if tags:
        model = append_tokens(model, len(old), [encode_token(tag, CONTROL) for tag in tags])
        old = Vocabulary.from_model(model)
    most = config.added_tokens
    if not most or not lines:
        return model
    sample = prepare_lines(lines)
    settings = config.changed(
        algorithm=old.algorithm,
        tags=tuple(old.tags),
        vocabulary_size=len(old) + most + len(set().union(*sample)),
        subword_dropout=(0.0, 0.0),
    )
    trained = Vocabulary.from_model(learn(sample, settings))
    scores = {text: trained.processor.get_score(token) for token, text in trained.texts().items()}
    ids = old.processor.piece_to_id(list(scores))
    lacking = [text for text, token in zip(scores, ids, strict=True) if token == UNK]
    lacking.sort(key=lambda text: len(text) > 1)
    # BPE never produces a token whose own text is segmented otherwise, because of earlier merges
    # across its parts, and neither algorithm one that the normalization changes.
    while True:
        tokens = {token: scores[token] for token in lacking[:most]}
        extended = Vocabulary.from_model(_add_tokens(old, tokens)).inside
        unused = {token for token in tokens if extended.encode(token) != [extended[token]]}
        if not unused:
            break
        lacking = [token for token in lacking if token not in unused]
    if tokens:
        _logger.info(
            "tokenizer: %s new tokens after the %s old ones, such as %s",
            *(f"{len(tokens):,}", f"{len(old):,}", list_tokens(tokens)),
        )
    if len(tokens) < most:
        _logger.warning(
            "tokenizer: the text has only %s tokens to add to the old tokenizer, "
            "`tokenizer.added_tokens` allows %s",
            *(f"{len(tokens):,}", f"{most:,}"),
        )
    return _add_tokens(old, tokens)


@dataclass(frozen=True, slots=True)
class FormerRow:
    """Ids in an older vocabulary for a token: the same token, or the parts of a new one."""

    token: str
    ids: tuple[int, ...]
    is_new: bool


def find_former_rows(new: Vocabulary, old: Vocabulary) -> list[FormerRow]:
    """Return the ids in `old` for each token of `new`.

    A token that `old` lacks is segmented by `old` like text; an unknown byte is UNK.
    """
    tokens: list[str] = new.processor.id_to_piece(list(range(len(new))))
    same = old.processor.piece_to_id(tokens)
    cut = old.inside.encode
    rows = []
    for index, (token, known) in enumerate(zip(tokens, same, strict=True)):
        is_new = known == UNK and index != UNK
        ids = cut(token) if is_new and not new.processor.is_byte(index) else [known]
        rows.append(FormerRow(token, tuple(ids), is_new))
    return rows


def list_tokens(tokens: Iterable[str]) -> str:
    """Return the first few tokens for a message, with U+2581 for spaces."""
    return ", ".join(f"`{token}`" for token in list(tokens)[:_EXAMPLES])


def _add_tokens(old: Vocabulary, scores: dict[str, float]) -> bytes:
    """Return the model of `old` with new tokens.

    Scores of BPE are ranks after all old ones. Scores of a unigram model are at least the lowest
    old score, on which the score of unknown characters depends.
    """
    old_scores: list[float] = old.processor.get_score(list(old.texts()))
    tokens = []
    for rank, (token, score) in enumerate(scores.items(), start=len(old_scores)):
        new_score = -rank if old.algorithm == "bpe" else max(score, min(old_scores))
        tokens.append(encode_token(token, NORMAL, new_score))
    return append_tokens(old.processor.serialized_model_proto(), len(old), tokens)
