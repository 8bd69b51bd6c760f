"""A ViT three times, with the same weights: transformers', timm's and ours.

sides = Sides(BASE, folder)
sides.transformers(), sides.timm(), sides.allformer("cuda", torch.bfloat16)
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import allformer as af


class Size(NamedTuple):
    """Of a ViT; the first is ViT-B/16."""

    image: int = 224
    patch: int = 16
    dim: int = 768
    layers: int = 12
    heads: int = 12
    classes: int = 1000

    @property
    def tokens(self) -> int:
        """Patches and [CLS]."""
        return (self.image // self.patch) ** 2 + 1

    def flops(self, first_alone: bool = False) -> float:
        """Of an image, forward; `first_alone`: the last layer computes [CLS] and nothing else."""
        d, t = self.dim, self.tokens
        some = 2 * (2 * d * d + 8 * d * d) + 4 * t * d  # q, output, feed-forward; looking
        every = 2 * 2 * d * d  # k and v
        queries = self.layers * t - (t - 1 if first_alone else 0)
        patches = 2 * (t - 1) * 3 * self.patch**2 * d
        return some * queries + every * self.layers * t + patches + 2 * d * self.classes


BASE, TINY = Size(), Size(image=32, dim=64, layers=2, heads=2, classes=10)


class Sides:
    """The three models of a size, freshly made at each call."""

    def __init__(self, size: Size, folder: Path) -> None:
        self.size, self.folder = size, folder
        torch.manual_seed(0)
        self._fresh().save_pretrained(folder)

    def _fresh(self) -> Any:
        from transformers import ViTConfig, ViTForImageClassification

        s = self.size
        config = ViTConfig(
            image_size=s.image,
            patch_size=s.patch,
            hidden_size=s.dim,
            num_hidden_layers=s.layers,
            num_attention_heads=s.heads,
            intermediate_size=4 * s.dim,
            num_labels=s.classes,
            layer_norm_eps=1e-6,  # timm's
        )
        return ViTForImageClassification(config)

    def transformers(self) -> Any:
        """`ViTForImageClassification`, with torch's attention as it comes."""
        from transformers import ViTForImageClassification

        return ViTForImageClassification.from_pretrained(self.folder)

    def allformer(self, device: str, dtype: torch.dtype | None = None) -> Any:
        """By `af.load`."""
        return af.load(self.folder, device=device, dtype=dtype)

    def timm(self) -> Any:
        """timm's `VisionTransformer`."""
        with without_torchvision():
            from timm.models.vision_transformer import VisionTransformer

        s = self.size
        model = VisionTransformer(
            img_size=s.image,
            patch_size=s.patch,
            embed_dim=s.dim,
            depth=s.layers,
            num_heads=s.heads,
            num_classes=s.classes,
        )
        model.load_state_dict(timm_names(self.allformer("cpu", torch.float32), s))
        return model


def timm_names(ours: Any, size: Size) -> dict[str, Tensor]:
    """Our weights under timm's names: its q, k and v lie in one matrix too."""
    source, stack = ours.encoder.source, ours.encoder
    kernel = (size.dim, 3, size.patch, size.patch)
    found: dict[str, Tensor] = {
        "cls_token": source.cls[None],
        "pos_embed": source.position.weight[None],
        "patch_embed.proj.weight": source.project.weight.view(kernel),
        "patch_embed.proj.bias": source.project.bias,
    }
    modules: dict[str, nn.Module] = {"norm": stack.final_norm, "head": ours.head.out}
    for i, layer in enumerate(stack.layers):
        modules |= {
            f"blocks.{i}.norm1": layer.attention_norm,
            f"blocks.{i}.attn.qkv": layer.attention.qkv,
            f"blocks.{i}.attn.proj": layer.attention.out,
            f"blocks.{i}.norm2": layer.feed_norm,
            f"blocks.{i}.mlp.fc1": layer.feed.up,
            f"blocks.{i}.mlp.fc2": layer.feed.down,
        }
    for name, module in modules.items():
        found |= {f"{name}.{key}": x for key, x in module.state_dict().items()}
    return found


# --- timm imports torchvision, of which a ViT needs nothing ---------------------------------------


class _Nothing(type):
    """A class that has every attribute: a class of that name that is nothing either."""

    def __getattr__(cls, name: str) -> Any:
        return _nothing(name)


def _nothing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Nothing(name, (), {})


class _StubFinder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        ours = name.split(".")[0] == "torchvision"
        return ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = _nothing  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


@contextmanager
def without_torchvision() -> Iterator[None]:
    """Where torchvision is missing or broken, timm is imported beside an empty one."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        pass
    else:
        yield
        return
    for name in [x for x in sys.modules if x.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    finder = _StubFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [x for x in sys.modules if x.split(".")[0] == "torchvision"]:
            del sys.modules[name]


def installed(name: str) -> bool:
    """Whether there is such a package."""
    return importlib.util.find_spec(name) is not None
