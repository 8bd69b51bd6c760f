"""How good a sound codec is: SI-SDR and spectral distance of whole recordings at each bit rate.

    scores(codec, recordings)     # {"si_sdr_at_1500": 3.1, "spectral_at_1500": 8.2, …}

Legend: B recordings of a batch, S samples, Q codebooks, F frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allformer.metrics.si_sdr import si_sdr
from allformer.metrics.spectral import spectral_distance
from allformer.train.waves.recordings import Recordings

LONGEST = 10.0  # seconds of a recording that are scored: its first
_TOGETHER = 60.0  # seconds of sound in one batch


@torch.no_grad()
def scores(
    codec: Any, recordings: Recordings, *, dtype: torch.dtype | None = None
) -> dict[str, float]:
    """Means over recordings, named by bits a second; and over codebooks the share of codes that
    occur and the perplexity of their frequencies (as many codes, all as frequent, say as much)."""
    rates = bit_rates(codec.config)
    sums = dict.fromkeys(_of_rates(rates), 0.0)
    found = torch.zeros(codec.books, codec.size, dtype=torch.long)
    for waves, lengths in _batches(recordings):
        x = torch.from_numpy(waves).to(codec.device).float() / 2**15  # B S
        codes = codec.encode(x[:, None], dtype=dtype)  # B Q F
        frames = [-(-length // codec.hop) for length in lengths]
        for row, count in zip(codes.cpu(), frames, strict=True):
            found += torch.stack([q[:count].bincount(minlength=codec.size) for q in row])
        for bits, books in rates.items():
            again = codec.decode(codes[:, :books], length=x.shape[1], dtype=dtype)[:, 0]
            # On the host: on a GPU every length has a plan of its own for its transforms, and many
            # of them would push out those that a captured step replays.
            for one, other, length in zip(again.cpu(), x.cpu(), lengths, strict=True):
                pair = one[:length], other[:length]
                sums[f"si_sdr_at_{bits}"] += float(si_sdr(*pair))
                sums[f"spectral_at_{bits}"] += float(spectral_distance(*pair))
    return {name: x / len(recordings) for name, x in sums.items()} | _use(found)


def score_names(tree: Any) -> tuple[str, ...]:
    """What `scores` names them for a codec of this tree."""
    return (*_of_rates(bit_rates(tree)), "codes_used", "codes_perplexity")


def _of_rates(rates: Iterable[int]) -> list[str]:
    return [name for bits in rates for name in (f"si_sdr_at_{bits}", f"spectral_at_{bits}")]


def bit_rates(tree: Any) -> dict[int, int]:
    """Of a codec's tree, bits a second and how many codebooks take them: `{1500: 3, 3000: 6}`."""
    books = sorted({tree.books_of(bandwidth) for bandwidth in tree.bandwidths})
    return {round(1000 * tree.each * count): count for count in books}


def _batches(recordings: Recordings) -> Iterator[tuple[np.ndarray[Any, Any], list[int]]]:
    """Recordings of about one length together, silence after the shorter ones."""
    longest = round(LONGEST * recordings.rate)
    lengths = np.minimum(recordings.lengths, longest)
    order = np.argsort(lengths, kind="stable").tolist()
    while order:
        rows = max(1, int(_TOGETHER * recordings.rate / lengths[order[-1]]))
        taken, order = order[-rows:], order[:-rows]
        width = int(lengths[taken].max())
        yield np.stack([recordings.cut(i, 0, width) for i in taken]), lengths[taken].tolist()


def _use(found: Tensor) -> dict[str, float]:
    share = found.double() / found.sum(1, keepdim=True)
    entropy = -torch.special.xlogy(share, share).sum(1)
    used = (found > 0).double().mean()
    perplexity = sum(map(math.exp, entropy.tolist())) / len(found)
    return {"codes_used": float(used), "codes_perplexity": perplexity}
