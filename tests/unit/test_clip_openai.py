"""OpenAI's and OpenCLIP's names for CLIP: the same numbers as under transformers' names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.checkpoint.openai_clip import read_openai_clip
from allformer.errors import CheckpointError
from allformer.families.clip import FAMILY
from tests.loud import make_loud

TEXT = {
    "vocab_size": 83, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 512, "max_position_embeddings": 9, "eos_token_id": 2, "bos_token_id": 0,
}  # fmt: skip
VISION = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 1, "intermediate_size": 256,
    "image_size": 12, "patch_size": 4,
}  # fmt: skip
# transformers' names and OpenAI's, by one who knows neither map: as in the published converter.
NAMES = {
    r"text_model\.embeddings\.token_embedding\.weight": "token_embedding.weight",
    r"text_model\.embeddings\.position_embedding\.weight": "positional_embedding",
    r"vision_model\.embeddings\.class_embedding": "visual.class_embedding",
    r"vision_model\.embeddings\.patch_embedding\.weight": "visual.conv1.weight",
    r"vision_model\.embeddings\.position_embedding\.weight": "visual.positional_embedding",
    r"vision_model\.pre_layrnorm": "visual.ln_pre",
    r"vision_model\.post_layernorm": "visual.ln_post",
    r"text_model\.final_layer_norm": "ln_final",
    r"text_model\.encoder\.layers": "transformer.resblocks",
    r"vision_model\.encoder\.layers": "visual.transformer.resblocks",
    r"layer_norm(\d)": r"ln_\1",
    r"mlp\.fc1": "mlp.c_fc",
    r"mlp\.fc2": "mlp.c_proj",
    r"self_attn\.out_proj": "attn.out_proj",
}


def clip(act: str = "quick_gelu") -> Any:
    inside = {"text_config": {**TEXT, "hidden_act": act}, "vision_config": VISION}
    inside["vision_config"] = {**VISION, "hidden_act": act}
    tree = FAMILY.make({"projection_dim": 24, **inside})
    return make_loud(af.build(tree, seed=0)).eval()


def openais(model: Any, folder: Path) -> dict[str, Tensor]:
    """Its weights as OpenAI names them, made of what transformers would read."""
    af.save(model, folder)
    from safetensors.torch import load_file

    out: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, x in load_file(folder / "model.safetensors").items():
        for theirs, openai in NAMES.items():
            name = re.sub(theirs, openai, name)
        if match := re.fullmatch(r"(.*)\.self_attn\.([qkv])_proj\.(weight|bias)", name):
            parts.setdefault(f"{match[1]}.attn.in_proj_{match[3]}", {})[match[2]] = x
        elif name in ("text_projection.weight", "visual_projection.weight"):
            renamed = "text_projection" if "text" in name else "visual.proj"
            out[renamed] = x.T.contiguous()
        else:
            out[name] = x
    out |= {name: torch.cat([x[part] for part in "qkv"]) for name, x in parts.items()}
    return out


def answer(model: Any) -> Tensor:
    make = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 80, (3, 9), generator=make)
    ids[:, 5], ids[:, 6:] = 82, 0
    images = torch.randn(2, 3, 12, 12, generator=make)
    out: Tensor = model(input_ids=ids, pixel_values=images).logits_per_image
    return out


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_openais_state_dict_gives_the_same_model(suffix: str, tmp_path: Path) -> None:
    model, file = clip(), tmp_path / f"ViT{suffix}"
    state = openais(model, tmp_path / "hf")
    state["input_resolution"] = torch.tensor(12)
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    again = read_openai_clip(file)
    assert again.config == model.config
    assert torch.equal(answer(again), answer(model))
    af.save(again, tmp_path / "back")
    assert torch.equal(answer(af.load(tmp_path / "back")), answer(model))


@pytest.mark.parametrize("prefix", [False, True], ids=["plain", "text."])
def test_openclips_directory_is_loaded(prefix: bool, tmp_path: Path) -> None:
    model = clip("gelu")
    state, folder = openais(model, tmp_path / "hf"), tmp_path / "open"
    folder.mkdir()
    if prefix:
        mine = {n: n.startswith(("visual", "logit")) for n in state}
        state = {n if mine[n] else f"text.{n}": x for n, x in state.items()}
    save_file(state, folder / "open_clip_model.safetensors")
    told: dict[str, Any] = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 12, "layers": 3, "width": 64, "patch_size": 4},
        "text_cfg": {"context_length": 9, "vocab_size": 83, "width": 128, "heads": 2, "layers": 2},
    }
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": told}))
    again = af.load(folder)
    assert again.config == model.config
    assert torch.equal(answer(again), answer(model))
    told["text_cfg"]["pool_type"] = "last"
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": told}))
    with pytest.raises(CheckpointError, match="pool_type"):
        af.load(folder)


def test_a_state_dict_is_converted_with_a_certificate(tmp_path: Path) -> None:
    save_file(openais(clip(), tmp_path / "hf"), tmp_path / "ViT.safetensors")
    certificate = convert(tmp_path / "ViT.safetensors", tmp_path / "out")
    assert certificate["sound"]
    assert certificate["source"]["layout"] == "openai"
    compared = {(*x["between"], x["output"]) for x in certificate["outputs"]}
    pair = ("allformer on the target", "transformers on the target")
    assert {(*pair, "logits_per_image"), (*pair, "text_embeds")} <= compared


def test_another_file_is_refused(tmp_path: Path) -> None:
    save_file({"visual.layer1.0.conv1.weight": torch.ones(2, 2)}, tmp_path / "rn50.safetensors")
    with pytest.raises(CheckpointError, match="no CLIP whose vision tower is a ViT"):
        read_openai_clip(tmp_path / "rn50.safetensors")


def test_torchscript_as_openai_publishes_it_is_refused_with_a_way_out(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "ViT.pt")
    with pytest.raises(CheckpointError, match=r"TorchScript.*state_dict"):
        read_openai_clip(tmp_path / "ViT.pt")
