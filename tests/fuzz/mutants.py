"""Seeded mutants of checkpoint directories: one file of a valid one, changed in one place.

    mutate(Random("gpt2/17"), base, target)      # → what was changed, in words

A number is the whole identity of a mutant, so that a failure can be made again alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from allformer.families.kinds import INERT

DEEP = 2000
ODD: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: False, lambda: 0, lambda: -1, lambda: 1, lambda: 2,
    lambda: 3, lambda: 7, lambda: 10**5, lambda: 10**7, lambda: 10**9, lambda: 10**12,
    lambda: 2**63, lambda: 10**30, lambda: -(10**12), lambda: 1e308, lambda: 1e-30,
    lambda: 0.5, lambda: -0.5, lambda: 1.5, lambda: math.nan, lambda: math.inf, lambda: -math.inf,
    lambda: "", lambda: "abc", lambda: "1", lambda: "x" * 5000, lambda: "a\0b", lambda: "../x",
    lambda: "\ud800", lambda: [], lambda: [0], lambda: [None], lambda: ["abc"], lambda: [[1, 2]],
    lambda: [10**12] * 3, lambda: {}, lambda: {"a": 1}, lambda: {"0": "a", "1": [2]},
    lambda: _nested(60), lambda: list(range(1000)),
]  # fmt: skip
FIELDS = [
    *INERT, "rope_scaling", "rope_parameters", "rope_theta", "is_causal", "sliding_window",
    "head_dim", "num_key_value_heads", "quantization_config", "is_decoder", "pruned_heads",
    "num_hidden_layers", "num_attention_heads", "hidden_size", "is_gated_act", "dense_act_fn",
    "scale_decoder_outputs", "decoder_vocab_size", "n_inner", "inner_group_num", "decoder",
    "auto_map", "layer_types", "is", "encoder_layerdrop", "classifier_dropout_prob",
]  # fmt: skip
OPTIONS = [
    "max_new_tokens", "max_length", "num_beams", "num_return_sequences", "do_sample", "top_k",
    "temperature", "top_p", "eos_token_id", "bos_token_id", "pad_token_id", "suppress_tokens",
    "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id",
    "no_repeat_ngram_size", "sequence_bias", "stop_strings", "exponential_decay_length_penalty",
    "repetition_penalty", "length_penalty", "min_length", "begin_suppress_tokens", "max_time",
    "early_stopping", "typical_p", "epsilon_cutoff", "encoder_repetition_penalty", "use_cache",
    "assistant_confidence_threshold", "cache_implementation", "guidance_scale", "min_new_tokens",
]  # fmt: skip
SETTINGS = [
    "model_max_length", "max_len", "padding_side", "truncation_side", "tokenizer_class",
    "additional_special_tokens", "extra_special_tokens", "added_tokens_decoder", "pad_token",
    "eos_token", "bos_token", "unk_token", "mask_token", "model_input_names", "add_bos_token",
    "add_eos_token", "clean_up_tokenization_spaces", "chat_template", "do_lower_case",
    "strip_accents", "tokenize_chinese_chars", "add_prefix_space", "trim_offsets", "src_lang",
    "tgt_lang", "extra_ids", "legacy", "split_special_tokens", "separate_vocabs", "keep_accents",
    "image_token",
]  # fmt: skip
TEMPLATES = [
    "{{ 10**100000000 }}", "{{ 'a' * 10**12 }}", "{{ [0] * 10**11 }}", "{{ range(10**12)|list }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{{ 'a'|center(10**12) }}", "{{ 'a'.ljust(9999999999) }}", "{{ '%9999999999d' % 1 }}",
    "{{ '{:>9999999999}'.format(1) }}", "{{ 'a'|indent(9999999999) }}", "{{ lipsum(n=10**9) }}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", "{{ messages[9].content }}",
    "{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}", "{{", "{% if %}",
    "{{ 1/0 }}",
    "{{ raise_exception('no') }}", "{{ messages|tojson(indent=9999999999) }}", "{{ 9 // 0 }}",
    "{{ [1]|batch(9999999999, 0)|list }}", "{{ [1]|slice(9999999999)|list }}", "{{ x.y.z }}",
    "{{ ('a' * 99999).replace('a', 'b' * 99999)|length }}", "{{ ('b' * 99999).join('a' * 99999) }}",
    "{{ '%s' % ('x',) }}", "{{ 2 ** -1 }}", "{{ 'a'|format(*range(9)) }}", "{{ -1 * 'a' }}",
    "{% set a = 'x' %}" + "{% set a = a ~ a %}" * 60,
    "{% set a = 'x' %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 60,
    "{% set a = ['x'] %}" + "{% set a = a + a %}" * 60,
]  # fmt: skip


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def mutate(random: Random, base: Path, target: Path) -> str:
    """Fill `target` with links to the files of `base`, one of them changed."""
    for file in base.rglob("*"):
        there = target / file.relative_to(base)
        if file.is_dir():
            there.mkdir(parents=True, exist_ok=True)
        else:
            there.parent.mkdir(parents=True, exist_ok=True)
            there.symlink_to(file)
    names = sorted(str(file.relative_to(base)) for file in base.rglob("*") if file.is_file())
    small = [n for n in names if n.endswith(".json") and "tokenizer.json" not in n]
    weights = [n for n in names if n.endswith((".safetensors", ".bin"))]
    name = random.choice(
        ["config.json"] * 8 + ["generation_config.json"] * 3 + ["tokenizer_config.json"] * 4
        + small * 2 + weights * 3 + names
    )  # fmt: skip
    path = target / name
    data = path.read_bytes() if path.exists() else b"{}"
    if random.random() < 0.05:
        said, new = _gone(random, data)
    elif name.endswith(".json"):
        said, new = _json(random, name, data)
    elif name.endswith(".safetensors"):
        said, new = _safetensors(random, data)
    elif name.endswith(".bin"):
        said, new = _bin(random, path, data)
    else:
        said, new = _bytes(random, data)
    path.unlink(missing_ok=True)
    if new is not None:
        path.write_bytes(new)
    return f"{name}: {said}"


def _gone(random: Random, data: bytes) -> tuple[str, bytes | None]:
    kind = random.choice(["missing", "empty", "blank"])
    return kind, {"missing": None, "empty": b"", "blank": b"\0" * len(data)}[kind]


def _bytes(random: Random, data: bytes) -> tuple[str, bytes]:
    at = random.randrange(len(data) or 1)
    kind = random.choice(["cut", "flip", "flip", "insert"])
    if kind == "cut":
        return f"cut at {at}", data[:at]
    if kind == "flip":
        changed = bytearray(data)
        for _ in range(random.choice([1, 1, 20])):
            changed[random.randrange(len(changed))] = random.randrange(256)
        return "bytes changed", bytes(changed)
    more = random.choice([b"\xff\xfe", b"\xef\xbb\xbf", b"[" * 100_000, b"9" * 10_000, b"\0"])
    return f"{more[:4]!r}… put in at {at}", data[:at] + more + data[at:]


def _json(random: Random, name: str, data: bytes) -> tuple[str, bytes]:
    if random.random() < 0.06:
        return _bytes(random, data)
    if random.random() < 0.03:
        text = random.choice(
            ["[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[]", "3"]
        )
        return f"the text {text[:20]}…", text.encode()
    value = json.loads(data)
    if name == "tokenizer_config.json" and random.random() < 0.25:
        template = random.choice(TEMPLATES)
        return f"chat template {template[:60]}", _dump({**value, "chat_template": template})
    extra = {"config.json": FIELDS, "generation_config.json": OPTIONS}.get(name, SETTINGS)
    if isinstance(value, dict) and random.random() < 0.35:
        key, odd = random.choice(extra), random.choice(ODD)()
        return f"{key} = {repr(odd)[:60]}", _dump({**value, key: odd})
    said = change(random, value)
    return said, _dump(value)


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def change(random: Random, value: Any) -> str:
    """Change one place of a JSON value."""
    where, inner = "", value
    for _ in range(12):
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        if not keys:
            return "nothing"
        key = random.choice(list(keys))
        where += f".{key}"
        child = inner[key]
        if isinstance(child, dict | list) and child and random.random() < 0.8:
            inner = child
            continue
        kind = random.choice(["odd"] * 6 + ["gone", "renamed"])
        if kind == "gone":
            del inner[key]
            return f"{where[:80]} gone"
        odd = random.choice(ODD)()
        if kind == "renamed" and isinstance(inner, dict):
            inner[str(odd)[:300]] = inner.pop(key)
            return f"{where[:80]} renamed {str(odd)[:30]}"
        inner[key] = odd
        return f"{where[:80]} = {repr(odd)[:60]}"
    return "nothing"


def _safetensors(random: Random, data: bytes) -> tuple[str, bytes]:
    if random.random() < 0.4:
        return _bytes(random, data)
    length = int.from_bytes(data[:8], "little")
    if random.random() < 0.15:
        said = random.choice([0, 1, length + 1, 2**31, 2**63])
        return f"header of {said} bytes", said.to_bytes(8, "little") + data[8:]
    header = json.loads(data[8 : 8 + length])
    said = change(random, header)
    text = json.dumps(header).encode()
    return f"header {said}", len(text).to_bytes(8, "little") + text + data[8 + length :]


def _bin(random: Random, path: Path, data: bytes) -> tuple[str, bytes]:
    if random.random() < 0.4:
        return _bytes(random, data)
    tensors: Any = dict(torch.load(path, weights_only=True))
    name = random.choice(list(tensors))
    x = tensors[name]
    kinds: dict[str, Callable[[], Any]] = {
        "meta": lambda: x.to("meta"), "sparse": lambda: x.to_sparse(), "complex": lambda: x + 0j,
        "int": lambda: x.long(), "bool": lambda: x.bool(), "half": lambda: x.half(),
        "empty": lambda: x[:0], "one more dim": lambda: x[None], "scalar": lambda: x.sum(),
        "number": lambda: 3, "text": lambda: "abc", "nested": lambda: {"a": x},
        "none": lambda: None, "parameter": lambda: torch.nn.Parameter(x),
        "transposed": lambda: x.t() if x.dim() == 2 else x,
        "expanded": lambda: x.flatten()[:1].expand(x.numel()).view(-1),
        "float8": lambda: x.to(torch.float8_e4m3fn), "conjugate": lambda: (x + 0j).conj(),
        "huge view": lambda: torch.zeros(1).expand(2**40),
    }  # fmt: skip
    kind = random.choice([*kinds, "list", "renamed", "number for a name"])
    if kind == "list":
        tensors = list(tensors.values())
    elif kind == "renamed":
        tensors["abc"] = tensors.pop(name)
    elif kind == "number for a name":
        tensors[3] = x
    else:
        tensors[name] = kinds[kind]()
    new = path.with_name("new.bin")
    torch.save(tensors, new)
    out = new.read_bytes()
    new.unlink()
    return f"{name} {kind}", out
