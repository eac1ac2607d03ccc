"""Greedy search, and the loop of every search that writes one translation a sentence.

Axes: B sentences, R rows, of which each is a sentence here, V vocabulary. Only the choice of the
next piece is computed on the model's device; its few numbers a row come to the host.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mt.decoding.continuations import NO_RULES, Rules, Written, best_continuations
from mt.decoding.engine import Hypothesis
from mt.decoding.step_model import StepModel
from mt.special_ids import BOS, EOS

Choose = Callable[[Tensor, Written], tuple[Tensor, Tensor]]
"""From logits [R V] to each row's next piece [R] and its log-probability [R], on the host."""


def greedy(model: StepModel, limits: Tensor, rules: Rules = NO_RULES) -> list[Hypothesis]:
    """Take the most probable piece at each step, one row a sentence.

    `limits` [B] is the largest number of pieces, EOS included, of each translation; a translation
    that reaches it without EOS is cut there. The result is that of `beam` with one row; its score
    is its log-probability.
    """

    def best(logits: Tensor, written: Written) -> tuple[Tensor, Tensor]:
        # Two where one would do, as in `beam` with one row, so that equal logits fall alike.
        found = best_continuations(logits, 2, rules, written)
        return found.ids[:, 0], found.log_probs[:, 0]

    return grow(model, limits, best)


def grow(model: StepModel, limits: Tensor, choose: Choose) -> list[Hypothesis]:
    """Write each translation piece by piece as `choose` says."""
    assert bool((limits > 0).all()), "a translation has at least its end mark"
    device, limits = limits.device, limits.cpu()
    found: dict[int, Hypothesis] = {}
    numbers = torch.arange(len(limits))
    last_ids = torch.full_like(numbers, BOS)
    log_probs = torch.zeros(len(limits), dtype=torch.float64)
    pieces = torch.empty(len(limits), 0, dtype=torch.int64)
    while len(numbers):
        logits = model.step(last_ids.to(device))
        last_ids, added = choose(logits, Written(numbers, pieces))
        log_probs = log_probs + added
        pieces = torch.cat((pieces, last_ids[:, None]), dim=1)
        done = (last_ids == EOS) | (pieces.shape[1] >= limits)
        for row in done.nonzero().flatten().tolist():
            finished = bool(last_ids[row] == EOS)
            ids = pieces[row].tolist()
            log_prob = float(log_probs[row])
            found[int(numbers[row])] = Hypothesis(
                tuple(ids[:-1] if finished else ids), log_prob, log_prob, finished
            )
        stay = (~done).nonzero().flatten()
        if 0 < len(stay) < len(numbers):
            model.keep(stay.to(device))
        numbers, limits, last_ids = numbers[stay], limits[stay], last_ids[stay]
        log_probs, pieces = log_probs[stay], pieces[stay]
    return [found[number] for number in range(len(found))]
