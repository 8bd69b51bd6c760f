"""Sound codecs: a waveform as a few codes a frame, and back.

    codec = build(codec_preset("encodec-8khz"), seed=0)
    codes = codec.encode(wave)          # B C T → B Q F
    again = codec.decode(codes)         # B C F·hop
    codec.rate, codec.hop, codec.books, codec.size     # 8000, 160, 8, 1024

`Encodec` is that of Défossez et al. (2022), `Mimi` Kyutai's (Défossez et al., 2024). `af.load` and
`af.save` take Hugging Face's directories of them. `Spectral` has no convolutions: it is fitted in
seconds, for small things.
"""

from __future__ import annotations

from allformer.codecs.sound.codec import SoundCodecModel
from allformer.codecs.sound.config import Chunks, Encodec
from allformer.codecs.sound.encodec import EncodecModel, Pieces
from allformer.codecs.sound.mimi import MimiModel
from allformer.codecs.sound.mimi_config import Mimi
from allformer.codecs.sound.seanet_config import Seanet
from allformer.codecs.sound.spectral import SpectralModel
from allformer.codecs.sound.spectral_config import Spectral

__all__ = [
    "Chunks",
    "Encodec",
    "EncodecModel",
    "Mimi",
    "MimiModel",
    "Pieces",
    "Seanet",
    "SoundCodecModel",
    "Spectral",
    "SpectralModel",
]
