"""Vocabulary map of CTranslate2: the target tokens that each source token allows.

A program that translates with `use_vmap=True` computes the output layer for these tokens alone
(L'Hostis et al. 2016, "Vocabulary Selection Strategies for Neural Machine Translation"). They are
those of a whole batch, so that a translation depends on its neighbours: `mt` has no use for them.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mt.data.store import Example, PairStore
from mt.data.tokenizer import Tokenizer
from mt.files import replace_file
from mt.training.objectives import count_tables, learn_table

MIN_VOCABULARY = 12_000
"""Target tokens from which a map is worth its cost."""
MIN_COVERAGE = 0.995
SIZES = ((500, 100), (1000, 100), (2000, 200), (3000, 200), (4000, 200), (6000, 400))
"""Frequent tokens, which all sources allow, and translations of a source token; the first fits."""
_MOST_TABLES, _COUNTED_PAIRS = 16, 200_000


def write_vocabulary_map(
    path: Path, store: PairStore, tokenizer: Tokenizer, references: Sequence[Example]
) -> tuple[float, float]:
    """Write the first map of `SIZES` with `MIN_COVERAGE`, if there is one.

    The translations of a token are those of IBM Model 1, and the same token. Returns the share of
    the reference tokens that their sources allow, and the mean number of tokens that they allow.
    """
    sides = (tokenizer.source, tokenizer.target)
    keys, pieces = ([*map(side.processor.id_to_piece, range(len(side)))] for side in sides)
    targets = store.examples(range(0, len(store), -(-len(store) // _COUNTED_PAIRS)))
    counts = np.bincount(np.concatenate([example.target for example in targets]))
    frequent, translations = counts.argsort()[::-1].tolist(), _rank_translations(store, len(keys))
    shared = [*map(tokenizer.target.processor.piece_to_id, keys)]
    always = {*tokenizer.target.tags.values()}
    always.update(filter(tokenizer.target.processor.is_byte, range(len(pieces))))
    # The format cannot hold white space.
    unwritable = {token for token, piece in enumerate(pieces) if {*piece} & {*" \t\n"}}
    share = size = 0.0
    for common, most in SIZES:
        fixed = (always | {*frequent[:common]}) - unwritable
        allowed = [
            {same, *ids[:most].tolist()} - fixed - unwritable
            for same, ids in zip(shared, translations, strict=True)
        ]
        inside, sizes = list[bool](), list[int]()
        for pair in references:
            tokens = fixed.union(*(allowed[token] for token in pair.source))
            inside += [token in tokens for token in pair.target[:-1].tolist()]
            sizes.append(len(tokens))
        share, size = float(np.mean(inside)), float(np.mean(sizes))
        if share >= MIN_COVERAGE:
            with replace_file(path) as temporary, temporary.open("wb") as file:
                for key, tokens in zip(["", *keys], [fixed, *allowed], strict=True):
                    texts = " ".join(pieces[token] for token in sorted(tokens))
                    file.write(f"{key}\t{texts}\n".encode())
            break
    return share, size


def _rank_translations(store: PairStore, size: int) -> list[NDArray[np.int64]]:
    """Return the most probable translations of each of `size` source tokens, best first."""
    keys, scores = np.empty(0, np.int64), np.empty(0, np.float32)
    for part in range(min(count_tables(store), _MOST_TABLES)):
        table = learn_table(store, part)
        keys = np.concatenate((keys, table.keys.numpy()))
        scores = np.concatenate((scores, table.probabilities.numpy()))
        order = np.lexsort((-scores, keys))
        keys, first = np.unique(keys[order], return_index=True)  # the best score of each
        scores = scores[order][first]
        order = np.lexsort((-scores, keys >> 32))
        sources = keys[order] >> 32
        order = order[np.arange(len(order)) - np.searchsorted(sources, sources) < SIZES[-1][1]]
        keys, scores = keys[order], scores[order]
    return np.split(keys & (2**32 - 1), np.searchsorted(keys >> 32, np.arange(1, size)))
