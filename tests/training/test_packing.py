"""Batches without padding: the numbers of rectangles, and where they are used."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention import varlen

from mt.data.batches import Batch, collate
from mt.errors import UserError
from mt.model.transformer import Transformer
from mt.training import packing
from mt.training.packing import pack, pack_batches, packed_states
from mt.training.r_drop import RDropPass
from mt.training.step import TrainingPass
from tests.factories import examples, transformer

BATCH = collate(examples(7))
CUDA = torch.device("cuda")
CALLS_OF_A_PASS = 3
"""With a layer on each side: source to source, target to target, target to source."""


class SentenceBySentence:
    """Attention of variable length as a loop, which counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_starts: Tensor,
        key_starts: Tensor,
        most_queries: int,
        most_keys: int,
        *,
        scale: float,
        window_size: tuple[int, int],
    ) -> Tensor:
        self.calls += 1
        queries, keys = (list(pairwise(each.tolist())) for each in (query_starts, key_starts))
        assert most_queries == max(end - start for start, end in queries)
        assert most_keys == max(end - start for start, end in keys)
        found = []
        for (first, end), (key_first, key_end) in zip(queries, keys, strict=True):
            columns = slice(key_first, key_end)
            heads = [each.transpose(0, 1)[None] for each in (q[first:end], k[columns], v[columns])]
            is_causal = window_size == (-1, 0)
            found.append(
                F.scaled_dot_product_attention(
                    heads[0], heads[1], heads[2], is_causal=is_causal, scale=scale
                )
            )
        return torch.cat(found, dim=2)[0].transpose(0, 1)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> SentenceBySentence:
    """Return the attention of a pretended GPU that packs batches in fp32."""
    found = SentenceBySentence()
    monkeypatch.setattr(packing, "_varlen_attention", lambda: found)
    monkeypatch.setattr(packing, "_TYPES", {torch.float32})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    return found


def loss_and_gradients(
    model: Transformer, batch: Batch = BATCH, *, r_drop: bool = False
) -> list[Tensor]:
    model.zero_grad()
    one_pass = RDropPass(model, 0.1, 5.0) if r_drop else TrainingPass(model, 0.1)
    loss = one_pass(batch).objective
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(gradients) == len(list(model.parameters()))
    return [loss.detach(), *gradients]


@pytest.mark.parametrize(
    "keys",
    [
        {"positional": "sinusoidal", "residual": "post"},
        {"positional": "learned", "residual": "pre"},
        {"positional": "rotary", "residual": "pre", "heads": 4, "kv_heads": 2},
        {"positional": "rotary", "residual": "post", "tie_embeddings": "none"},
        {"positional": "fairseq", "residual": "deepnorm", "decoder_start": "eos"},
        {"positional": "none", "residual": "sandwich", "kv_heads": 1},
    ],
)
@pytest.mark.parametrize("r_drop", [False, True])
def test_packed_batches_have_the_loss_and_gradients_of_rectangles(
    keys: dict[str, Any], r_drop: bool, kernel: SentenceBySentence
) -> None:
    model = transformer(encoder_layers=2, decoder_layers=2, **keys).train()
    plain = loss_and_gradients(model, r_drop=r_drop)
    pack_batches(model, CUDA)
    torch.testing.assert_close(loss_and_gradients(model, r_drop=r_drop), plain)
    assert kernel.calls == 2 * CALLS_OF_A_PASS * (1 + r_drop)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, CALLS_OF_A_PASS),
        ({"device": "cpu"}, 0),
        ({"device": "mps"}, 0),
        ({"capability": (7, 5)}, 0),
        ({"types": {torch.bfloat16}}, 0),
        ({"batch": BATCH.without_targets()}, 0),
    ],
)
def test_rectangles_remain_where_packing_cannot_be(
    changes: dict[str, Any],
    expected: int,
    kernel: SentenceBySentence,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capability = changes.get("capability", (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(packing, "_TYPES", changes.get("types", {torch.float32}))
    model, batch = transformer().train(), changes.get("batch", BATCH)
    plain = loss_and_gradients(model, batch)
    pack_batches(model, torch.device(changes.get("device", "cuda")))
    torch.testing.assert_close(loss_and_gradients(model, batch), plain)
    assert kernel.calls == expected


def test_kernel_of_pytorch_takes_the_arguments_and_the_host_never_waits() -> None:
    """Without values: reading one from the device would be an error."""
    model = transformer(positional="rotary", kv_heads=1).train().to(torch.bfloat16)
    kernel = packing._varlen_attention()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        source, target_in = (mode.from_tensor(each) for each in (BATCH.source, BATCH.target_in))
        packed = pack(source, BATCH.source_tokens), pack(target_in, BATCH.target_tokens)
        states = packed_states(model, *packed, kernel)
        states.sum().backward()  # type: ignore[no-untyped-call]
    assert states.shape == (BATCH.target_tokens, 16)


def test_older_pytorch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 2.10, the kernel has no scale."""
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, is_causal=False: query)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(UserError, match=r"needs torch 2\.11 or later"):
        pack_batches(transformer(), CUDA)
