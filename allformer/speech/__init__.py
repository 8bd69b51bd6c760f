"""Speech into text, by a model that hears (Whisper).

Rules, numbers and results are those of openai-whisper; see `windows.py` for a whole recording and
`decoding.py` for one window of it.
"""

from __future__ import annotations

from allformer.speech.options import DecodingOptions, TranscribeOptions
from allformer.speech.result import Segment, Transcript, Word

__all__ = ["DecodingOptions", "Segment", "TranscribeOptions", "Transcript", "Word"]
