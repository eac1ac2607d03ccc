"""How a score stands to one that others have published, if the two can be compared at all."""

from collections.abc import Iterator

from mt.config.published import Protocol, Published
from mt.errors import listed
from mt.evaluation.scores import TOKENIZERS, Score

_SAME_BLEU = frozenset({"sacrebleu", "fairseq", "multi-bleu"})
"""Scorers that give the same number for the same words, but where no n-gram of a length is right.

Each is the BLEU of a corpus (Papineni et al. 2002) up to 4-grams; sacreBLEU alone smooths a 0.
"""
_CASES = {"mixed": "kept", "lc": "folded"}


def standing(published: Published, measured: Score, *, seed_band: float) -> str:
    """Return how a measured BLEU stands to a published one, or why nobody can say.

    `above`, `within` or `below` the seed band, both numbers taken to two decimals; or `not
    comparable`, with what the two protocols differ in or the source does not state.
    """
    reasons = list(_reasons(published.protocol, measured))
    if reasons:
        return f"not comparable: {'; '.join(reasons)}"
    ahead = round(measured.value - published.score, 2)
    word = "within" if abs(ahead) <= seed_band else "above" if ahead > 0 else "below"
    return f"{word} the seed band (± {seed_band:.2f})"


def measured_protocol(score: Score) -> Protocol:
    """Return how a score was computed, from its signature."""
    fields = _fields(score)
    tokenizer = next(name for name, theirs in TOKENIZERS.items() if _is(fields["tok"], theirs))
    return Protocol.model_validate(
        {
            "scorer": "sacrebleu",
            "tokenizer": tokenizer,
            "case": _CASES[fields["case"]],
            "text": fields.get("text", "plain"),
            "references": int(fields["nrefs"]),
        }
    )


def label_of(score: Score) -> str:
    """Return what a score has to be called, "" for one of plain text."""
    return _fields(score).get("text", "")


def _reasons(published: Protocol, measured: Score) -> Iterator[str]:
    theirs, ours = published.model_dump(), measured_protocol(measured).model_dump()
    if unknown := [name for name, value in theirs.items() if value == "unknown"]:
        yield f"its source does not state {listed(unknown)}"
    for name, value in theirs.items():
        same = value == ours[name] or {value, ours[name]} <= _SAME_BLEU
        if not same and value != "unknown":
            yield f"`{name}` is `{value}` there and `{ours[name]}` here"
    if forced := _fields(measured).get("forced"):
        yield f"the score here is forced (`{forced}`)"


def _fields(score: Score) -> dict[str, str]:
    """Return the parts of a signature by their names."""
    return dict(part.split(":", 1) for part in score.signature.split("|"))


def _is(tokenizer: str, name: str) -> bool:
    """Say whether a signature's tokenizer is one of sacreBLEU's; MeCab's has its version behind."""
    return tokenizer == name or tokenizer.startswith(f"{name}-")
