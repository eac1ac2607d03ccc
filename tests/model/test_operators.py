"""Operators of one update: a variant that is not chosen costs nothing."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from torch.profiler import ProfilerActivity, profile

from mt.data.batches import collate
from mt.data.store import Example
from mt.special_ids import EOS
from mt.training.step import train_step
from tests.factories import learner, transformer

# Random bits, a comparison, the factors, and the product, forward and backward.
DROPOUT = Counter({"empty": 1, "random_": 1, "ge": 1, "mul_": 1, "mul": 2})
ENCODER_LAYER = Counter(
    {
        "linear": 6,
        "scaled_dot_product_attention": 1,
        "relu": 1,
        "add": 2,
        "layer_norm": 2,
        # Backward of a linear layer: two products and, for the bias, a sum.
        "mm": 12,
        "sum": 6,
        "_scaled_dot_product_flash_attention_for_cpu_backward": 1,
        "threshold_backward": 1,
        "native_layer_norm_backward": 2,
        # For tensors that are used several times: residuals, queries, keys and values.
        "add_": 4,
    }
)
DECODER_LAYER = Counter(
    {
        "linear": 10,
        "scaled_dot_product_attention": 2,
        "relu": 1,
        "add": 3,
        "layer_norm": 3,
        "mm": 20,
        "sum": 10,
        "_scaled_dot_product_flash_attention_for_cpu_backward": 2,
        "threshold_backward": 1,
        "native_layer_norm_backward": 3,
        "add_": 7,
    }
)
REAL_POSITIONS = {
    "ne": 1,
    "all": 1,
    "is_nonzero": 1,
    "index_select": 2,
    "index_select_backward": 1,
}
EMBEDDINGS = {"embedding": 2, "mul": 4, "add": 3, "embedding_backward": 2}
# One chunk of rows: logits, log-probabilities, sums, and the gradient in their place.
LOSS = {
    "zeros": 1,
    "unbind": 1,
    "zeros_like": 1,
    "empty_like": 1,
    "new_zeros": 1,
    "numpy_T": 2,
    "matmul": 2,
    "log_softmax": 1,
    "gather": 1,
    "mean": 1,
    "sum": 2,
    "neg": 1,
    "mul": 4,
    "sub": 1,
    "add_": 2,
    "exp_": 1,
    "sub_": 1,
    "new_full": 1,
    "scatter_add_": 1,
    "copy_": 1,
    "addmm_": 1,
    # Backward, and the sums over chunks and batches.
    "div": 2,
    "ones_like": 1,
}
RESULT = {"stack": 2, "sum": 2}
CLIPPING_AND_ADAM = {
    "_foreach_norm": 1,
    "stack": 1,
    "linalg_vector_norm": 1,
    "add": 1,
    "reciprocal": 1,
    "mul": 1,
    "clamp": 1,
    "_foreach_mul_": 1,
    "isfinite": 1,
    "bitwise_not": 1,
    "_foreach_sub_": 1,
    "_foreach_add_": 1,
    "_fused_adam_": 1,
}
LAYOUT = {
    "alias",
    "t",
    "to",
    "view",
    "slice",
    "detach",
    "expand",
    "flatten",
    "reshape",
    "transpose",
    "unsqueeze",
}
"""Operators that compute nothing."""


def operators(**changes: Any) -> Counter[str]:
    """Return the calls of each operator in an update, without calls from other operators."""
    trained = learner(transformer(heads=4, decoder_layers=2, **{"dropout": 0.1, **changes}).train())
    rows = [np.array([*range(5, 5 + length), EOS]) for length in (2, 4)]
    batch = collate([Example(number, row, row) for number, row in enumerate(rows)])
    train_step(trained, [batch], 0.001)  # the first one makes the optimiser's state
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        train_step(trained, [batch], 0.001)
    return Counter(
        event.name.removeprefix("aten::")
        for event in profiled.events()
        if event.name.startswith("aten::")
        and not inside_another(event)
        and event.name.removeprefix("aten::") not in LAYOUT
        # Dropout with a probability of 0 returns its input.
        and event.name != "aten::dropout"
    )


def inside_another(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None and not parent.name.startswith("aten::"):
        parent = parent.cpu_parent
    return parent is not None


def update_of(encoder: int, decoder: int) -> Counter[str]:
    counted = Counter(REAL_POSITIONS)
    for part in (EMBEDDINGS, LOSS, RESULT, CLIPPING_AND_ADAM):
        counted.update(part)
    for layer in [ENCODER_LAYER] * encoder + [DECODER_LAYER] * decoder:
        counted.update(layer)
    for _ in range(2 + 2 * encoder + 3 * decoder):
        counted.update(DROPOUT)
    return counted


@pytest.mark.parametrize(
    "changes",
    [{}, {"attention_temperature": 2.0, "d_head": 6, "d_value": 6}],
    ids=str,
)
def test_numbers_and_widths_change_no_operator_of_the_base_model(
    changes: dict[str, Any],
) -> None:
    assert operators(**changes) == update_of(1, 2)


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"positional": "none"}, {"add": -2}),
        ({"residual": "sandwich"}, {"layer_norm": 2 + 6 + 2}),
        ({"residual": "deepnorm"}, {"mul": 2 * (2 + 6)}),
        ({"norm": "rmsnorm", "feed_forward_dropout": 0.1}, {"rms_norm": 2 + 6, "random_": 3}),
        ({"feed_forward": "glu", "bias": False}, {"linear": 3, "sigmoid": 3, "relu": -3}),
        ({"kv_heads": 2}, {"repeat_interleave": 2 * (1 + 4)}),
    ],
    ids=str,
)
def test_a_variant_adds_its_own_operators(changes: dict[str, Any], more: dict[str, int]) -> None:
    found = operators(**changes)
    found.subtract(update_of(1, 2))
    assert {name: found[name] for name in more} == more
