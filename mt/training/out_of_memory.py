"""Too little memory on a device: a batch that does not fit is halved, the update stays the same."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from mt.data.batches import Batch, Indices, Lengths, collate, split_update
from mt.errors import UserError
from mt.training.corpus import first_plan
from mt.training.session import Session
from mt.training.update import BatchTooLarge, gather_gradients

T = TypeVar("T")
_TRIED_ON = {"cuda"}
_MOMENTS = 2
"""Tensors that Adam keeps for each parameter, from the first step on."""


def in_smaller_batches(
    session: Session, batches: Sequence[Batch], attempt: Callable[[list[Batch]], T]
) -> T:
    """Attempt something with batches on the device; where one does not fit, again with its halves.

    `attempt` must begin anew each time; it raises BatchTooLarge. What it has added to the gradients
    is dropped then. Raises UserError for a pair that does not fit by itself, and where several
    processes train together: they wait for each other batch by batch.
    """
    batches = [*batches]
    while True:
        try:
            return attempt([batch.to(session.device) for batch in batches])
        except BatchTooLarge as error:
            number = error.number
        except torch.OutOfMemoryError:
            raise UserError(
                "the device has too little memory for the model and its optimiser: make the model "
                "smaller in a new run (--run), or take a larger device"
            ) from None
        session.learner.optimizer.zero_grad(set_to_none=True)
        batches[number : number + 1] = _halves(session, batches[number])


def try_heaviest(session: Session) -> None:
    """Try, on a GPU, the heaviest batch of an epoch, so that a lack of memory shows at once.

    The training is not touched: gradients are dropped, and dropout is seeded by each update.
    Raises UserError as `in_smaller_batches` does.
    """
    if session.device.type not in _TRIED_ON:
        return
    config, learner = session.config, session.learner
    store = session.corpus.epoch_store(session.state.epoch)
    plan = first_plan(session.corpus, config, epoch=session.state.epoch)
    budget = config.training.max_tokens_per_batch
    indices = heaviest(plan, store.lengths, max_tokens_per_batch=budget)
    batch = collate(store.examples(indices))
    moments = [
        torch.empty_like(parameter)
        for parameter in learner.model.parameters()
        if parameter.requires_grad and parameter not in learner.optimizer.state
        for _ in range(_MOMENTS)
    ]
    in_smaller_batches(
        session, [batch], lambda batches: gather_gradients(learner, batches, batch.target_tokens)
    )
    learner.optimizer.zero_grad(set_to_none=True)
    del moments


def heaviest(plan: Sequence[Indices], lengths: Lengths, *, max_tokens_per_batch: int) -> Indices:
    """Return the batch of some updates with the most positions, those of both sides together."""
    batches = (
        batch
        for update in plan
        for batch in split_update(
            update, lengths, max_tokens_per_batch=max_tokens_per_batch, ranks=1
        )[0]
    )
    return max(batches, key=lambda batch: len(batch) * int(lengths[batch].max(axis=0).sum()))


def _halves(session: Session, batch: Batch) -> tuple[Batch, Batch]:
    """Say that a batch is halved, and do it."""
    training, rows = session.config.training, len(batch.index)
    key = f"`training.max_tokens_per_batch`, now {training.max_tokens_per_batch}"
    if isinstance(session.learner.training_pass, DistributedDataParallel):
        raise UserError(
            f"this rank's device has too little memory for a batch of {rows} pairs: lower {key}; "
            "the updates stay the same"
        )
    if rows == 1:
        raise UserError(
            f"pair {int(batch.index) + 1:,} of the corpus as encoded, of {batch.source_tokens} "
            f"source and {batch.target_tokens} target pieces, does not fit the device's memory by "
            "itself; in a new run (--run) leave such pairs out by a lower `data.max_pieces`, or "
            "make the model smaller; `training.precision` bf16 needs less, too"
        )
    session.progress.say_once(
        "the device has too little memory for a batch: such batches are taken in halves, which "
        f"costs time, and the updates stay the same; to avoid it, lower {key}"
    )
    session.progress.record(
        "out_of_memory",
        update=session.state.update,
        pairs=rows,
        source_positions=batch.source.numel(),
        target_positions=batch.target_out.numel(),
    )
    return batch.halves()
