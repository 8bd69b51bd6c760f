"""Tiny checkpoints that see, as transformers writes them, and a folder of pictures: for tasks."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import transformers as hf
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from tests.loud import make_loud

LABELS = {0: "cat", 1: "dog", 2: "ship"}
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
SIGHT = {**SIZES, "image_size": 32, "patch_size": 8}

DINO = {**{name: x for name, x in SIGHT.items() if name != "intermediate_size"}, "mlp_ratio": 2}


def vit(path: Path, kind: type[hf.PreTrainedModel] = hf.ViTForImageClassification) -> Path:
    """A ViT with three classes (or another class of transformers'), and its processor."""
    sizes = SIGHT if kind.config_class is not hf.Dinov2Config else DINO
    labels = {"id2label": LABELS, "label2id": {x: i for i, x in LABELS.items()}}
    make_loud(kind(kind.config_class(**sizes, **labels)), tables=None).save_pretrained(path)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(path)
    return path


def clip(path: Path) -> Path:
    """Two towers, a tokeniser of letters, and a processor that crops."""
    letters = [chr(i) for i in range(33, 127)]
    tokens = [*letters, *(f"{x}</w>" for x in letters), "<|startoftext|>", "<|endoftext|>"]
    vocab = {token: i for i, token in enumerate(tokens)}
    start, end = len(vocab) - 2, len(vocab) - 1
    text = {
        **SIZES, "vocab_size": len(vocab), "max_position_embeddings": 48, "eos_token_id": end,
        "bos_token_id": start, "pad_token_id": end,
    }  # fmt: skip
    config = hf.CLIPConfig(text_config=text, vision_config=dict(SIGHT), projection_dim=12)
    make_loud(hf.CLIPModel(config), tables=None).save_pretrained(path)
    hf.CLIPTokenizer(vocab=vocab, merges=[]).save_pretrained(path)
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32).save_pretrained(path)
    return path


def siglip(path: Path) -> Path:
    """SigLIP's towers with the tokeniser and the processor of `clip`."""
    clip(path)
    text = {**SIZES, "vocab_size": 190, "max_position_embeddings": 48, "pad_token_id": 189}
    config = hf.SiglipConfig(text_config=text, vision_config=dict(SIGHT))
    make_loud(hf.SiglipModel(config), tables=None).save_pretrained(path)
    return path


def pictures(folder: Path, count: int = 5) -> list[str]:
    """Pictures of several sizes, with their paths in order."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for i in range(count):
        chance = np.random.default_rng(i)
        values = chance.integers(0, 256, (30 + 5 * i, 50 - 3 * i, 3), dtype=np.uint8)
        Image.fromarray(values).save(folder / f"{i}.png")
    return [str(folder / f"{i}.png") for i in range(count)]
