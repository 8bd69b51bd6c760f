"""`allformer info [MODEL]`: what a model is made of and what it costs, by formula."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import show
from allformer.errors import AllformerError

INFO = (
    "Examples: `allformer info original-base`; `allformer info demo --length 64`; "
    "`allformer info model.gguf`; "
    "`allformer info` lists the presets."
)
USUAL = 512
LENGTHS = (128, 512, 2048, 8192, 32768, 131072)
LONG = tuple(2**power for power in range(10, 21, 2))  # 1k … 1M


def info(
    what: Annotated[
        str | None, typer.Argument(help="A preset, a config.json, a run directory or a GGUF file.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(help="Sequence length to count at; 512, or the tokens of a model's image."),
    ] = None,
    dtype_bytes: Annotated[int, typer.Option(help="Bytes of a number: 2 or 4.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")] = False,
) -> None:
    """Parameters by part, operations and memory of a model, by formula, at any length."""
    from allformer.checkpoint.held import held_in
    from allformer.cli.tables import count_tables, kinds_table, length_table, presets_table
    from allformer.config import Codec, SoundCodec
    from allformer.config.remix import mixes_fully
    from allformer.count import count, with_full_attention
    from allformer.families import presets

    if (length is not None and length < 1) or dtype_bytes not in (1, 2, 4, 8):
        raise AllformerError(
            f"--length {length} --dtype-bytes {dtype_bytes}: the length must be at least 1, "
            f"the bytes 1, 2, 4 or 8"
        )
    if what is None:
        counts = {name: count(config_of(name), length or USUAL, dtype_bytes) for name in presets()}
        if as_json:
            print(json.dumps({name: table.as_dict() for name, table in counts.items()}))
        else:
            show(presets_table(counts))
        return
    config = config_of(what)
    if isinstance(config, Codec):
        _tell_codec(what, config, dtype_bytes, as_json)
        return
    if isinstance(config, SoundCodec):
        _tell_sound_codec(what, config, dtype_bytes, as_json)
        return
    table = count(config, length or config.reader.source.tokens_each or USUAL, dtype_bytes)
    grown = [count(config, n, dtype_bytes) for n in LENGTHS]
    long = [count(config, n, dtype_bytes) for n in LONG]
    full = with_full_attention(config)
    beside = None if full is None else [count(full, n, dtype_bytes) for n in LONG]
    held = held_in(what)
    if as_json:
        split = {each.length: each.as_dict()["cost_split"] for each in grown}
        costs = {"costs_by_length": _costs(long)}
        if beside is not None:
            costs["costs_by_length_with_full_attention"] = _costs(beside)
        told = {"name": what, **table.as_dict(), "cost_split_by_length": split, **costs}
        if held:
            told |= {"file": held, "file_bytes": sum(kind["bytes"] for kind in held.values())}
        print(json.dumps(told))
        return
    square = mixes_fully(config)
    for piece in (*count_tables(what, table, grown, square), length_table(long, beside)):
        show(piece)
    if held:
        show(kinds_table((_gguf(what) or Path(what)).name, held))


def _tell_codec(what: str, config: Any, dtype_bytes: int, as_json: bool) -> None:
    """A codec has no length: images of one size, and so many codes for each."""
    from allformer.cli.tables import codec_tables

    if as_json:
        parts = [vars(part) for part in config.lines()]
        grid, codes, size = list(config.grid), config.codes, config.parameters
        told = {"parameters": size, "parameter_bytes": size * dtype_bytes, "grid": grid}
        flops = sum(part["flops"] for part in parts)
        told |= {"codes": codes, "flops_per_image": flops, "parts": parts}
        print(json.dumps({"name": what, **told}))
        return
    for piece in codec_tables(what, config, dtype_bytes):
        show(piece)


def _tell_sound_codec(what: str, config: Any, dtype_bytes: int, as_json: bool) -> None:
    """Nor has one of sound: all is by the second."""
    from allformer.cli.tables import sound_codec_tables

    if as_json:
        parts = [vars(part) for part in config.lines()]
        told = {"parameters": config.parameters, "rate": config.rate, "channels": config.channels}
        told |= {"parameter_bytes": config.parameters * dtype_bytes, "hop": config.hop}
        told |= {"books": config.books, "codes": config.codes, "bits_per_second": config.bits}
        flops = sum(part["flops"] for part in parts)
        print(json.dumps({"name": what, **told, "flops_per_second": flops, "parts": parts}))
        return
    for piece in sound_codec_tables(what, config, dtype_bytes):
        show(piece)


def _costs(counts: Sequence[Any]) -> dict[int, dict[str, int]]:
    names = ("flops_per_token", "activation_bytes", "state_bytes")
    return {c.length: {name: getattr(c, name) for name in names} for c in counts}


def _gguf(what: str) -> Path | None:
    """The GGUF file that it is, or that lies in the directory that it is."""
    from allformer.checkpoint.files import find_gguf_weights

    return find_gguf_weights(Path(what))


def config_of(what: str) -> Any:
    """The tree of a preset, a config.json or a directory with one."""
    from allformer.checkpoint.load import load, read_config_of
    from allformer.checkpoint.openai_whisper import is_openai_whisper
    from allformer.codecs import codec_preset, codec_presets
    from allformer.config import Codec, Model, SoundCodec
    from allformer.families import preset, presets

    path = Path(what) / "config.json" if Path(what).is_dir() else Path(what)
    if not path.is_file() and _gguf(what) is None:
        if what in presets():
            return preset(what)
        if what in codec_presets():
            return codec_preset(what)
        near = get_close_matches(what, [*presets(), *codec_presets()], n=3, cutoff=0.5)
        raise AllformerError(
            f"{what!r} is neither a preset, nor a config.json, nor a directory with one; "
            + (f"did you mean {' or '.join(near)}? " if near else "")
            + "`allformer info` lists the presets"
        )
    config = load(path, device="meta").config if is_openai_whisper(path) else read_config_of(path)
    if not isinstance(config, Model | Codec | SoundCodec):
        raise AllformerError(f"{path} holds a {type(config).__name__}, which is no whole model")
    return config
