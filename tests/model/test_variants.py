"""Properties that hold for every variant, tested on every pair of variants."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from mt.config import DecodingConfig, ModelConfig
from mt.data.batches import collate
from mt.data.store import Example
from mt.decoding.torch_engine import TorchEngine
from mt.model.positional import RelativeBias
from mt.model.transformer import Transformer
from mt.model.weights import load_parameters, parameter_tensors
from mt.special_ids import BOS, EOS, PAD
from mt.training.step import fetch_metrics, train_step
from tests.factories import learner, unsettle

VOCABULARY = 24
# Depths, widths and heads differ; tables are longer than some sentences and shorter than others.
SMALL: dict[str, Any] = {
    "d_model": 16,
    "d_ff": 20,
    "heads": 4,
    "kv_heads": 2,
    "d_head": 6,
    "d_value": 4,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "max_positions": 9,
    "relative_clip": 2,
    "dropout": 0.0,
}
LONGEST = 5
SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD], [11, EOS, PAD, PAD, PAD]])
TARGET_IN = torch.tensor([[BOS, 12, 13, 14], [BOS, 15, 16, 9], [BOS, 17, 8, 20]])

FIELDS = ("positional", "norm", "residual", "feed_forward")


def choices(field: str) -> tuple[str, ...]:
    return get_args(ModelConfig.model_fields[field].annotation)


# Every two choices of different fields occur together.
COMBINATIONS = [
    (
        positional,
        choices("norm")[(i // 2 + j) % 2],
        choices("residual")[(i + j) % 4],
        feed_forward,
    )
    for i, positional in enumerate(choices("positional"))
    for j, feed_forward in enumerate(choices("feed_forward"))
]


@pytest.fixture(params=COMBINATIONS, ids="-".join)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return ModelConfig(**SMALL, **dict(zip(FIELDS, request.param, strict=True)))


def build(config: ModelConfig, seed: int = 1) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(config, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    return model.eval()


def all_logits(model: Transformer, source: Tensor, target_in: Tensor) -> Tensor:
    logits: Tensor = model.output(model.decode(target_in, model.encode(source)))
    return logits


def test_every_two_choices_are_combined() -> None:
    for one, other in itertools.combinations(range(len(FIELDS)), 2):
        found = {(combination[one], combination[other]) for combination in COMBINATIONS}
        assert found == set(itertools.product(choices(FIELDS[one]), choices(FIELDS[other])))


def test_every_property_of_a_combination(config: ModelConfig) -> None:
    model = build(config)
    with torch.no_grad():
        assert all_logits(model, SOURCE, TARGET_IN).isfinite().all()
        unsettle(model)
        logits = all_logits(model, SOURCE, TARGET_IN)
        cached_steps_equal_the_full_pass(model, logits)
        padding_changes_nothing(model, logits)
        later_tokens_change_no_earlier_logit(model, logits)
        every_position_sees_every_source_token(model, logits)
    decodes(model)
    trains_one_step(model, config)
    weights_survive_a_file(model, config)


def cached_steps_equal_the_full_pass(model: Transformer, full: Tensor) -> None:
    """Check two rows a sentence with different tokens; the first copies the second half-way."""
    other = each_token_changed(TARGET_IN[0], first=1)[0].expand_as(TARGET_IN)
    of_other = all_logits(model, SOURCE, other)
    state = model.start(model.encode(SOURCE), 2)
    for position in range(TARGET_IN.shape[1]):
        tokens = torch.stack((other[:, position], TARGET_IN[:, position]), dim=1)
        if position >= 2:
            tokens[:, 0] = TARGET_IN[:, position]
        if position == 0:  # one row stands for both
            logits = model.step(tokens[:, 0], state).repeat_interleave(2, dim=0)
        else:
            logits = model.step(tokens.flatten(), state)
        close(logits[1::2], full[:, position])
        close(logits[::2], full[:, position] if position >= 2 else of_other[:, position])
        if position == 1:
            state.reorder(torch.ones(len(SOURCE), 2, dtype=torch.int64))


def padding_changes_nothing(model: Transformer, full: Tensor) -> None:
    wide = nn.functional.pad(SOURCE, (0, 3), value=PAD)
    close(all_logits(model, wide, TARGET_IN), full)
    alone = all_logits(model, SOURCE[1:2, :3], TARGET_IN[1:2, :3])
    close(alone, full[1:2, :3])


def later_tokens_change_no_earlier_logit(model: Transformer, full: Tensor) -> None:
    changed = each_token_changed(TARGET_IN[0], first=1)
    after = all_logits(model, SOURCE[:1].expand(len(changed), -1), changed)
    moved = (after - full[0]).abs().amax(dim=-1)
    for row, position in enumerate(range(1, TARGET_IN.shape[1])):
        assert moved[row, :position].max() <= 1e-6
        assert moved[row, position:].min() > 1e-5


def every_position_sees_every_source_token(model: Transformer, full: Tensor) -> None:
    changed = each_token_changed(SOURCE[0], first=0)
    after = all_logits(model, changed, TARGET_IN[:1].expand(len(changed), -1))
    assert (after - full[0]).abs().amax(dim=-1).min() > 1e-5


def each_token_changed(ids: Tensor, *, first: int) -> Tensor:
    """Return a row for each position from `first` on, with another token there."""
    rows = ids.repeat(len(ids) - first, 1)
    for row, position in enumerate(range(first, len(ids))):
        rows[row, position] = 21
    return rows


def decodes(model: Transformer) -> None:
    engine = TorchEngine(model, torch.device("cpu"))
    sources = [ids[ids != PAD].tolist() for ids in SOURCE]
    beam = DecodingConfig(beam=3, length_penalty=0.0, max_length_ratio=0.0, max_length_extra=3)
    greedy = beam.changed(search="greedy")
    first = engine.translate_ids(sources, greedy)
    assert first == engine.translate_ids(sources, beam.changed(beam=1))
    hypotheses = engine.translate_ids(sources, beam)
    assert all(found.finished or len(found.ids) == 3 for found in hypotheses)
    said = [torch.tensor([BOS, *found.ids, *[EOS] * found.finished]) for found in hypotheses]
    ids = nn.utils.rnn.pad_sequence(said, batch_first=True, padding_value=PAD)
    with torch.no_grad():
        forced = all_logits(model, SOURCE, ids[:, :-1]).log_softmax(-1)
    log_probs = forced.gather(-1, ids[:, 1:, None])[..., 0].masked_fill(ids[:, 1:] == PAD, 0.0)
    close(torch.tensor([found.log_prob for found in hypotheses]), log_probs.sum(-1))


def trains_one_step(model: Transformer, config: ModelConfig) -> None:
    trained = learner(model.train(), clip=0.0)
    gradients: dict[str, Tensor] = {}

    def look(*_: object) -> None:
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            gradients[name] = parameter.grad.clone()

    trained.optimizer.register_step_pre_hook(look)
    (measured,) = fetch_metrics([train_step(trained, [collate(reversed_pairs())], 0.01)])
    assert math.isfinite(measured.nll)
    assert not measured.skipped
    reached = dict(rows_of_positions(model, config))
    for name, gradient in gradients.items():
        if blind(name, config):
            assert gradient.abs().max() < 1e-6, name
        elif name in reached:
            touched = gradient.abs().amax(dim=-1) > 1e-9
            assert touched.nonzero().flatten().tolist() == reached[name], name
        else:
            assert gradient.abs().max() > 1e-7, name


def reversed_pairs() -> list[Example]:
    """Return pairs whose target is the source reversed."""
    made = []
    for number, ids in enumerate(SOURCE):
        source = ids[ids != PAD].numpy().astype(np.int32)
        made.append(Example(number, source, np.append(source[-2::-1], source[-1])))
    return made


def blind(name: str, config: ModelConfig) -> bool:
    """Return whether a parameter adds the same to all scores, as a key bias does unless rotated."""
    rotated = config.positional == "rotary" and ".self_attention." in name
    return name.endswith(".key.bias") and not rotated


def rows_of_positions(model: Transformer, config: ModelConfig) -> Iterator[tuple[str, list[int]]]:
    """Yield the tables of positions, with the rows for sentences of LONGEST tokens."""
    for side in ("encoder", "decoder"):
        offsets = range(1 - LONGEST, LONGEST if side == "encoder" else 1)
        positional = getattr(model, f"{side}_positional")
        if config.positional == "learned":
            yield f"{side}_positional.table", list(range(LONGEST))
        if isinstance(positional, RelativeBias):
            buckets = positional.buckets(torch.tensor(offsets)).tolist()
            yield f"{side}_positional.table", sorted(set(buckets))
        if config.positional == "relative":
            clip = config.relative_clip
            rows = sorted({min(max(offset, -clip), clip) + clip for offset in offsets})
            for number in range(len(positional.layers)):
                for table in ("keys", "values"):
                    yield f"{side}_positional.layers.{number}.{table}", rows


def weights_survive_a_file(model: Transformer, config: ModelConfig) -> None:
    other = build(config, seed=2)
    load_parameters(other, load(save(parameter_tensors(model))), "here")
    model.eval()
    with torch.no_grad():
        before, after = (all_logits(each, SOURCE, TARGET_IN) for each in (model, other))
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=["cpu", "gpu"]
)
@pytest.mark.parametrize("combination", COMBINATIONS[::3], ids="-".join)
def test_bf16_is_near_fp32(combination: tuple[str, ...], device: str) -> None:
    variant = dict(zip(FIELDS, combination, strict=True))
    config = ModelConfig.model_validate({**SMALL, **variant})
    model = unsettle(build(config)).to(device)
    full, gradient, steps = passes(model, torch.float32)
    close(steps, full)
    for found, expected in zip(passes(model, torch.bfloat16), (full, gradient, full), strict=True):
        assert (found - expected).norm() < 0.02 * expected.norm()


def passes(model: Transformer, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, all gradients in one row, and the logits of cached steps, in `dtype`."""
    device = model.output.weight.device
    source, target_in = SOURCE.to(device), TARGET_IN.to(device)
    model.zero_grad()
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        logits = all_logits(model, source, target_in)
        logits.float().log_softmax(-1)[..., 5].sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            state = model.start(model.encode(source), 1)
            steps = [model.step(column, state) for column in target_in.T]
    assert logits.dtype == dtype
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return logits.detach().float(), torch.cat(gradients), torch.stack(steps, dim=1).float()


@pytest.mark.parametrize(
    ("field", "choice"), [(f, choice) for f in FIELDS for choice in choices(f)]
)
def test_without_bias_there_is_none_anywhere(field: str, choice: str) -> None:
    assert biases({field: choice, "bias": True})
    assert biases({field: choice, "bias": False}) == []


def biases(changes: dict[str, Any]) -> list[str]:
    model = build(ModelConfig.model_validate({**SMALL, **changes}))
    return [name for name, _ in model.named_parameters() if name.endswith("bias")]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
