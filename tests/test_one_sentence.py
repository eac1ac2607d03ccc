"""One sentence from text to BLEU, with every value and shape on the way.

Each step names the file that implements it.
"""

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from mt.config.data import Direction
from mt.data.batches import collate, plan_updates, split_update
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.data.store import prepare_store
from mt.data.tokenizer_training import train_tokenizer
from mt.decoding.engine import length_limit
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator
from mt.evaluation.scores import evaluate
from mt.model.positional import sinusoids
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, PAD
from mt.training.loss import label_smoothed_loss
from mt.training.optimizer import learning_rate
from mt.training.step import fetch_metrics, train_step
from tests.factories import config as tiny_config
from tests.factories import learner

SOURCES = ["a cat sleeps", "a dog sleeps", "a dog eats", "a cat eats a fish"]
TARGETS = ["eine Katze schläft", "ein Hund schläft", "ein Hund frisst", "eine Katze frisst Fisch"]


def test_one_sentence(tmp_path: Path) -> None:
    # A config, checked and frozen (mt/config).
    for name, lines in (("train.en", SOURCES), ("train.de", TARGETS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {"source": str(tmp_path / "train.en"), "target": str(tmp_path / "train.de")}
    config = tiny_config(
        data={"train": files, "valid": files},
        tokenizer={"vocabulary_size": 320},
        model={"d_model": 32, "d_ff": 64},
        training={"max_updates": 200, "learning_rate": 0.01, "warmup_updates": 30},
    )
    model_config = config.model

    # Text: a pair of lines (mt/data/corpus_files.py, mt/data/sources.py).
    corpus = open_source(config.data.train, config.direction)
    pairs = list(corpus.pairs())
    assert pairs[1] == SentencePair("a dog sleeps", "ein Hund schläft")

    # Tokens and ids (mt/data/tokenizer.py). Ids 0 to 3 are special, then 256 bytes, then tokens.
    tokenizer = train_tokenizer(corpus.pairs, tmp_path / "tokenizer", config=config.tokenizer)
    vocabulary = tokenizer.source_size
    assert vocabulary == tokenizer.target_size == 320
    (source_ids,) = tokenizer.encode_source(["a dog sleeps"])
    (target_ids,) = tokenizer.encode_target(["ein Hund schläft"])
    assert source_ids[-1] == target_ids[-1] == EOS
    assert all(4 + 256 <= token < vocabulary for token in source_ids[:-1] + target_ids[:-1])
    assert tokenizer.decode_target(target_ids) == "ein Hund schläft"
    (bytes_of_snow,) = tokenizer.encode_source(["雪"])
    # An unknown character: the space mark, its three bytes, the end mark.
    assert bytes_of_snow[-4:] == [4 + byte for byte in "雪".encode()] + [EOS]
    assert tokenizer.decode_source(bytes_of_snow) == "雪"

    # The store (mt/data/store.py).
    store = prepare_store(corpus, tokenizer, max_tokens=64, cache=tmp_path / "cache")
    assert len(store) == 4
    assert store.lengths[1].tolist() == [len(source_ids), len(target_ids)]
    (example,) = store.examples([1])
    assert example.source.tolist() == source_ids
    assert example.target.tolist() == target_ids

    # An update and its batch (mt/data/batches.py): all four pairs fit into one.
    ((run,),) = plan_updates(store.lengths, 400, seed=config.seed, epoch=0)
    assert sorted(run.tolist()) == [0, 1, 2, 3]
    ((micro_batch,),) = split_update([run], store.lengths, max_tokens_per_batch=4096, ranks=1)
    batch = collate(store.examples(micro_batch))
    row = batch.index.tolist().index(1)
    source_width, target_width = store.lengths.max(axis=0).tolist()
    assert batch.source.shape == (4, source_width)
    assert batch.target_in.shape == batch.target_out.shape == (4, target_width)
    assert batch.target_tokens == int(store.lengths[:, 1].sum())
    source_padding = [PAD] * (source_width - len(source_ids))
    target_padding = [PAD] * (target_width - len(target_ids))
    assert batch.source[row].tolist() == source_ids + source_padding
    # Teacher forcing: the decoder reads the target shifted to the right by one.
    assert batch.target_in[row].tolist() == [BOS, *target_ids[:-1], *target_padding]
    assert batch.target_out[row].tolist() == target_ids + target_padding

    # The model (mt/model). D = 32, 2 heads of width 16.
    torch.manual_seed(config.seed)
    model = Transformer(model_config, source_vocabulary=vocabulary, target_vocabulary=vocabulary)
    attention_matrices = 4 * (32 * 32 + 32)
    feed_forward = 32 * 64 + 64 + 64 * 32 + 32
    norm = 2 * 32
    encoder_layer = attention_matrices + feed_forward + 2 * norm
    decoder_layer = 2 * attention_matrices + feed_forward + 3 * norm
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters == vocabulary * 32 + encoder_layer + decoder_layer
    # Embeddings times sqrt(D), plus positions.
    positional = model.encoder_positional
    embedded = model.embed(model.source_embedding, batch.source, positional, first=0)
    expected = model.source_embedding.weight[source_ids[0]] * math.sqrt(32) + sinusoids(1, 32)[0]
    torch.testing.assert_close(embedded[row, 0], expected)
    memory = model.encode(batch.source)
    assert memory.states.shape == (4, source_width, 32)
    assert memory.source_mask is not None, "some of the four are shorter than the longest"
    assert memory.source_mask[row].sum() == len(source_ids)
    # Post-Norm: the output of a stack is normalised (gain 1, bias 0 at the start).
    torch.testing.assert_close(
        memory.states.mean(-1), torch.zeros(4, source_width), atol=1e-5, rtol=0
    )
    states = model.decode(batch.target_in, memory)
    assert states.shape == (4, target_width, 32)
    logits = model(batch.source, batch.target_in)
    assert logits.shape == (batch.target_tokens, vocabulary)

    # The loss (mt/training/loss.py): 0.9 on the reference, 0.1 spread evenly.
    targets = batch.target_out[batch.target_out != PAD]
    real_states = states[batch.target_out != PAD]
    torch.testing.assert_close(logits, real_states @ model.output.weight.T)
    sums = label_smoothed_loss(real_states, model.output.weight, targets, 0.1)
    per_token = F.cross_entropy(logits, targets, label_smoothing=0.1)
    assert sums.smoothed.item() / sums.tokens == pytest.approx(per_token.item(), rel=1e-5)
    assert sums.nll.item() / sums.tokens == pytest.approx(math.log(vocabulary), rel=0.3)

    # Training steps (mt/training/step.py) until the model has memorised the four pairs.
    made = learner(model)
    rates = [learning_rate(number, config.training, 32) for number in range(1, 201)]
    first, *_, last = fetch_metrics([train_step(made, [batch], rate) for rate in rates])
    assert first.smoothed == pytest.approx(sums.smoothed.item(), rel=1e-5)
    # With smoothing the best possible loss is the entropy of the smoothed target, not zero.
    low, high = 0.1 / vocabulary, 0.9 + 0.1 / vocabulary
    entropy = -high * math.log(high) - (vocabulary - 1) * low * math.log(low)
    assert entropy < last.smoothed / last.tokens.target < entropy + 0.1

    # Search (mt/decoding): ids out, then text.
    engine = TorchEngine(model, torch.device("cpu"))
    assert length_limit(len(source_ids), config.decoding) == len(source_ids) + 50
    (hypothesis,) = engine.translate_ids([source_ids], config.decoding)
    assert list(hypothesis.ids) == target_ids[:-1]
    assert hypothesis.finished
    penalty = ((5 + len(target_ids)) / 6) ** config.decoding.length_penalty
    assert hypothesis.score == pytest.approx(hypothesis.log_prob / penalty)
    translator = Translator(
        engine,
        tokenizer,
        decoding=config.decoding,
        longest_source=store.longest_source,
        direction=Direction("en", "de"),
        line_shape=None,
    )
    assert translator.translate(["a dog sleeps", "", "a cat eats a fish"]) == [
        "ein Hund schläft",
        "",
        "eine Katze frisst Fisch",
    ]

    # The score, with its signature (mt/evaluation/scores.py).
    score = evaluate(translator.translate(SOURCES), [TARGETS], target_language="de").bleu
    assert score.value == pytest.approx(100.0)
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
