"""Initial weights from another run, and frozen parts."""

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from mt.config import Config, TrainingConfig
from mt.config.loading import dump_config, load_config
from mt.data.batches import collate
from mt.data.pairs import SentencePair
from mt.data.tokenizer import Tokenizer, Vocabulary, copy_tokenizer
from mt.data.tokenizer_training import train_tokenizer
from mt.errors import ConfigError, RunError
from mt.files import hash_file
from mt.model.attention import EVERYWHERE
from mt.model.sublayers import NORM_EPSILON
from mt.model.transformer import Transformer
from mt.model.weights import load_parameters, parameter_tensors
from mt.special_ids import BOS, EOS
from mt.training.checkpoint import Checkpoints
from mt.training.initial_weights import (
    PARTS,
    choose_weights,
    clear_sublayers,
    translate_embeddings,
)
from mt.training.loader import PlannedUpdate
from mt.training.run_folder import RunFolder
from mt.training.state import TrainState
from mt.training.step import Learner, TrainingPass, fetch_metrics, train_step
from mt.training.trainer import Trainer
from mt.training.translation_table import TranslationTable
from tests.factories import (
    DIGITS,
    Program,
    check_initial_run,
    examples,
    extend_tokenizer,
    flip_bit,
    journal,
    learner,
    load_weights_of_run,
    train_with,
    transformer,
)

Write = Callable[..., Config]
OLD_PAIRS = [
    SentencePair(f"the {animal} sleeps", f"{tier} schläft")
    for animal, tier in [("dog", "der Hund"), ("cat", "die Katze"), ("horse", "das Pferd")]
]
NEW_PAIRS = [
    SentencePair(f"the patient takes {name}", f"der Patient nimmt {name} 药")
    for name in ("antibiotics", "penicillin", "antihistamines")
] * 5


def build(config: Config, tokenizer: Tokenizer) -> Transformer:
    return Transformer(
        config.model,
        source_vocabulary=tokenizer.source_size,
        target_vocabulary=tokenizer.target_size,
    ).eval()


@pytest.fixture
def write_run(tiny_recipe: Path, tmp_path: Path) -> Write:
    """Return a function that writes a finished run of random weights; it returns its config."""

    def write(*settings: str, name: str = "old", pairs: list[SentencePair] = OLD_PAIRS) -> Config:
        run = tmp_path / name
        config = load_config(tiny_recipe, overrides=["tokenizer.vocabulary_size=330", *settings])
        tokenizer = train_tokenizer(lambda: iter(pairs), run / "tokenizer", config=config.tokenizer)
        save_file(parameter_tensors(build(config, tokenizer)), run / "model.safetensors")
        (run / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        description = {
            "format": 1,
            "source_vocabulary": tokenizer.source_size,
            "target_vocabulary": tokenizer.target_size,
            "longest_source": 16,
            "tokenizer": tokenizer.fingerprint,
            "weights": hash_file(run / "model.safetensors"),
        }
        (run / "model.json").write_text(json.dumps(description), encoding="utf-8")
        return config

    return write


def with_initial_run(run: Path, config: Config, *, added_tokens: int = 0) -> Config:
    training = config.training.changed(init_from=run)
    return config.changed(
        training=training, tokenizer=config.tokenizer.changed(added_tokens=added_tokens)
    )


def extended_tokenizer(run: Path, config: Config) -> Tokenizer:
    folder = run.parent / "extended"
    return extend_tokenizer(run, folder, NEW_PAIRS, config.tokenizer)


def saved_model(run: Path, config: Config) -> Transformer:
    """Return the model of a run, loaded without the code under test."""
    model = build(config, Tokenizer.load(run / "tokenizer"))
    load_parameters(model, load_file(run / "model.safetensors"), "")
    return model


def batch_of(tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    source = tokenizer.encode_source([pair.source for pair in OLD_PAIRS])
    target = tokenizer.encode_target([pair.target for pair in OLD_PAIRS])
    rows = [ids[:6] for ids in source], [[BOS, *ids[:5]] for ids in target]
    return torch.tensor(rows[0]), torch.tensor(rows[1])


def expected_row(matrix: Tensor, new: Vocabulary, number: int, old: Vocabulary) -> Tensor:
    """Return a row, found by reading the old tokens out of the old encoding of a text."""
    if number < len(old):
        return matrix[number]
    text = new.token_bytes[number].decode()
    # Encoding puts a space in front; after a line break, which no token has, it stands alone.
    (ids,) = old.encode([text[1:] if text.startswith(" ") else f"\n{text}"])
    (first,) = old.encode([] if text.startswith(" ") else ["\n"]) or [[EOS]]
    parts = ids[len(first) - 1 : -1]
    assert b"".join(old.token_bytes[part] for part in parts) == new.token_bytes[number]
    return torch.stack([matrix[part] for part in parts]).double().mean(0).float()


@pytest.mark.parametrize(
    ("vocabulary", "tied"),
    [
        ("joint", "all"),
        ("joint", "decoder"),
        ("joint", "none"),
        ("separate", "decoder"),
        ("separate", "none"),
    ],
)
def test_copied_and_extended_tokenizers_keep_the_model(
    vocabulary: str, tied: str, write_run: Write, tmp_path: Path
) -> None:
    run = tmp_path / "old"
    config = write_run(f"tokenizer.vocabulary={vocabulary}", f"model.tie_embeddings={tied}")
    old = copy_tokenizer(run, tmp_path / "copy")
    saved, before = saved_model(run, config), load_file(run / "model.safetensors")
    source, target_in = batch_of(old)
    with torch.inference_mode():
        expected = saved(source, target_in)

    model = build(config, old)
    lines = load_weights_of_run(model, with_initial_run(run, config), old)
    assert lines[0] == f"begins with the weights of {run}"
    sizes = dict.fromkeys([old.source_size, old.target_size])
    assert [line.partition(": ")[2] for line in lines[1:]] == [f"{n} rows copied" for n in sizes]
    after = parameter_tensors(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], before[name]) for name in after)
    with torch.inference_mode():
        assert torch.equal(model(source, target_in), expected)

    config = with_initial_run(run, config, added_tokens=25)
    new = extended_tokenizer(run, config)
    model = build(config, new)
    lines = load_weights_of_run(model, config, new)
    for side in ("source", "target") if vocabulary == "separate" else ("",):
        size = old.target_size if side == "target" else old.source_size
        (line,) = (line for line in lines if line.startswith(f"{side} vocabulary: ".lstrip()))
        assert f": {size} rows copied, 25 new ones are means of the rows of their tokens" in line
    with torch.inference_mode():
        logits = model(source, target_in)
    assert logits.shape[1] == expected.shape[1] + 25
    # A matrix product of another width may add in another order.
    torch.testing.assert_close(logits[:, : old.target_size], expected, rtol=1e-6, atol=1e-6)
    after = parameter_tensors(model)
    matrices = {"source_embedding.weight", "target_embedding.weight", "output.weight"}
    assert len(matrices & after.keys()) == {"all": 1, "decoder": 2, "none": 3}[tied]
    for name in matrices & after.keys():
        side = "source" if name.startswith("source") else "target"
        was, now = getattr(old, side), getattr(new, side)
        assert len(after[name]) == len(now) == len(was) + 25
        for number, row in enumerate(after[name]):
            torch.testing.assert_close(row, expected_row(before[name], now, number, was))
    for name in after.keys() - matrices:
        assert torch.equal(after[name], before[name]), name


@pytest.mark.parametrize("vocabulary", ["joint", "separate"])
def test_new_tag_begins_as_a_named_one(vocabulary: str, write_run: Write, tmp_path: Path) -> None:
    tied = "all" if vocabulary == "joint" else "decoder"
    base = write_run(
        "tokenizer.tags=[<2de>]",
        f"tokenizer.vocabulary={vocabulary}",
        f"model.tie_embeddings={tied}",
    )
    sections = with_initial_run(tmp_path / "old", base).model_dump()
    sections["tokenizer"]["tags"] = ["<2de>", "<2nl>"]
    sections["training"]["init_tags"] = {"<2nl>": "<2de>"}
    config = Config.model_validate(sections)
    new = extended_tokenizer(tmp_path / "old", config)
    model = build(config, new)
    load_weights_of_run(model, config, new)
    rows, tags = model.source_embedding.weight, new.source.tags
    assert torch.equal(rows[tags["<2nl>"]], rows[tags["<2de>"]])
    for wrong, message in (
        ({"<2nl>": "<2d>"}, "has no tag `<2d>`; did you mean `<2de>`?"),
        ({"<2n>": "<2de>"}, "`tokenizer.tags` does not name `<2n>`; did you mean `<2nl>`?"),
    ):
        sections["training"]["init_tags"] = wrong
        with pytest.raises(RunError, match=re.escape(message)):
            check_initial_run(Config.model_validate(sections), tmp_path / "old")


def test_rows_follow_the_tokens_of_another_tokenizer(write_run: Write, tmp_path: Path) -> None:
    config = write_run()
    run, other = tmp_path / "old", tmp_path / "other"
    write_run("tokenizer.algorithm=unigram", name="other", pairs=[*OLD_PAIRS, *NEW_PAIRS])
    old, new = (Tokenizer.load(folder / "tokenizer") for folder in (run, other))
    model = build(config, new)
    (*_, summary) = load_weights_of_run(model, with_initial_run(run, config), new)
    before = load_file(run / "model.safetensors")["target_embedding.weight"]
    after = model.target_embedding.weight.detach()
    known = {old.source.processor.id_to_piece(number): number for number in range(len(old.source))}
    tokens = [new.source.processor.id_to_piece(number) for number in range(len(new.source))]
    moved = [(number, known[token]) for number, token in enumerate(tokens) if token in known]
    assert any(here != there for here, there in moved)
    for here, there in moved:
        assert torch.equal(after[here], before[there])
    new_tokens = len(tokens) - len(moved)
    assert 0 < new_tokens < len(tokens)
    assert f"{len(moved)} rows copied, {new_tokens} new ones" in summary


@pytest.mark.parametrize(
    ("setting", "differences"),
    [
        ("model.d_model=64", "`model.d_model`: 64 here, 32 in RUN"),
        ("model.tie_embeddings=none", "`model.tie_embeddings`: none here, all in RUN"),
        (
            "model={d_model: 64, d_ff: 99, heads: 4, encoder_layers: 1, decoder_layers: 2}",
            "`model.d_model`: 64 here, 32 in RUN; `model.d_ff`: 99 here, 64 in RUN; "
            "`model.heads`: 4 here, 2 in RUN; `model.decoder_layers`: 2 here, 1 in RUN",
        ),
    ],
)
def test_run_of_another_model_is_an_error_that_names_the_keys(
    setting: str, differences: str, finished_run: Path, tiny_recipe: Path
) -> None:
    config = load_config(tiny_recipe, overrides=[setting])
    with pytest.raises(RunError) as caught:
        check_initial_run(config, finished_run)
    expected = f"{finished_run}: its model differs from the config: {differences}"
    assert str(caught.value) == expected.replace("RUN", str(finished_run))


@pytest.fixture(scope="session")
def other_recipe(
    tiny_recipe: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the tiny recipe for another corpus: the digits in Chinese and Greek."""
    folder = tmp_path_factory.mktemp("other")
    words = ["零", "一", "二", "三", "τεσσερα", "πεντε", "εξι", "七", "οκτω", "九"]
    translated = dict(zip(DIGITS, words, strict=True))
    for path in tiny_corpus.glob("*.en"):
        shutil.copy(path, folder)
        lines = [line.split() for line in path.read_text().splitlines()]
        text = "".join(f"{' '.join(translated[word] for word in line)}\n" for line in lines)
        (folder / f"{path.stem}.de").write_text(text, encoding="utf-8")
    recipe = folder / "other.yaml"
    recipe.write_text(tiny_recipe.read_text().replace(str(tiny_corpus), str(folder)))
    return recipe


def record_first_weights(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Record the weights of the first update of a training."""
    recorded: list[dict[str, Tensor]] = []
    run_update = Trainer.run_update

    def recording(trainer: Trainer, planned: PlannedUpdate) -> None:
        weights = parameter_tensors(trainer.learner.model)
        recorded.append({name: each.clone() for name, each in weights.items()})
        run_update(trainer, planned)

    monkeypatch.setattr(Trainer, "run_update", recording)
    return recorded


def test_run_begins_with_weights_and_tokenizer_of_another(
    finished_run: Path,
    tiny_recipe: Path,
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, recorded = tmp_path / "run", record_first_weights(monkeypatch)
    options = ["--run", run, "--set", "training.max_updates=1", "--set", "training.ema_decay=0.9"]
    # At this rate weights and averages stay what they were.
    options += ["--set", "seed=2", "--set", "training.learning_rate=1e-30"]
    options += ["--set", f"training.init_from={finished_run}"]
    status, _, err = program("train", tiny_recipe, *options)
    assert status == 0
    assert f"begins with the weights of {finished_run}\nvocabulary: 300 rows copied\n" in err
    old, new = (load_file(path / "model.safetensors") for path in (finished_run, run))
    assert old.keys() == recorded[0].keys()
    for name, tensor in recorded[0].items():
        assert torch.equal(tensor, old[name])
        torch.testing.assert_close(new[name], old[name])
    for file in ("tokenizer/joint.model", "tokenizer/tokenizer.json"):
        assert (run / file).read_bytes() == (finished_run / file).read_bytes()
    assert load_config(run / "config.yaml").training.init_from == finished_run
    corpora = json.loads((run / "corpora.json").read_text())
    assert corpora["init_from"] == {"weights": hash_file(finished_run / "model.safetensors")}


@pytest.fixture(scope="session")
def whole(finished_run: Path, other_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an uninterrupted fine-tuning with new tokens and a frozen encoder."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    settings = ["tokenizer.added_tokens=20", "max_updates=4", "validate_every=2", "keep_last=9"]
    settings += ["freeze=[encoder]", f"init_from={finished_run}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        train_with(other_recipe, run, *settings)
    return run


@pytest.mark.parametrize(("killed_at", "saved"), [(0, []), (2, [0]), (4, [0, 2])])
def test_killed_fine_tuning_gives_the_same_result_even_without_its_origin(
    killed_at: int, saved: list[int], whole: Path, finished_run: Path, tmp_path: Path
) -> None:
    origin = Path(shutil.copytree(finished_run, tmp_path / "origin"))
    settings = [f"init_from={origin}", "max_updates=4", "validate_every=2"]
    recipe = whole / "config.yaml"
    run, save = tmp_path / "run", Checkpoints.save

    def killed(self: Checkpoints, learner: Learner, state: TrainState) -> None:
        if state.update < killed_at:
            save(self, learner, state)
        else:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            train_with(recipe, run, *settings)
    assert RunFolder(run).checkpoints.updates() == saved
    if saved:
        shutil.rmtree(origin)
    train_with(recipe, run, *settings)
    for file in ("model.safetensors", "corpora.json", "tokenizer/joint.model"):
        assert (run / file).read_bytes() == (whole / file).read_bytes(), file
    resumed = [event["update"] for event in journal(run, "resume")]
    assert resumed == saved[-1:]


@pytest.mark.parametrize(("rate", "kept"), [("1.0", True), ("1e-3", False)])
def test_final_model_is_the_start_where_training_does_not_improve_it(
    rate: str, kept: bool, finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = ["max_updates=8", "validate_every=2", "best_metric=loss", "schedule=constant"]
    settings += ["keep_best=1", "target_tokens_per_update=150", f"learning_rate={rate}"]
    text = train_with(tiny_recipe, run, *settings, f"init_from={finished_run}")
    first, *others = journal(run, "validation")
    best = min(others, key=lambda event: event["loss"])
    assert first["update"] == 0
    assert first["loss"] == pytest.approx(journal(finished_run, "final")[0]["loss"], abs=1e-5)
    assert (best["loss"] > first["loss"]) == kept
    (final,) = journal(run, "final")
    assert (final["averaged_updates"] == [0]) == kept
    assert (f"the final model is that of {finished_run}" in text) == kept
    old, new = (load_file(path / "model.safetensors") for path in (finished_run, run))
    assert all(torch.equal(old[name], new[name]) for name in old) == kept


def test_run_of_the_reverse_direction_is_an_error(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    data = load_config(tiny_recipe).data
    reverse = [f"data.source_language={data.target_language}"]
    reverse += [f"data.target_language={data.source_language}"]
    with pytest.raises(RunError, match=r"^`training\.init_from`: .* translates "):
        train_with(tiny_recipe, tmp_path / "run", *reverse, f"init_from={finished_run}")


def test_origin_whose_tokenizer_has_the_other_layout_is_an_error(
    write_run: Write, tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = ["tokenizer.vocabulary=separate", "model.tie_embeddings=decoder"]
    write_run("model.tie_embeddings=decoder")
    with pytest.raises(ConfigError, match=r"`training\.init_from` .*/old: its vocabulary is joint"):
        train_with(tiny_recipe, tmp_path / "a", *settings, f"training.init_from={tmp_path}/old")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("gone", r"/tin: .*did you mean `tiny`\?$"),
        ("unfinished", r"/tiny: .*model\.json"),
        ("flipped", r"/tiny/model\.safetensors: damaged"),
        ("tokenizer", r"/tiny/tokenizer/joint\.model: damaged"),
        ("empty", r"/tiny: .*config\.yaml"),
    ],
)
def test_unusable_origin_is_an_error_before_any_work(
    damage: str, message: str, finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    origin = Path(shutil.copytree(finished_run, tmp_path / "tiny"))
    flipped = {"flipped": "model.safetensors", "tokenizer": "tokenizer/joint.model"}
    if damage == "unfinished":
        (origin / "model.json").unlink()
    elif damage == "empty":
        (origin / "config.yaml").unlink()
    elif damage in flipped:
        flip_bit(origin / flipped[damage])
    named = tmp_path / "tin" if damage == "gone" else origin
    run = tmp_path / "run"
    with pytest.raises(RunError, match=message):
        train_with(tiny_recipe, run, f"training.init_from={named}")
    made = run.iterdir() if run.exists() else ()
    assert not [path.name for path in made if path.name[0] != "."]
    if damage == "gone":  # the folder can be used for another try
        train_with(tiny_recipe, run, "training.max_updates=1", f"training.init_from={origin}")


def part_of(name: str) -> str:
    """Return the part that a parameter belongs to, by the module at the head of its name."""
    (part,) = (part for part, modules in PARTS.items() if name.split(".")[0] in modules)
    return part


@pytest.mark.parametrize(
    ("tied", "frozen"),
    [
        ("none", ["source_embedding"]),
        ("none", ["target_embedding", "output", "decoder"]),
        ("decoder", ["encoder", "source_embedding"]),
        ("all", ["source_embedding", "target_embedding", "output"]),
    ],
)
def test_frozen_parts_stay_and_do_not_count_in_the_gradient_norm(
    tied: str, frozen: list[str]
) -> None:
    whole = transformer(tie_embeddings=tied, residual="pre", positional="learned")
    made = copy.deepcopy(whole)
    batch = collate(examples(4))
    (TrainingPass(whole, 0.1)(batch).smoothed / batch.target_tokens).backward()
    squares = [
        float(parameter.grad.square().sum())
        for name, parameter in whole.named_parameters()
        if parameter.grad is not None and part_of(name) not in frozen
    ]
    choose_weights(made, TrainingConfig.model_validate({"freeze": frozen}))
    before = {name: each.detach().clone() for name, each in made.named_parameters()}
    learning = learner(made, clip=0.5)
    norms = [
        each.gradient_norm
        for each in fetch_metrics([train_step(learning, [batch], 0.01) for _ in range(3)])
    ]
    assert norms[0] == pytest.approx(sum(squares) ** 0.5, rel=1e-5)
    for name, parameter in made.named_parameters():
        stays = part_of(name) in frozen
        assert torch.equal(parameter, before[name]) == stays, name
        assert (parameter not in learning.optimizer.state) == stays, name


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_tokens_with_the_same_translations_begin_with_similar_rows(tied: str) -> None:
    model, plain = (transformer(tie_embeddings=tied, d_model=64) for _ in range(2))
    likely = {(5, 9): 1.0, (6, 10): 0.5, (6, 11): 0.01, (7, 10): 0.5, (8, 12): 0.5, (8, 13): 0.5}
    keys = torch.tensor([source << 32 | target for source, target in likely])
    translate_embeddings(model, TranslationTable(keys, torch.tensor([*likely.values()])))
    source, target = model.source_embedding.weight, model.target_embedding.weight

    def angle(one: Tensor, other: Tensor) -> float:
        return float(F.cosine_similarity(one, other, dim=0).detach())

    for rows in (target, model.output.weight):
        for pair in ((5, 9), (6, 10), (7, 10), (8, 12), (8, 13)):
            assert angle(source[pair[0]], rows[pair[1]]) > 0.9
        assert 0.9 < angle(rows[12], rows[13]) < 0.9999  # they stay different
        assert abs(angle(rows[9], rows[10])) < 0.5
    assert angle(source[6], source[7]) > 0.9
    for matrix in ("source_embedding", "target_embedding", "output"):
        rows, drawn = (getattr(each, matrix).weight for each in (model, plain))
        torch.testing.assert_close(rows.norm(dim=1), drawn.norm(dim=1))
        moved = (rows != drawn).any(dim=1).nonzero().flatten().tolist()
        sides = {"source_embedding": [5, 6, 7, 8]} if tied != "all" else {}
        everything = [*range(5, 11), 12, 13]
        assert moved == sides.get(matrix, everything if tied == "all" else [9, 10, 12, 13])


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_cleared_layers_pass_their_input_on(activation: str) -> None:
    model, plain = (transformer(feed_forward=activation) for _ in range(2))
    clear_sublayers(model)
    x = torch.randn(2, 3, model.source_embedding.weight.shape[1])
    norm = torch.nn.LayerNorm(x.shape[-1], eps=NORM_EPSILON)
    for layer in model.encoder:
        torch.testing.assert_close(layer(x, EVERYWHERE, model.encoder_positional), norm(norm(x)))
    drawn = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        is_last = name.endswith(("attention.output.weight", "feed_forward.outer.weight"))
        assert torch.equal(parameter, drawn[name]) != is_last, name
        assert bool(parameter.any()) == bool(drawn[name].any() and not is_last), name


@pytest.mark.parametrize("beginning", ["init_embeddings=translations", "init_sublayers=zero"])
def test_training_begins_with_chosen_weights_once(
    tiny_recipe: Path, tmp_path: Path, beginning: str
) -> None:
    settings = [beginning, "validate_every=5"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train_with(tiny_recipe, whole, *settings, "max_updates=10")
    train_with(tiny_recipe, stopped, *settings, "max_updates=5")
    train_with(tiny_recipe, stopped, *settings, "max_updates=10")
    random = tmp_path / "random"
    train_with(tiny_recipe, random, "validate_every=5", "max_updates=10")
    found = [(run / "model.safetensors").read_bytes() for run in (whole, stopped, random)]
    assert found[0] == found[1] != found[2]
    with pytest.raises(ConfigError, match="is for new weights, but `training.init_from` names"):
        load_config(
            tiny_recipe,
            overrides=[f"training.{each}" for each in (*settings, f"init_from={whole}")],
        )
