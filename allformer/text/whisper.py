"""What Whisper's vocabulary has behind its words: languages, tasks, marks and times.

An English model has 51,864 tokens, one of 99 languages 51,865 (its words are others), and one of
100 languages 51,866.
"""

from __future__ import annotations

from typing import Any

import tokenizers

from allformer.errors import ConfigError
from allformer.text.special_tokens import Special, special

END, START = "<|endoftext|>", "<|startoftranscript|>"
TASKS = ("translate", "transcribe")
MARKS = ("startoflm", "startofprev", "nospeech", "notimestamps")
TIMES = 1501  # every 20 ms of 30 seconds, both ends included
# fmt: off
LANGUAGES = {  # in the order of their ids
    "en": "english", "zh": "chinese", "de": "german", "es": "spanish", "ru": "russian",
    "ko": "korean", "fr": "french", "ja": "japanese", "pt": "portuguese", "tr": "turkish",
    "pl": "polish", "ca": "catalan", "nl": "dutch", "ar": "arabic", "sv": "swedish",
    "it": "italian", "id": "indonesian", "hi": "hindi", "fi": "finnish", "vi": "vietnamese",
    "he": "hebrew", "uk": "ukrainian", "el": "greek", "ms": "malay", "cs": "czech",
    "ro": "romanian", "da": "danish", "hu": "hungarian", "ta": "tamil", "no": "norwegian",
    "th": "thai", "ur": "urdu", "hr": "croatian", "bg": "bulgarian", "lt": "lithuanian",
    "la": "latin", "mi": "maori", "ml": "malayalam", "cy": "welsh", "sk": "slovak", "te": "telugu",
    "fa": "persian", "lv": "latvian", "bn": "bengali", "sr": "serbian", "az": "azerbaijani",
    "sl": "slovenian", "kn": "kannada", "et": "estonian", "mk": "macedonian", "br": "breton",
    "eu": "basque", "is": "icelandic", "hy": "armenian", "ne": "nepali", "mn": "mongolian",
    "bs": "bosnian", "kk": "kazakh", "sq": "albanian", "sw": "swahili", "gl": "galician",
    "mr": "marathi", "pa": "punjabi", "si": "sinhala", "km": "khmer", "sn": "shona", "yo": "yoruba",
    "so": "somali", "af": "afrikaans", "oc": "occitan", "ka": "georgian", "be": "belarusian",
    "tg": "tajik", "sd": "sindhi", "gu": "gujarati", "am": "amharic", "yi": "yiddish", "lo": "lao",
    "uz": "uzbek", "fo": "faroese", "ht": "haitian creole", "ps": "pashto", "tk": "turkmen",
    "nn": "nynorsk", "mt": "maltese", "sa": "sanskrit", "lb": "luxembourgish", "my": "myanmar",
    "bo": "tibetan", "tl": "tagalog", "mg": "malagasy", "as": "assamese", "tt": "tatar",
    "haw": "hawaiian", "ln": "lingala", "ha": "hausa", "ba": "bashkir", "jw": "javanese",
    "su": "sundanese", "yue": "cantonese",
}
OTHER_NAMES = {
    "burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb",
    "pushto": "ps", "panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si",
    "castilian": "es", "mandarin": "zh",
}
# fmt: on


def special_tokens(languages: int) -> list[str]:
    """All that stands behind the words, in the order of the ids: `special_tokens(99)`."""
    names = [*list(LANGUAGES)[:languages], *TASKS, *MARKS]
    times = [f"{step * 0.02:.2f}" for step in range(TIMES)]
    return [END, START, *(f"<|{name}|>" for name in (*names, *times))]


def language_code(name: str) -> str:
    """The code of a language by its code or English name: `language_code("Spanish")` is "es"."""
    asked = name.strip().lower()
    codes = {**{long: code for code, long in LANGUAGES.items()}, **OTHER_NAMES}
    code = asked if asked in LANGUAGES else codes.get(asked)
    if code is None:
        raise ConfigError(
            f"language={name[:80]!r} is none of Whisper's; try one of {', '.join(LANGUAGES)}"
        )
    return code


def before_text(inner: tokenizers.Tokenizer, options: dict[str, Any]) -> tuple[Special, ...]:
    """What stands before a text: the start, language and task where tokenizer_config.json names
    them, and that there are no timestamps, unless it asks for them."""
    language, task = options.get("language"), options.get("task")
    if task is not None and task not in TASKS:
        raise ConfigError(
            f"tokenizer_config.json: task={str(task)[:80]!r} is not known; try one of "
            f"{', '.join(TASKS)}"
        )
    names = [] if language is None else [f"<|{language_code(language)}|>"]
    names += [] if task is None else [f"<|{task}|>"]
    names += [] if options.get("predict_timestamps") else ["<|notimestamps|>"]
    return tuple(special(inner, name) for name in (START, *names))
