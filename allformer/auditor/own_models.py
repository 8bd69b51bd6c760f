"""The one place that knows allformer's own models: how they are loaded, and their caches."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any


def load_directory(path: Path) -> Any:
    """The model of a run, of a checkpoint of a known family, or of one that transformers reads."""
    if not (path / "config.json").is_file():
        raise ValueError(
            f"{path} has no config.json; give FILE.py:NAME or a checkpoint's directory"
        )
    with contextlib.suppress(Exception):
        from allformer.checkpoint.load import load

        return load(str(path))
    try:
        import transformers
    except ImportError:
        raise ValueError(f"{path} is not ours; to audit it, pip install transformers") from None
    config = transformers.AutoConfig.from_pretrained(path)
    names = getattr(config, "architectures", None) or []
    kinds = [getattr(transformers, n) for n in names if hasattr(transformers, n)]
    return (kinds[0] if kinds else transformers.AutoModel).from_pretrained(path)


def is_own(model: Any) -> bool:
    """Whether it is one of allformer's; the lab's models are somebody's code."""
    return type(model).__module__.startswith("allformer.core.")


def empty_cache(model: Any) -> Any:
    """A cache that holds nothing yet."""
    return model.new_cache()


def clustered_words(config: Any) -> int:
    """How many words a tree of ours reads whose tables hold clusters of them; else 0."""
    from allformer.config import AdaptiveTokens, Model

    if isinstance(config, Model) and isinstance(config.reader.source, AdaptiveTokens):
        return config.reader.source.vocab
    return 0
