"""JSON from a stranger's file: read, or refused in one sentence.

    read_object(Path("config.json"), CheckpointError)

Python's reader is not enough for files that nobody vouches for: it raises errors of five kinds, and
what is nested a thousand deep breaks whatever walks over it later.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from allformer.errors import AllformerError

HALF = re.compile(r"\\u[dD][89a-fA-F]")  # perhaps half a character: nothing can write that
DEEPEST = 50  # levels; a tokenizer.json has about ten


def read_json(path: Path, error: type[AllformerError]) -> Any:
    """Whatever the file holds; a fault is an `error` that names the file and the way out."""
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text)
        if HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except OSError as fault:
        raise error(f"{path} cannot be read: {fault.strerror}; check the file") from None
    except ValueError as fault:  # Unicode errors, JSONDecodeError, numbers of 5,000 digits
        said = str(fault).splitlines()[0][:200]
        raise error(f"{path} is not JSON ({said}); download it again") from None
    except RecursionError:
        raise _too_deep(path, error) from None
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise _too_deep(path, error)
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return value


def read_object(path: Path, error: type[AllformerError]) -> dict[str, Any]:
    """A JSON object, `{…}`."""
    value = read_json(path, error)
    if not isinstance(value, dict):
        raise error(f"{path} holds no JSON object but a {type(value).__name__}; download it again")
    return value


def _too_deep(path: Path, error: type[AllformerError]) -> AllformerError:
    return error(f"{path} is nested deeper than {DEEPEST} levels; download it again")
