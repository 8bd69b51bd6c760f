"""Whisper from OpenAI's own files: its sizes and a state dict in one `.pt`.

    model = read_openai_whisper("tiny.en.pt")           # as `af.load("tiny.en.pt")` does
    af.save(model, "out")                               # as transformers' Whisper

The file is read by torch's weights-only reader: no code of it is run. Its weights are fp16;
`dtype=torch.float32` is what OpenAI's own program computes in on a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.files import TensorFiles
from allformer.checkpoint.torch_file import open_torch_file, read_torch_file
from allformer.checkpoint.transfer import load_weights
from allformer.config.sound import STRIDE
from allformer.core.model import AnyModel, build
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config
from allformer.families.whisper_openai import DIMS, STATE, fields_of, weights
from allformer.text.whisper import LANGUAGES, MARKS, TASKS

ENDS = (".pt", ".pth")
MANY = 51_865  # tokens of the first vocabulary of many languages
PREPARED = "preprocessor_config.json"
SPACE = 220  # the token of a space alone, in both vocabularies


def read_openai_whisper(
    path: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> AnyModel:
    """The model of such a file, in eval mode; saving it gives transformers' files."""
    path = Path(path)
    try:
        raw = fields_of(_dims(path))
        tree, known = read_config(raw)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is not read as OpenAI's Whisper: {error}") from None
    model = build(tree, device="meta")
    model.provenance, known.generation = known, generation_of(raw)
    known.images = {PREPARED: json.dumps(prepared_by(raw), indent=2, sort_keys=True) + "\n"}
    files = TensorFiles(path, open_torch_file(path, STATE))
    loaded = load_weights(model, weights(tree), files, device=device, dtype=dtype)
    model.provenance.fates = loaded.fates
    return model.eval()


def generation_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a published model's generation_config.json says of the ids, by those in config.json;
    nothing of a vocabulary that has none of them."""
    start = fields["decoder_start_token_id"]
    if start >= fields["vocab_size"]:
        return {}
    # Every vocabulary but the one of 100 languages has 99, an English one for nothing.
    languages = list(LANGUAGES)[: 100 if fields["vocab_size"] > MANY else 99]
    tasks = {name: start + 1 + len(languages) + i for i, name in enumerate(TASKS)}
    marks = {name: start + 1 + len(languages) + len(TASKS) + i for i, name in enumerate(MARKS)}
    many = fields["vocab_size"] >= MANY
    untimed = marks["notimestamps"]
    ids = {name: fields[name] for name in fields if name.endswith("_token_id")}
    return {
        **ids,
        "begin_suppress_tokens": [SPACE, fields["eos_token_id"]],
        "forced_decoder_ids": [[1, None], [2, tasks["transcribe"]]] if many else [[1, untimed]],
        "is_multilingual": many,
        **({"lang_to_id": {f"<|{code}|>": start + 1 + i for i, code in enumerate(languages)},
            "task_to_id": tasks} if many else {}),
        "max_initial_timestamp_index": 50,
        "max_length": fields["max_target_positions"],
        "no_timestamps_token_id": untimed,
        "prev_sot_token_id": marks["startofprev"],
        "return_timestamps": False,
    }  # fmt: skip


def prepared_by(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A preprocessor_config.json: frames of 25 ms, every 10 ms, as all of OpenAI's were taught."""
    frames = STRIDE * fields["max_source_positions"]
    return {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": fields["num_mel_bins"],
        "sampling_rate": 16_000, "n_fft": 400, "hop_length": 160, "chunk_length": frames // 100,
        "n_samples": 160 * frames, "nb_max_frames": frames, "padding_side": "right",
        "padding_value": 0.0, "return_attention_mask": False,
        "processor_class": "WhisperProcessor",
    }  # fmt: skip


def is_openai_whisper(path: Path) -> bool:
    """Whether a file has the sizes of a Whisper beside its weights."""
    try:
        if path.suffix not in ENDS or not path.is_file():
            return False
    except OSError:  # too long a name: no file at any rate
        return False
    return {DIMS, STATE} <= read_torch_file(path).keys()


def _dims(path: Path) -> dict[str, int]:
    found = read_torch_file(path)
    dims = found.get(DIMS)
    if not isinstance(dims, dict) or STATE not in found:
        raise CheckpointError(
            f"it has no {DIMS} and {STATE}; give OpenAI's file, or a directory of transformers'"
        )
    return dims
