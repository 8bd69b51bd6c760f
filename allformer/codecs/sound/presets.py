"""Sound codecs by name: Meta's two, Kyutai's, and a small one for speech at 8 kHz."""

from __future__ import annotations

from allformer.codecs.sound.config import Chunks, Encodec
from allformer.codecs.sound.mimi_config import Mimi
from allformer.codecs.sound.seanet_config import Seanet
from allformer.config.sound_codec import SoundCodec

_STEREO = Seanet(channels=2, causal=False, norm="time")
PRESETS: dict[str, SoundCodec] = {
    "encodec-24khz": Encodec(),
    "encodec-48khz": Encodec(
        48_000, _STEREO, bandwidths=(3.0, 6.0, 12.0, 24.0), loudness=True, chunks=Chunks()
    ),
    "mimi": Mimi(),
    # 50 frames a second, half a kbit/s for each of 8 codebooks
    "encodec-8khz": Encodec(
        8_000, Seanet(ratios=(8, 5, 4)), bandwidths=(0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    ),
}
