"""What a language model makes of the beginnings of texts, for the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from allformer.data.encoded import Rows
from allformer.generate.rooms import forget
from allformer.text.tokenizer import Tokenizer
from allformer.train.predictions import Prediction, Predictions

_ROWS = 12  # more would take long, and nobody reads them
_NEW = 64


def continued(
    model: Any, tokenizer: Tokenizer, documents: Rows, longest: int, count: int
) -> Predictions:
    """Beginnings from all over the texts, what follows them there, and what the model says.

    The likeliest token each time: no chance is in it, and a model that repeats itself shows it.
    """
    half = max(1, min(_NEW, longest // 2))
    long = np.flatnonzero(documents.lengths > half)
    long = long if len(long) else np.array([documents.lengths.argmax()])
    half = min(half, max(1, int(documents.lengths[long].min()) - 1))
    rows = min(count, _ROWS)
    if len(long) >= rows:
        chosen = long[np.linspace(0, len(long) - 1, rows).astype(int)]
        places = [(int(i), 0) for i in chosen]
    else:  # few texts, but long ones: places in them
        which = int(long[documents.lengths[long].argmax()])
        room = int(documents.lengths[which]) - half
        places = [(which, int(at)) for at in np.unique(np.linspace(0, room - 1, rows).astype(int))]
    prompts = [documents[i][at : at + half].tolist() for i, at in places]
    follow = [documents[i][at + half : at + 2 * half].tolist() for i, at in places]
    device = model.device
    ids = model.generate(torch.tensor(prompts, device=device), max_new_tokens=half, do_sample=False)
    forget(model)  # training wants the memory
    said = ids[:, half:].tolist()
    return Predictions(
        tuple(
            Prediction(tokenizer.decode(p), tokenizer.decode(f), tokenizer.decode(s))
            for p, f, s in zip(prompts, follow, said, strict=True)
        )
    )
