"""Models that take images are audited as they are: a patch is what a token is elsewhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allformer.auditor import audit
from allformer.auditor.evidence.sinusoid import judge
from allformer.errors import AuditError


class Attention(nn.Module):
    def __init__(self, d, h, bug):
        super().__init__()
        self.qkv, self.o, self.h, self.bug = nn.Linear(d, 3 * d), nn.Linear(d, d), h, bug

    def forward(self, x):
        b, n, d = x.shape
        if self.bug == "split":
            q, k, v = self.qkv(x).reshape(b, 3, self.h, n, -1).unbind(1)
        else:
            q, k, v = self.qkv(x).reshape(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * ((d if self.bug == "scale" else d // self.h) ** -0.5)
        y = s.softmax(-2 if self.bug == "axis" else -1) @ v
        return self.o(y.transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, d, h, bug):
        super().__init__()
        self.one, self.two, self.att = nn.LayerNorm(d), nn.LayerNorm(d), Attention(d, h, bug)
        self.feed = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.bug = bug

    def forward(self, x):
        y = self.att(self.one(x))
        x = y if self.bug == "residual" else x + y
        return x + self.feed(self.two(x))


def plane_of(side, d, first):
    """Sines and cosines of the row and of the column of a patch, a half of the numbers each."""
    speed = 10000 ** (-torch.arange(0, d // 2, 2) / (d // 2))
    turned = torch.arange(side)[:, None] * speed
    line = torch.cat([turned.sin(), turned.cos()], -1)  # side d/2
    both = [line.repeat_interleave(side, 0), line.repeat(side, 1)]
    return nn.functional.pad(torch.cat(both, -1), (0, 0, int(first), 0))[None]


class Seeing(nn.Module):
    """Patches by a convolution, or cut and mapped; read at [CLS], or on average."""

    def __init__(
        self, cut="convolution", read="cls", bug="", channels=3, side=4, patch=4, d=36, plane=False
    ):
        super().__init__()
        self.patch, self.cut, self.read, self.bug = patch, cut, read, bug
        width = channels * patch**2
        self.map = nn.Conv2d(channels, d, patch, patch) if cut == "convolution" else None
        self.linear = None if self.map else nn.Linear(width, d)
        self.cls = nn.Parameter(torch.randn(1, 1, d) * 0.02) if read == "cls" else None
        if plane:
            self.register_buffer("places", plane_of(side, d, read == "cls"))
        else:
            self.places = nn.Parameter(torch.randn(1, side**2 + (read == "cls"), d) * 0.02)
        self.layers = nn.ModuleList([Layer(d, 3, bug) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, image):
        (b, _, _, _), p = image.shape, self.patch
        if self.map is not None:
            x = self.map(image).flatten(2)
            x = x.reshape(b, -1, self.map.out_channels) if self.bug == "features" else x.mT
        elif self.bug == "lines":
            x = self.linear(image.reshape(b, -1, self.linear.in_features))
        else:
            cut = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5)
            x = self.linear(cut.reshape(b, -1, self.linear.in_features))
        if self.cls is not None:
            x = torch.cat([self.cls.expand(b, -1, -1), x], 1)
        if self.bug != "positions":
            x = x + self.places
        if self.bug == "hides":
            x = x * (torch.rand(x.shape[:2]) < 0.7)[..., None]
        x = x.transpose(0, 1) if self.bug == "rows" else x
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x.transpose(0, 1) if self.bug == "rows" else x)
        if self.bug == "dropout":
            x = F.dropout(x, 0.1)
        if self.read == "all":
            return self.head(x)
        return self.head(x[:, 0] if self.read == "cls" else x.mean(1))


SOUND = [
    {}, {"plane": True}, {"plane": True, "read": "mean"},
    {"read": "mean"}, {"read": "all"}, {"cut": "linear"}, {"channels": 1, "side": 7},
    {"cut": "linear", "channels": 1, "side": 4, "patch": 7, "read": "mean"},
]  # fmt: skip


@pytest.mark.parametrize("options", SOUND)
def test_sound_models_that_see(options):
    torch.manual_seed(0)
    report = audit(Seeing(**options))
    assert report.ok, report.text()
    assert report.kind == "encoder"
    assert any("called with images of" in said for said in report.inferred)
    assert not [r for r in report.not_applicable.values() if r.startswith("could not run")]


@pytest.mark.parametrize(("bug", "check"), [
    ("split", "heads.split"), ("scale", "attention.scale"), ("axis", "attention.softmax_axis"),
    ("residual", "residual.missing"), ("positions", "positions.missing"),
    ("dropout", "dropout.eval"), ("rows", "batch.mixing"), ("features", "patches.mixed"),
])  # fmt: skip
def test_bugs_of_models_that_see(bug, check):
    torch.manual_seed(0)
    report = audit(Seeing(bug=bug), "encoder")
    assert report.findings[0].check == check, report.text()


def test_a_fixed_table_of_zeros_is_no_sinusoid():
    assert judge(torch.zeros(16, 48)) is None


def test_one_that_hides_other_patches_each_time_is_told_that_alone():
    torch.manual_seed(0)
    report = audit(Seeing(bug="hides"), "encoder")
    assert [x.check for x in report.findings] == ["dropout.eval"], report.text()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_reshaped_to_lines(channels):
    torch.manual_seed(0)
    report = audit(Seeing("linear", bug="lines", channels=channels))
    assert report.findings[0].check == "patches.mixed"


SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 16, "patch_size": 4,
}  # fmt: skip
HUGGING_FACE = {
    "ViTForImageClassification": ("ViTConfig", SMALL), "Dinov2Model": ("Dinov2Config", SMALL),
    "CLIPVisionModel": ("CLIPVisionConfig", SMALL),
    "SwinModel": ("SwinConfig", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_transformers_models_that_see(name):
    transformers = pytest.importorskip("transformers")
    config, sizes = HUGGING_FACE[name]
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes))
    report = audit(model)
    assert report.ok, report.text()


def test_what_to_give_is_said_where_no_size_fits():
    class Odd(Seeing):
        def forward(self, image):
            assert image.shape[-2:] == (60, 92)
            return super().forward(image)

    with pytest.raises(AuditError, match=r"seems to take images.*patches x \(B, N, C·p·p\)"):
        audit(Odd())
