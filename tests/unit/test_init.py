"""Fresh weights: the right size for each part, reproducible, no two layers alike."""

from __future__ import annotations

import math

import pytest
import torch

from allformer.config import Learned, LMHead
from allformer.core.linear import Fused
from allformer.core.model import build
from allformer.core.norm import LayerNorm, RMSNorm
from allformer.core.table import Embedding
from allformer.families import preset
from allformer.families.original import transformer
from tests.models import KINDS, SPREAD, decoder_only, right_padding, tokens


def check_first_loss(norm_at: str, tied: bool) -> None:
    """Logits of variance about 1 cost about ½ more than a guess: ln V + ½."""
    head = LMHead(tied=tied)
    model = build(transformer(128, 4, 256, 2, vocab=900, norm_at=norm_at, head=head), seed=0).eval()
    source, labels = tokens(8, 50, 1, vocab=900), tokens(8, 48, 2, vocab=900)
    with torch.no_grad():
        out = model(source, right_padding([50, 40, 30, 20] * 2, 50), labels=labels)
    assert abs(out.loss.item() - math.log(900) - 0.5) < 0.35
    assert 0.7 < out.logits.std() < 1.3


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("norm_at", ["post", "pre"])
def test_the_first_loss_is_near_that_of_a_guess(norm_at, tied):
    check_first_loss(norm_at, tied)


def check_fused() -> None:
    """Glorot's bound √(6 / (in + out)) from each projection's own size, not from the three's."""
    model = build(decoder_only(KINDS["decoder modern"].decoder.blocks[0], dim=240), seed=0)
    seen = 0
    for module in model.modules():
        if isinstance(module, Fused):
            for name, rows in module.parts.items():
                bound = math.sqrt(6 / (module.in_features + rows))
                largest = module.part(name)[0].abs().max().item()
                assert 0.985 * bound < largest <= bound, name
                seen += 1
    assert seen == 6


def test_the_parts_of_a_fused_matrix_are_drawn_one_by_one():
    check_fused()


def test_embeddings_norms_and_biases_start_as_they_should():
    model = build(preset("original-tiny"), seed=0)
    embedding = model.encoder.source.embedding.weight
    assert abs(embedding.std().item() * math.sqrt(128) - 1) < 0.02
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            assert (p == 0).all(), name
    for config in (KINDS["encoder paper"], KINDS["encoder modern"]):
        norms = [m for m in build(config, seed=0).modules() if isinstance(m, LayerNorm | RMSNorm)]
        assert norms
        assert all((norm.weight == 1).all() for norm in norms)
    positions = build(decoder_only(position=Learned(500)), seed=0).decoder.source.position.weight
    assert abs(positions.std().item() * math.sqrt(24) - 1) < 0.03


@pytest.mark.parametrize("name", SPREAD)
def test_no_parameter_is_left_uninitialised(name):
    torch.use_deterministic_algorithms(True)  # fresh memory then holds NaN
    try:
        assert torch.empty(3).isnan().all()
        model = build(SPREAD[name], seed=0)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(p.isfinite().all() for p in model.parameters())


def check_seed() -> None:
    """The same seed gives the same weights and leaves the global random state alone."""
    config = KINDS["seq2seq modern"]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = build(config, seed=7).state_dict()
    assert torch.equal(torch.get_rng_state(), state), "build(seed=…) moved the global random state"
    torch.manual_seed(6)
    two, other = build(config, seed=7).state_dict(), build(config, seed=8).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    differ = [name for name in one if not torch.equal(one[name], other[name])]
    assert "encoder.layers.0.attention.qkv.weight" in differ


def test_a_seed_fixes_the_weights_without_touching_the_global_state():
    check_seed()


def test_without_a_seed_the_global_state_decides():
    config = KINDS["encoder paper"]
    torch.manual_seed(1)
    one, two = build(config).state_dict(), build(config).state_dict()
    torch.manual_seed(1)
    again = build(config).state_dict()
    name = "encoder.layers.0.feed.up.weight"
    assert torch.equal(one[name], again[name])
    assert not torch.equal(one[name], two[name])


def check_no_twins(kind: str) -> None:
    """No layer twice, no two layers equal, no storage shared except the tied tables."""
    model = build(KINDS[kind], seed=0)
    layers = [layer for name in ("encoder", "decoder") if hasattr(model, name)
              for layer in getattr(model, name).layers]  # fmt: skip
    assert len({id(layer) for layer in layers}) == len(layers)
    matrices = [(n, p) for n, p in model.named_parameters(remove_duplicate=False) if p.ndim == 2]
    for i, (name, p) in enumerate(matrices):
        for other, q in matrices[:i]:
            same = p.shape == q.shape and torch.equal(p, q)
            assert not same or {"embedding", "table"} & {
                name.split(".")[-2],
                other.split(".")[-2],
            }, f"{name} equals {other}"
    storages = [p.untyped_storage().data_ptr() for p in model.parameters()]
    assert len(set(storages)) == len(storages)


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_layers_share_or_equal_each_other(kind):
    check_no_twins(kind)


def check_sharing() -> None:
    """One table for source, target and output (section 3.4); as many as asked for otherwise."""

    def tables(name: str) -> int:
        return len(
            {id(m) for m in build(SPREAD[name], seed=0).modules() if isinstance(m, Embedding)}
        )

    assert tables("seq2seq paper") == 1
    assert tables("shared but untied") == 2
    assert tables("apart but tied") == 2
    assert tables("two vocabularies") == 3
    model = build(SPREAD["seq2seq paper"], seed=0)
    assert model.encoder.source.embedding is model.decoder.source.embedding is model.head.table
    tied = build(SPREAD["apart but tied"], seed=0)
    assert tied.head.table is tied.decoder.source.embedding


def test_tables_are_shared_as_the_config_says():
    check_sharing()


def test_weights_survive_a_state_dict_and_a_change_of_dtype():
    for kind, config in KINDS.items():
        model, twin = build(config, seed=1).eval(), build(config, seed=2).eval()
        missing = twin.load_state_dict(model.state_dict())
        assert not missing.missing_keys
        inputs = {"input_ids": tokens(2, 12)}
        if kind.startswith("seq2seq"):
            inputs["decoder_input_ids"] = tokens(2, 9)
        with torch.no_grad():
            assert torch.equal(model(**inputs).logits, twin(**inputs).logits)
            assert twin.bfloat16()(**inputs).logits.dtype == torch.bfloat16
            assert twin.double()(**inputs).logits.dtype == torch.float64
