"""The best next tokens of each row, and the rules that a translation keeps.

Axes: R rows, V vocabulary, C candidates, T tokens so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mt.errors import DivergedError
from mt.special_ids import EOS

NEVER = float("-inf")
_LINES = 16


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What the rows of a step hold so far, on the host."""

    sentences: Tensor
    """[R]: the number of each row's sentence in its batch."""
    tokens: Tensor
    """[R T]."""


@dataclass(frozen=True)
class Constraints:
    """What a translation must begin with and must not do; by default there is no rule."""

    no_repeat_ngram: int | None = None
    """No sequence of so many tokens comes twice (Paulus et al. 2018, section 2.5)."""
    repetition_penalty: float = 1.0
    """Multiplies the log-probability of a token that was written before.

    Keskar et al. 2019, section 4.1, divide the logit, whose sign makes two cases; a
    log-probability has one.
    """
    shortest: Tensor | None = None
    """[B]: the fewest tokens of each translation, EOS included."""
    prefixes: Sequence[Sequence[int]] = field(default=())
    """What each translation begins with; empty: nothing is forced."""

    @property
    def silent(self) -> bool:
        """Tell whether there is nothing to apply."""
        return (
            self.no_repeat_ngram is None
            and self.repetition_penalty == 1.0
            and self.shortest is None
            and not self.prefixes
        )

    def apply(self, logits: Tensor, normaliser: Tensor, written: Prefixes) -> None:
        """Change logits [R V] so that no rule is broken; `normaliser` [R 1] stays what it was.

        A prefix stands above all other rules, and as nobody chose it, it costs nothing: divided by
        the length penalty, the log-probability of an improbable prefix would be a prize for length.
        A row that nothing else is left for may end.
        """
        end = logits[:, EOS].clone()
        if self.repetition_penalty != 1.0 and written.tokens.shape[1]:
            before = written.tokens.to(logits.device)
            log_probs = logits.gather(1, before) - normaliser
            logits.scatter_(1, before, self.repetition_penalty * log_probs + normaliser)
        if self.no_repeat_ngram is not None:
            again, blocked = repeating(written.tokens, self.no_repeat_ngram)
            logits[again.to(logits.device), blocked.to(logits.device)] = NEVER
        if self.shortest is not None:
            early = written.tokens.shape[1] + 1 < self.shortest[written.sentences]
            logits[early.nonzero().flatten().to(logits.device), EOS] = NEVER
        rows, ids = (which.to(logits.device) for which in self._forced(written))
        logits[rows] = NEVER
        logits[rows, ids] = normaliser[rows, 0]
        stuck = logits[:, EOS:].amax(dim=1) == NEVER
        logits[:, EOS] = torch.where(stuck, end, logits[:, EOS])

    def _forced(self, written: Prefixes) -> tuple[Tensor, Tensor]:
        """Return the rows that are still in their prefix, and the token that each has to take."""
        place = written.tokens.shape[1]
        sentences = written.sentences.tolist() if self.prefixes else []
        prefixes = ((row, self.prefixes[sentence]) for row, sentence in enumerate(sentences))
        forced = [(row, prefix[place]) for row, prefix in prefixes if place < len(prefix)]
        rows, ids = torch.tensor(forced, dtype=torch.int64).reshape(-1, 2).unbind(dim=1)
        return rows, ids


NO_CONSTRAINTS = Constraints()


def repeating(tokens: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the rows and ids of all tokens that would make an n-gram of `size` come again.

    `tokens` [R T] are those of each row so far.
    """
    length = tokens.shape[1]
    if length < size:
        nothing = torch.empty(0, dtype=torch.int64)
        return nothing, nothing
    # Each place that has size - 1 tokens before it, and what stands there.
    next_ids = tokens[:, size - 1 :]
    ends_alike = torch.ones_like(next_ids, dtype=torch.bool)
    for back in range(1, size):
        ends_alike &= tokens[:, size - 1 - back : length - back] == tokens[:, length - back, None]
    rows, places = ends_alike.nonzero().unbind(dim=1)
    return rows, next_ids[rows, places]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best next tokens of each row, best first, on the host."""

    log_probs: Tensor
    """[R C] float64, of the token alone."""
    ids: Tensor
    """[R C]."""


def best_candidates(
    logits: Tensor, count: int, rules: Constraints = NO_CONSTRAINTS, written: Prefixes | None = None
) -> Candidates:
    """Return the `count` most probable next tokens of each row of `logits` [R V].

    PAD, UNK and BOS are never generated, but keep their share of the probability, so that a
    hypothesis has the log-probability that the model gives it; so does what the rules forbid,
    which has the log-probability -inf here. Raises DivergedError where the model's output is not
    finite.
    """
    assert logits.shape[1] > EOS + 1, "the vocabulary holds nothing but special tokens"
    logits, normaliser = apply_constraints(logits, rules, written)
    # The three ids that are not generated stand before EOS. First the choice, then the normaliser:
    # no second [R V] tensor is written.
    values, places = largest(logits[:, EOS:], min(count, logits.shape[1] - EOS))
    log_probs = (values - normaliser).cpu().double()
    require_finite(log_probs[:, 0])
    return Candidates(log_probs, places.cpu() + EOS)


def largest(numbers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of each row [R N], largest first, and their places; each [R C].

    What `topk` does, at half its time on a CPU for a vocabulary of 4,000 to 32,000: the largest
    lie in those columns, of a row cut into lines of equal length, whose own largest is largest.
    """
    width = numbers.shape[1] // _LINES
    if width < 2 * count:
        return tuple(numbers.topk(count, dim=1))  # type: ignore[return-value]
    lines = numbers[:, : _LINES * width].view(-1, _LINES, width)
    columns = lines.amax(dim=1).topk(count, dim=1, sorted=False).indices[:, None]
    rest = torch.arange(_LINES * width, numbers.shape[1], device=numbers.device)
    places = columns + torch.arange(_LINES, device=numbers.device)[:, None] * width
    places = torch.cat((places.flatten(1), rest.expand(len(numbers), -1)), dim=1)
    best = numbers.gather(1, places).topk(count, dim=1)
    return best.values, places.gather(1, best.indices)


def apply_constraints(
    logits: Tensor, rules: Constraints, written: Prefixes | None
) -> tuple[Tensor, Tensor]:
    """Return fp32 logits [R V] that keep the rules, and the normaliser [R 1] of the model's own."""
    logits = logits.float()
    normaliser = _normaliser(logits)
    if not rules.silent:
        assert written is not None, "rules are about what is written"
        rules.apply(logits, normaliser, written)
    return logits, normaliser


def _normaliser(logits: Tensor) -> Tensor:
    """Return the logsumexp [R 1] of each row of logits [R V].

    On a CPU a few rows at a time: what it writes on the way stays in the cache, and a whole beam
    search takes 0.93 of the time.
    """
    rows = 32 if logits.device.type == "cpu" else max(1, len(logits))
    return torch.cat([some.logsumexp(dim=1, keepdim=True) for some in torch.split(logits, rows)])


def require_finite(log_probs: Tensor) -> None:
    """Raise DivergedError unless the log-probabilities of the best tokens are all finite."""
    if not log_probs.isfinite().all():
        raise DivergedError(
            "the model's output is not finite (NaN or infinite): its weights are damaged, "
            "or its training diverged"
        )
