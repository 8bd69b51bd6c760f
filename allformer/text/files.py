"""Write a tokeniser into a directory, so that it opens here and in transformers."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers

from allformer.errors import ConfigError
from allformer.text.marian import MarianPipeline
from allformer.text.settings import Settings

PIPELINE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"


def write_tokenizer(
    directory: Path, inner: tokenizers.Tokenizer | MarianPipeline, settings: Settings
) -> Path:
    """Write all files; the path of the one with the vocabulary."""
    directory.mkdir(parents=True, exist_ok=True)
    if isinstance(inner, MarianPipeline):
        for name, data in inner.files.items():
            (directory / name).write_bytes(data)
        main = directory / "vocab.json"
    else:
        main = directory / PIPELINE
        write_pipeline(inner, main)
    config = json.dumps(settings.to_config(), indent=2, ensure_ascii=False, sort_keys=True)
    (directory / CONFIG).write_text(config + "\n", encoding="utf-8")
    templates = settings.chat_template or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    for name, text in templates.items():
        file = directory / TEMPLATE
        if name != "default":
            file = directory / "chat_templates" / f"{name}.jinja"
            if file.resolve().parent != (directory / "chat_templates").resolve():
                raise ConfigError(f"a chat template cannot be called {name!r}")
            file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return main


def write_pipeline(inner: tokenizers.Tokenizer, file: Path) -> None:
    """As `inner.save` does, whose error of a full disk is of no kind and has no file's name."""
    file.write_bytes(inner.to_str(pretty=True).encode())


def json_file(path: str | Path) -> Path:
    """The `.json` file that a path names, or the `tokenizer.json` in the directory that it is."""
    path = Path(path)
    return path if path.suffix == ".json" and not path.is_dir() else path / PIPELINE
