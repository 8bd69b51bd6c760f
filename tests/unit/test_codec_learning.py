"""How codecs learn: relaxed choices, codebooks that follow, schedules, and whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import allformer as af
from allformer.checkpoint.codec import load_codec
from allformer.checkpoint.convert import convert
from allformer.checkpoint.run import load_run
from allformer.checkpoint.weights import read_tensors
from allformer.codecs import DVAE, VQVAE
from allformer.codecs.codebook import Codebook
from allformer.codecs.gumbel import divergence, gumbel_noise, idleness, relaxed, straight_through
from allformer.codecs.laplace import at_least
from allformer.core.taps import listen
from allformer.errors import ConfigError
from allformer.images import load_processor
from allformer.train.loop import train
from allformer.train.objectives.image_codec import ImageCodec
from allformer.train.pictures.codec_options import Gumbel, Nearest
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, make_recipe
from tests.drawn import write_idx

# --- relaxed codes --------------------------------------------------------------------------------


def logits(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 5, 3, 4, generator=generator, dtype=torch.float64)


def check_limits() -> None:
    """Towards temperature 0 the best code has all, towards ∞ all have the same."""
    scores, noise = logits(), gumbel_noise(logits())
    cold, warm = relaxed(scores, 1e-4, noise), relaxed(scores, 1e6, noise)
    best = F.one_hot((scores + noise).argmax(1), 5).movedim(-1, 1).double()
    assert torch.allclose(cold, best, atol=1e-6)
    assert torch.allclose(warm, torch.full_like(warm, 0.2), atol=1e-5)


def check_draws() -> None:
    """With the noise, the best code is drawn as often as softmax says."""
    torch.manual_seed(0)
    scores = torch.tensor([0.0, 1.0, 2.0, -1.0], dtype=torch.float64)
    many = scores[None, :, None, None].expand(1, 4, 200, 200)
    drawn = relaxed(many, 0.5, gumbel_noise(many)).argmax(1).flatten().bincount(minlength=4)
    assert torch.allclose(drawn.double() / 40_000, scores.softmax(0), atol=0.01)


def check_straight_through() -> None:
    """One code forwards, the gradient of the relaxed ones backwards."""
    scores = logits().requires_grad_(True)
    noise = gumbel_noise(scores.detach())
    weights = logits(1)
    soft = relaxed(scores, 0.7, noise)
    hard = straight_through(soft)
    assert set(hard.detach().round(decimals=9).flatten().tolist()) == {0.0, 1.0}
    assert torch.equal(hard.detach().argmax(1), soft.argmax(1))
    (one,) = torch.autograd.grad((hard * weights).sum(), scores, retain_graph=True)
    (other,) = torch.autograd.grad((soft * weights).sum(), scores)
    assert torch.allclose(one, other)


def test_relaxed_codes_have_their_limits():
    check_limits()


def test_codes_are_drawn_as_softmax_says():
    check_draws()


def test_straight_through_is_hard_forwards_and_soft_backwards():
    check_straight_through()


def test_divergence_is_0_of_equal_codes_and_log_v_of_one():
    assert torch.allclose(divergence(torch.zeros(1, 8, 2, 2)), torch.zeros(1, 2, 2), atol=1e-6)
    one = torch.zeros(1, 8, 1, 1)
    one[0, 3] = 1e4
    assert divergence(one).item() == pytest.approx(2.0794415)


def check_idle() -> None:
    """Of a batch, not of its images: each may have one code, as long as they differ."""
    keep = torch.ones(4)
    apart, alike = torch.eye(4), torch.eye(4)[:1].expand(4, 4)
    assert idleness(apart, keep).item() == pytest.approx(0.0, abs=1e-6)
    assert idleness(alike, keep).item() == pytest.approx(1.3862944)
    kept = torch.tensor([1.0, 1.0, 0.0, 0.0])  # filler counts for nothing
    assert idleness(apart, kept).item() == pytest.approx(0.6931472)


def test_codes_are_idle_where_a_batch_uses_few():
    check_idle()


def test_a_floor_bounds_the_scale_and_leaves_larger_ones():
    raw = torch.tensor([-50.0, -4.0, 0.0, 20.0], requires_grad=True)
    floored = at_least(raw, -4.0)
    assert (floored >= -4).all()
    assert floored[2:].tolist() == pytest.approx([0.0181, 20.0], abs=1e-3)
    floored[1:].sum().backward()
    assert raw.grad is not None
    assert (raw.grad[1:] > 0).all()


# --- the codebook ---------------------------------------------------------------------------------


def check_follows() -> None:
    """Counts and sums are moving means, vectors their quotient; by the definition, code by code."""
    torch.manual_seed(0)
    book = Codebook(4, 3).double()
    book.reset_parameters()
    counts, sums = book.counts.clone(), book.sums.clone()
    for step in range(5):
        rows = torch.randn(20, 3, dtype=torch.float64)
        ids = book.nearest(rows) if step else torch.arange(20) % 4
        book.follow(rows, ids, 0.9, 0.0)
        for code in range(4):
            own = rows[ids == code]
            counts[code] = 0.9 * counts[code] + 0.1 * len(own)
            sums[code] = 0.9 * sums[code] + 0.1 * own.sum(0)
        smooth = (counts + 1e-5) / (counts.sum() + 4e-5) * counts.sum()
        assert torch.allclose(book.counts, counts)
        assert torch.allclose(book.vectors, sums / smooth[:, None])


def check_restarts() -> None:
    """A code that nothing is near begins anew at one of the vectors; the others go on."""
    torch.manual_seed(0)
    book = Codebook(3, 2).double()
    book.reset_parameters()
    book.counts.copy_(torch.tensor([5.0, 5.0, 0.2]))
    book.sums.copy_(torch.tensor([[0.0, 0.0], [5.0, 5.0], [200.0, 200.0]]))
    rows = torch.rand(30, 2, dtype=torch.float64)
    ids = (rows.sum(1) > 1).long()
    book.follow(rows, ids, 0.99, 1.0)
    assert (book.vectors[2] - rows).abs().sum(1).min() < 1e-4
    assert book.counts[2] == 1.0
    assert (book.vectors[1] - 1).abs().max() < 0.1


def test_the_codebook_follows_what_it_stands_for():
    check_follows()


def test_dead_codes_begin_anew():
    check_restarts()


def test_filler_moves_no_codebook():
    torch.manual_seed(0)
    one, other = Codebook(4, 3), Codebook(4, 3)
    for book in (one, other):
        torch.manual_seed(1)
        book.reset_parameters()
    rows, ids = torch.randn(6, 3), torch.arange(6) % 4
    keep = torch.tensor([1.0, 1, 1, 1, 0, 0])
    one.follow(rows[:4], ids[:4], 0.9, 0.0)
    other.follow(rows, ids, 0.9, 0.0, keep)
    assert torch.allclose(one.vectors, other.vectors)
    assert torch.allclose(one.counts, other.counts)


def check_only_training_moves() -> None:
    """Validation and a look at a step leave the codebook as it is."""
    tree = VQVAE(codes=6, image=(8, 8), channels=1, hidden=8, groups=2, start=4, dim=3)
    codec: Any = af.build(tree, seed=0)
    before = codec.codebook.vectors.clone()
    pixels = torch.rand(2, 1, 8, 8)
    codec.eval().learn(pixels)
    assert torch.equal(codec.codebook.vectors, before)
    codec.train()
    with listen(lambda name, x: None):
        codec.learn(pixels)
    assert torch.equal(codec.codebook.vectors, before)
    codec.learn(pixels)
    assert not torch.equal(codec.codebook.vectors, before)


def test_only_a_step_of_training_moves_the_codebook():
    check_only_training_moves()


# --- schedules and whole runs ---------------------------------------------------------------------


def test_temperature_and_weight_go_along_half_a_cosine():
    asked = Gumbel(temperature=(1.0, 0.25), anneal=100, kl=2.0, kl_warmup=10)
    assert asked.now(0) == (1.0, 0.0)
    assert asked.now(50).temperature == pytest.approx(0.625)
    assert asked.now(5).weight == pytest.approx(1.0)
    assert asked.now(100) == asked.now(5_000) == (0.25, 2.0)
    assert Nearest().now(7).weight == 0.25


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_idx(tmp_path_factory.mktemp("data") / "halves", train=90, test=20)


WAYS = {
    "gumbel": ("dvae-28", {"anneal": 8, "kl": 0.5, "kl_warmup": 4, "spread": 0.5}),
    "nearest": ("vq-28", {"restart": 0.5}),
}


def recipe(data: Path, way: str = "gumbel", **train: Any) -> Recipe:
    preset, options = WAYS[way]
    change = {"hidden": 8, "codes": 8, "groups": 2, "per_group": 1, "start": 8}
    usual = {"steps": 8, "batch_rows": 20, "validate_every": 4, "save_every": 4}
    return make_recipe(
        {
            "objective": {"is": "image-codec", "codes": way, **options},
            "data": {"path": str(data), "hold_out": 15},
            "model": {"preset": preset, "change": change},
            "optim": {"name": "adamw", "rate": 3e-3},
            "schedule": {"kind": "constant", "warmup": 2},
            "train": {**usual, **train},
            "log": {"every": 4, "tensorboard": False},
        }
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_a_codec_and_goes_on_exactly_where_it_stopped(way, data, tmp_path):
    once = train(recipe(data, way), tmp_path / "once", device="cpu")
    row = once.rows[-1]
    assert row["validation_psnr"] == pytest.approx(
        -10 * torch.tensor(row["validation_mse"]).log10().item(), rel=1e-5
    )
    assert 1 <= row["validation_codes_perplexity"] <= 8
    assert 1 / 8 <= row["validation_codes_used"] <= 1
    train(recipe(data, way, steps=4), tmp_path / "twice", device="cpu")
    train(None, tmp_path / "twice", device="cpu", resume=True, overrides=["train.steps=8"])
    first, second = (read_tensors(tmp_path / name) for name in ("once", "twice"))
    assert all(torch.equal(x, second[name]) for name, x in first.items())
    codec = load_codec(tmp_path / "once")
    assert codec.config.image == (8, 8)
    assert load_run(tmp_path / "once").tokenizer is None
    pixels = load_processor(tmp_path / "once")([torch.full((8, 8), 255, dtype=torch.uint8).numpy()])
    assert pixels.max() == 1.0
    assert codec.encode(pixels).shape == (1, 16)
    certificate = convert(tmp_path / "once", tmp_path / "converted")
    assert certificate["sound"]
    assert [row["output"] for row in certificate["outputs"]] == ["encoder", "images"]
    shown = Predictions.load(tmp_path / "once")
    assert shown is not None
    assert len(shown.pictures) == 15
    assert all(one.image and one.again and one.score is not None for one in shown.pictures)


def test_filler_of_a_frame_counts_for_nothing(data):
    """The loss of a batch that is filled up is that of its own images."""
    for way in WAYS:
        objective = ImageCodec(recipe(data, way))
        objective.open()
        objective.encode(None, lambda line: None)
        tree = objective.config(None)
        index = torch.arange(13).numpy()
        found = []
        for frame in (None, objective.frame()):
            model: Any = af.build(tree, seed=0).eval()  # no codebook moves
            batch = objective.collate(objective.examples(0), index, frame)
            assert batch.tokens == 13
            assert objective.counts(batch) == (13 * 64,)
            torch.manual_seed(0)
            noisy = DVAE in type(tree).__mro__
            if noisy:  # the same noise for the same images
                monkey = torch.Generator().manual_seed(0)
                fixed = -torch.empty(20, 8, 4, 4).exponential_(generator=monkey).log()
                with pytest.MonkeyPatch.context() as patcher:
                    name = "allformer.codecs.dvae.gumbel_noise"
                    patcher.setattr(name, lambda x, fixed=fixed: fixed[: len(x)])
                    loss, nll = objective.loss(model, batch)
            else:
                loss, nll = objective.loss(model, batch)
            found.append((loss.item(), nll.item()))
        assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_what_a_step_reads_changes_in_place(data):
    objective = ImageCodec(recipe(data))
    objective.at(2)
    now = objective.now(torch.device("cpu"))
    before = now.temperature.item(), now.weight.item()
    objective.at(8)
    assert (now.temperature.item(), now.weight.item()) == pytest.approx((1 / 16, 0.5))
    assert before != (now.temperature.item(), now.weight.item())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"preset": "vq-28"}}, "teaches a DVAE, but the model is a VQVAE; try objective"),
        ({"model": {"patch": 4}}, "the model is a EncoderOnly; try model: {preset: dvae-28}"),
        ({"model": {"preset": "dvae28"}}, "did you mean dvae-28"),
        ({"train": {"recompute": "layers"}}, "train.recompute='layers' is for Transformers"),
        ({"train": {"smoothing": 0.1}}, "train.smoothing=0.1"),
        ({"data": {"mean": [0.5]}}, "data.mean=(0.5,) is for models that normalise"),
        ({"objective": {"commitment": 1.0}}, "belongs to nearest"),
        ({"objective": {"temperature": [1.0, 0.0]}}, "two numbers above 0"),
        ({"model": {"preset": "dall-e-dvae", "change": {"groups": 5}}}, "multiples of 16 pixels"),
        ({"tokenizer": {"kind": "bpe"}}, "is for text"),
    ],
)
def test_what_cannot_be_taught_is_refused(change, said, data):
    given: dict[str, Any] = {
        "objective": {"is": "image-codec", **change.pop("objective", {})},
        "data": {"path": str(data), **change.pop("data", {})},
        "model": {"preset": "dvae-28"},
        **change,
    }
    with pytest.raises(ConfigError) as error:
        tried(given)
    assert said in str(error.value)


def tried(given: Any) -> None:
    """As far as a run gets before its first step."""
    objective = ImageCodec(make_recipe(given))
    objective.open()
    objective.config(None)
