"""Optimisers by name: torch's own steps, Muon's formula, decay as modules say, and refusals."""

from __future__ import annotations

from copy import deepcopy
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from allformer.core.block import Block
from allformer.core.model import build
from allformer.core.starts import decay_groups
from allformer.errors import ConfigError
from allformer.train.optim import Adafactor, Adam, AdamW, Muon, Optim, Sgd, make_optimizer
from allformer.train.optim.muon import Orthogonal, hidden_matrices, newton_schulz
from tests.models import SPREAD, decoder_only, tokens

RATE, STEPS = 0.01, 3
EVERY = [
    AdamW(weight_decay=0.1),
    Adam(weight_decay=0.1),
    Adafactor(weight_decay=0.1),
    Muon(),
    Sgd(weight_decay=0.1, nesterov=True),
    Sgd(momentum=0.0),
]


def fresh(dtype: torch.dtype = torch.float64) -> nn.Module:
    """The same small decoder each time."""
    return build(decoder_only(), seed=0).to(dtype)


def give_gradients(model: nn.Module, seed: int) -> None:
    """Random ones, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)


def run(model: nn.Module, optimizer: torch.optim.Optimizer, seeds=range(STEPS)) -> None:
    for seed in seeds:
        give_gradients(model, seed)
        optimizer.step()


def ours(settings: Optim, model: nn.Module) -> torch.optim.Optimizer:
    return make_optimizer(settings, model, lr=RATE, capturable=False)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(a: nn.Module, b: nn.Module, atol: float = 0.0) -> None:
    for (name, x), y in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


THEIRS = {
    AdamW(weight_decay=0.1, betas=(0.8, 0.9), eps=1e-6): lambda groups: torch.optim.AdamW(
        groups, lr=RATE, betas=(0.8, 0.9), eps=1e-6, foreach=False
    ),
    Adam(weight_decay=0.1): lambda groups: torch.optim.Adam(
        groups, lr=RATE, betas=(0.9, 0.98), eps=1e-9, foreach=False
    ),
    Adafactor(weight_decay=0.1, threshold=2.0): lambda groups: torch.optim.Adafactor(
        groups, lr=RATE, d=2.0, foreach=False
    ),
    Sgd(weight_decay=0.1, nesterov=True): lambda groups: torch.optim.SGD(
        groups, lr=RATE, momentum=0.9, nesterov=True, foreach=False
    ),
    Sgd(momentum=0.0): lambda groups: torch.optim.SGD(groups, lr=RATE, foreach=False),
}


@pytest.mark.parametrize("settings", THEIRS, ids=repr)
def test_the_steps_are_torchs_own(settings):
    mine, yours = fresh(), fresh()
    run(mine, ours(settings, mine))
    run(yours, THEIRS[settings](decay_groups(yours, settings.weight_decay)))
    assert_same(mine, yours, atol=1e-12)
    assert not torch.equal(next(iter(mine.parameters())), next(iter(fresh().parameters())))


def numpy_muon(w, grads, decay, momentum=0.95):
    """Jordan's post and Liu et al.'s scale, in NumPy: one matrix, all steps."""
    buffer = np.zeros_like(w)
    for g in grads:
        buffer = momentum * buffer + (1 - momentum) * g
        x = momentum * buffer + (1 - momentum) * g  # Nesterov
        tall = x.shape[0] > x.shape[1]
        x = (x.T if tall else x) / np.linalg.norm(x)
        for _ in range(5):
            s = x @ x.T
            x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
        w = w - RATE * decay * w - RATE * 0.2 * np.sqrt(max(w.shape)) * (x.T if tall else x)
    return w


def gradients_of(name: str) -> list[np.ndarray]:
    found = []
    for seed in range(STEPS):
        model = fresh()
        give_gradients(model, seed)
        found.append(dict(model.named_parameters())[name].grad.numpy())
    return found


def test_muon_is_its_formula_and_parts_of_a_fused_product_are_orthogonalised_apart():
    before, model = fresh(), fresh()
    run(model, ours(Muon(weight_decay=0.1), model))
    inside, parts = hidden_matrices(model), set()
    for name, weight in model.named_parameters():
        if weight in inside:
            start = before.get_parameter(name).detach().numpy()
            grads = gradients_of(name)
            for a, b in pairwise(np.cumsum([0, *inside[weight]])):
                wanted = numpy_muon(start[a:b], [g[a:b] for g in grads], 0.1)
                np.testing.assert_allclose(weight[a:b].detach(), wanted, rtol=0, atol=1e-12)
            parts.add((name.split(".")[-2], len(inside[weight])))
    assert {("qkv", 3), ("out", 1)} < parts


def test_muon_beside_has_adamw_for_all_else():
    model, yours = fresh(), fresh()
    run(model, ours(Muon(weight_decay=0.1), model))
    adamw = torch.optim.AdamW(decay_groups(yours, 0.1), lr=RATE, betas=(0.9, 0.95), foreach=False)
    run(yours, adamw)
    inside = {n for n, p in model.named_parameters() if p in hidden_matrices(model)}
    rest = dict(yours.named_parameters())
    for name, parameter in model.named_parameters():
        same = torch.allclose(parameter, rest[name], rtol=0, atol=1e-12)
        assert same == (name not in inside), name


def test_muon_agrees_with_torchs_on_whole_matrices():
    torch.manual_seed(0)
    mine = nn.ModuleList([nn.Linear(24, 24, bias=False), nn.Linear(24, 40, bias=False)])
    yours = deepcopy(mine)
    group = {"params": list(mine.parameters()), "rows": [(24,), (40,)], "weight_decay": 0.1}
    run(mine, Orthogonal([group], lr=RATE))
    run(yours, torch.optim.Muon(yours.parameters(), lr=RATE, adjust_lr_fn="match_rms_adamw"))
    # Both round to bf16, in other orders; a step moves a weight by about 0.2 · RATE.
    assert_same(mine, yours, atol=0.05 * 0.2 * RATE)


def test_singular_values_come_near_one_whatever_the_shape():
    torch.manual_seed(0)
    for shape in ((2, 16, 16), (3, 8, 32), (1, 32, 8)):
        values = torch.linalg.svdvals(newton_schulz(torch.randn(shape, dtype=torch.float64)))
        assert values.min() > 0.4
        assert values.max() < 1.3
    assert not newton_schulz(torch.zeros(1, 4, 4)).any()


@pytest.mark.parametrize("kind", SPREAD)
def test_muon_takes_the_decaying_matrices_of_layers_and_nothing_else(kind):
    model = build(SPREAD[kind], seed=0)
    found = hidden_matrices(model)
    layers = [m for m in model.modules() if isinstance(m, Block)]
    inside = {p for layer in layers for p in layer.parameters()}
    assert set(found) == inside & set(decay_groups(model, 0.1)[0]["params"])
    assert all(sum(rows) == len(p) and p.dim() == 2 for p, rows in found.items())


@pytest.mark.parametrize("settings", EVERY, ids=repr)
def test_only_what_modules_name_decays(settings):
    model = fresh()
    groups = ours(settings, model).param_groups
    for says, decay in zip(decay_groups(model, settings.weight_decay), (True, False), strict=True):
        for p in says["params"]:
            (group,) = (g for g in groups if any(p is q for q in g["params"]))
            assert group["weight_decay"] == (settings.weight_decay if decay else 0.0)
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))


@pytest.mark.parametrize("settings", EVERY, ids=repr)
def test_a_restored_state_gives_the_same_further_steps(settings):
    whole = fresh(torch.float32)
    optimizer = ours(settings, whole)
    run(whole, optimizer, range(2))
    file = BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = deepcopy(whole)
    restored = ours(settings, again)
    restored.load_state_dict(torch.load(file, weights_only=True))
    run(whole, optimizer, range(2, 5))
    run(again, restored, range(2, 5))
    assert_same(whole, again)
    for group in restored.param_groups:  # the loop sets the rate here
        group["lr"] = 0.0
    before = weights(again)
    run(again, restored, [7])
    assert all(torch.equal(p, before[name]) for name, p in again.named_parameters())


def test_two_behind_one_go_through_distributed_checkpoints():
    whole, again = fresh(), fresh()
    optimizer, restored = ours(Muon(), whole), ours(Muon(), again)
    run(whole, optimizer, range(2))
    run(again, restored, [5])
    again.load_state_dict(whole.state_dict())
    state = deepcopy(get_optimizer_state_dict(whole, optimizer))  # its tensors are those in use
    set_optimizer_state_dict(again, restored, state)
    run(whole, optimizer, [2])
    run(again, restored, [2])
    assert_same(whole, again)


@pytest.mark.parametrize("settings", EVERY, ids=repr)
def test_a_small_set_is_learnt(settings):
    model = fresh(torch.float32)
    optimizer = make_optimizer(settings, model, lr=settings.rate * 4, capturable=False)
    ids = tokens(4, 12)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("settings", [s for s in EVERY if s.clips_inside], ids=repr)
def test_gradients_are_scaled_inside_and_a_step_that_is_not_finite_changes_nothing(settings):
    scaled, plain = fresh(), fresh()
    one, two = ours(settings, scaled), ours(settings, plain)
    for broken in (True, False, True, False, False):  # the first step too
        give_gradients(scaled, 0)
        give_gradients(plain, 0)
        for p in scaled.parameters():
            p.grad *= float("nan") if broken else 4.0
        one.grad_scale = torch.tensor(4.0)
        one.found_inf = torch.tensor(float(broken))
        before = weights(scaled)
        one.step()
        if broken:
            assert all(torch.equal(p, before[n]) for n, p in scaled.named_parameters())
        else:
            two.step()
    assert_same(scaled, plain, atol=1e-12)


@pytest.mark.parametrize("settings", [s for s in EVERY if s.captures], ids=repr)
def test_a_rate_in_a_tensor_is_read_at_each_step(settings):
    written, plain = fresh(), fresh()
    rate = torch.tensor(0.5, dtype=torch.float64)
    one = make_optimizer(settings, written, lr=rate, capturable=False)
    rate.fill_(RATE)
    run(written, one)
    run(plain, ours(settings, plain))
    assert_same(written, plain, atol=1e-12)


def test_what_waits_for_the_device_is_not_captured():
    with pytest.raises(ConfigError, match=r"optim\.name=adafactor waits .* capturable=False"):
        make_optimizer(Adafactor(), fresh(), lr=RATE, capturable=True)


def test_muon_needs_layers():
    with pytest.raises(ConfigError, match=r"optim\.name=muon is for the matrices .* try adamw"):
        ours(Muon(), nn.Linear(3, 4))


def test_a_section_is_read_and_written_back():
    section = {"name": "adamw", "rate": "3e-4", "betas": [0.9, "95e-2"], "clip": None}
    assert Optim.read(section) == AdamW(rate=3e-4, betas=(0.9, 0.95), clip=None)
    assert Optim.read({}) == AdamW()
    assert Optim.read({"name": "sgd", "rate": 1}) == Sgd(rate=1.0)
    assert all(Optim.read(s.plain()) == s for s in EVERY)
    assert AdamW().plain()["betas"] == [0.9, 0.98]  # YAML knows no tuples


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"name": "adamx"},
            r"optim\.name='adamx' is not a choice; did you mean adam",
        ),
        (
            {"name": "sgd", "betas": [0.9, 0.95]},
            r"optim\.betas belongs to adamw, adam, muon, not to sgd; remove it, or choose "
            r"optim\.name=adamw",
        ),
        ({"momentum": 0.9}, r"optim\.momentum belongs to muon, sgd, not to adamw"),
        ({"rates": 0.9}, r"optim\.rates is not known; did you mean rate\?"),
        ({"rate": 0}, r"optim\.rate=0\.0 must be positive; try 1e-3"),
        ({"rate": "fast"}, r"optim\.rate='fast' must be float"),
        ({"rate": float("nan")}, r"optim\.rate=nan must be a finite number"),
        ({"clip": -1}, r"optim\.clip=-1\.0 must be positive; try 1\.0, or null"),
        ({"weight_decay": -0.1}, r"optim\.weight_decay=-0\.1 must be at least 0"),
        ({"betas": [0.9]}, r"optim\.betas=\(0\.9,\) must be two numbers; try \[0\.9, 0\.999\]"),
        ({"betas": [0.9, 1.0]}, r"optim\.betas\[1\]=1\.0 must be a probability, 0 <= p < 1"),
        ({"betas": 0.9}, r"optim\.betas=0\.9 must be two numbers"),
        ({"eps": 0.0}, r"optim\.eps=0\.0 must be positive; try 1e-8"),
        ({"name": "muon", "momentum": 1}, r"optim\.momentum=1\.0 must be a probability"),
        ({"name": "adafactor", "beta2_decay": 1}, r"optim\.beta2_decay=1\.0 must be at most 0"),
        ({"name": "sgd", "nesterov": True, "momentum": 0}, r"optim\.nesterov=True .*momentum=0"),
    ],
)
def test_what_cannot_be_is_refused_in_words(section, message):
    with pytest.raises(ConfigError, match=message):
        Optim.read(section)
