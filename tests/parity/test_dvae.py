"""DALL-E's dVAE against its formulas, written naively, in fp64 with loud weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import allformer as af
from allformer.codecs import DVAE, VQVAE, DVAEModel
from allformer.codecs.laplace import EPSILON, logit_laplace_nll, map_pixels, unmap_pixels
from tests.loud import make_loud

SIZES: dict[str, Any] = {
    "codes": 11, "image": (8, 12), "channels": 2, "hidden": 8, "groups": 3, "start": 6,
    "per_group": 2,
}  # fmt: skip


def loud(kind: Any = DVAE, **more: Any) -> Any:
    codec: Any = af.build(kind(**SIZES, **more), seed=1)
    return make_loud(codec.double())


def pixels(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(3, 2, 8, 12, generator=generator, dtype=torch.float64)


def convolved(x: torch.Tensor, state: Any, name: str) -> torch.Tensor:
    """Σ over the kernel, one place of it after the other; zeros at the edge."""
    w, b = state[f"{name}.w"], state[f"{name}.b"]
    reach = w.shape[-1] // 2
    padded = F.pad(x, (reach,) * 4)
    height, width = x.shape[2:]
    out = b[None, :, None, None].expand(len(x), -1, height, width)
    for i in range(w.shape[-2]):
        for j in range(w.shape[-1]):
            piece = padded[:, :, i : i + height, j : j + width]
            out = out + torch.einsum("bchw,oc->bohw", piece, w[:, :, i, j])
    return out


def block(x: torch.Tensor, state: Any, name: str, layers: int) -> torch.Tensor:
    """id(x) + 1/n² · conv(relu(conv(relu(conv(relu(conv(relu(x))))))))"""
    y = x
    for i in range(1, 5):
        y = convolved(y.relu(), state, f"{name}.res_path.conv_{i}")
    same = f"{name}.id_path.w" not in state
    return (x if same else convolved(x, state, f"{name}.id_path")) + y / layers**2


def half(x: torch.Tensor, state: Any, name: str, tree: DVAE) -> torch.Tensor:
    x = convolved(x, state, f"{name}.blocks.input")
    for group in range(1, tree.groups + 1):
        for number in range(1, tree.per_group + 1):
            path = f"{name}.blocks.group_{group}.block_{number}"
            x = block(x, state, path, tree.groups * tree.per_group)
        if group < tree.groups and name == "encoder":
            b, c, h, w = x.shape
            x = x.reshape(b, c, h // 2, 2, w // 2, 2).amax((3, 5))
        elif group < tree.groups:
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    return convolved(x.relu(), state, f"{name}.blocks.output.conv")


def check_halves() -> None:
    """Logits of the encoder, and what the decoder makes of codes."""
    codec = loud()
    state, x = codec.state_dict(), pixels()
    mapped = 0.8 * x + 0.1
    wanted = half(mapped, state, "encoder", codec.config)
    assert (codec.logits(codec.as_input(x)) - wanted).abs().max() < 1e-9 * wanted.abs().max()
    assert torch.equal(codec.encode(x), wanted.argmax(1).flatten(1))
    ids = torch.arange(18).reshape(3, 6) % 11
    hot = torch.zeros(3, 11, 2, 3, dtype=torch.float64)
    hot.scatter_(1, ids.reshape(3, 1, 2, 3), 1.0)
    painted = half(hot, state, "decoder", codec.config)
    wanted = ((1 / (1 + (-painted[:, :2]).exp()) - 0.1) / 0.8).clamp(0, 1)
    assert (codec.decode(ids) - wanted).abs().max() < 1e-9


def check_bound() -> None:
    """The loss of relaxed codes: −log p of each pixel, and KL(q ‖ uniform)."""
    codec = loud(floor=None)
    for half in (codec.encoder, codec.decoder):  # no density so small that fp64 has none for it
        half.blocks.output.conv.w.data.mul_(0.02)
    x = pixels()
    torch.manual_seed(5)
    nll, kl, use = codec.learn(x, 0.7)
    torch.manual_seed(5)
    logits = codec.logits(0.8 * x + 0.1)
    uniform = (-torch.empty_like(logits).exponential_()).exp()  # −log u is exponential
    noise = -(-uniform.log()).log()
    scores = ((logits + noise) / 0.7).exp()
    soft = scores / scores.sum(1, keepdim=True)
    mu, log_b = codec.decoder(soft).chunk(2, 1)
    y, b = 0.8 * x + 0.1, log_b.exp()
    density = (-((y / (1 - y)).log() - mu).abs() / b).exp() / (2 * b * y * (1 - y))
    wanted = -density.clamp_min(1e-300).log().sum((1, 2, 3))
    assert (nll - wanted).abs().max() < 1e-7 * wanted.abs().max()
    q = logits.exp() / logits.exp().sum(1, keepdim=True)
    assert torch.allclose(use, q.flatten(2).mean(2))
    wanted = (q * (q * 11).clamp_min(1e-300).log()).sum((1, 2, 3))
    assert (kl - wanted).abs().max() < 1e-9 * wanted.abs().max()


def check_laplace() -> None:
    """A density: it integrates to 1 over 0 … 1, and its logit is Laplace's."""
    grid = torch.linspace(-30, 30, 100_001, dtype=torch.float64)  # of the logit
    x = grid.sigmoid()
    slope = x * (1 - x)  # dx / d logit
    for mean, log_b in ((0.0, 0.0), (1.5, -1.0), (-2.0, 0.7)):
        nll = logit_laplace_nll(x, torch.tensor(mean), torch.tensor(log_b))
        whole = torch.trapezoid((-nll).exp() * slope, grid)
        assert abs(float(whole) - 1) < 1e-6
        wanted = torch.distributions.Laplace(mean, float(np.exp(log_b))).log_prob(grid)
        near = grid.abs() < 12  # further out 1 − x has few digits left
        assert torch.allclose((slope.log() - nll)[near], wanted.double()[near], atol=1e-5)


def check_mapping() -> None:
    """0 … 1 to ε … 1 − ε and back, and never beyond."""
    x = torch.linspace(0, 1, 11, dtype=torch.float64)
    assert EPSILON == 0.1
    assert torch.allclose(map_pixels(x), 0.1 + 0.8 * x)
    assert torch.allclose(unmap_pixels(map_pixels(x)), x)
    assert unmap_pixels(torch.tensor([0.0, 1.0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("check", [check_halves, check_bound, check_laplace, check_mapping])
def test_the_formula(check):
    check()


def check_vector_quantised() -> None:
    """The nearest code of each vector by the definition, its gradient straight through."""
    codec = loud(VQVAE, dim=5)
    x = pixels()
    z = codec.encoder(x).movedim(1, -1).detach()  # B h w d
    codec.codebook.vectors.normal_(generator=torch.Generator().manual_seed(2)).mul_(2 * z.std())
    apart = (z[..., None, :] - codec.codebook.vectors).square().sum(-1)
    ids = apart.argmin(-1)
    assert torch.equal(codec.encode(x), ids.flatten(1))
    chosen = codec.codebook.vectors[ids].movedim(-1, 1)
    painted = codec.decoder(chosen)
    error, commitment = codec.eval().learn(x)
    assert torch.allclose(error, (painted - x).square().sum((1, 2, 3)))
    assert torch.allclose(commitment, (z - codec.codebook.vectors[ids]).square().mean((1, 2, 3)))
    codec.zero_grad()
    error.sum().backward()
    straight = codec.encoder.blocks.input.w.grad.clone()
    chosen.requires_grad_(True)
    (given,) = torch.autograd.grad((codec.decoder(chosen) - x).square().sum(), chosen)
    (wanted,) = torch.autograd.grad((codec.encoder(x) * given).sum(), codec.encoder.blocks.input.w)
    assert torch.allclose(straight, wanted)


def test_the_vector_quantised_one_is_its_formula():
    check_vector_quantised()


def test_the_bound_of_a_codec_is_an_upper_one():
    """−log p(x) of all codes together is less than nll + KL, on average over the noise."""
    codec: Any = af.build(DVAE(**{**SIZES, "codes": 3, "image": (4, 4)}), seed=0).double()
    assert isinstance(codec, DVAEModel)
    x = pixels()[:1, :, :4, :4]  # one code, so that all images can be summed over
    with torch.no_grad():
        every = codec.as_input(x)
        hot = torch.eye(3, dtype=torch.float64)[:, :, None, None]
        each = codec.unlikely(every, codec.decoder(hot)).flatten(1).sum(1)
        exact = -(-each - torch.tensor(3.0).log()).logsumexp(0)
        q = codec.logits(every).softmax(1).flatten()
        kl = codec.learn(x, 1e-4).kl
        bound = (q * each).sum() + kl[0]
        drawn = torch.stack([codec.learn(x, 1e-4)[0][0] for _ in range(200)])
    assert bound > exact
    assert abs(drawn.mean() - (q * each).sum()) < 4 * drawn.std() / 200**0.5 + 1e-9
