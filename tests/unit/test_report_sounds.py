"""The report of a model that hears: players, spectrograms, words at their times."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import torch
from torch import nn

import allformer as af
from allformer import config
from allformer.explain.report import write_report
from allformer.explain.several import Part, write_several
from allformer.explain.sound.listens import listening, listens
from allformer.explain.sound.player import player
from allformer.explain.sound.sounds import SHOWN, about_sounds, sound_list
from allformer.explain.sound.spectrogram import ROWS, spectrogram, waveform
from allformer.explain.words import WORDS, said
from allformer.sound.clip import clip
from allformer.train.heard import Heard, Spoken
from allformer.train.predictions import Predictions
from tests.unit.test_report import HOSTILE, Outline, rows

RATE = 8000


def tone(hertz: float, seconds: float = 0.5) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * RATE)) / RATE)


def pixels(address: str) -> np.ndarray:
    kind, text = address.split(",")
    assert kind == "data:image/png;base64"
    return matplotlib.image.imread(io.BytesIO(base64.b64decode(text)), format="png")


def test_a_tone_is_a_line_at_its_pitch_in_the_time_in_which_it_sounds() -> None:
    wave = np.concatenate([tone(1000), np.zeros(RATE // 2), tone(3000)])
    light = pixels(spectrogram(wave, RATE))[..., :3].sum(-1)  # R F
    frames = light.shape[1]
    for part, hertz in ((slice(frames // 10, frames // 4), 1000), (slice(-frames // 4, -4), 3000)):
        row = light[:, part].mean(1).argmax()
        assert abs((ROWS - row - 0.5) / ROWS * RATE / 2 - hertz) < 60
    silent = light[:, round(0.45 * frames) : round(0.55 * frames)]
    assert silent.max() == light.min()


def test_of_a_telephones_sound_at_a_higher_rate_the_silent_half_is_not_shown() -> None:
    time = np.arange(RATE) / (2 * RATE)  # half a second at 16 kHz
    faded = np.hanning(len(time))
    low = faded * np.sin(2 * np.pi * 1000 * time)
    high = faded * np.sin(2 * np.pi * 6000 * time)
    light = pixels(spectrogram(low, 2 * RATE))[..., :3].sum(-1)
    row = light[:, 10:-10].mean(1).argmax()
    assert abs((ROWS - row - 0.5) / ROWS * RATE / 2 - 1000) < 60
    light = pixels(spectrogram(low + high, 2 * RATE))[..., :3].sum(-1)[:, 10:-10].mean(1)
    assert abs((ROWS - light[: ROWS // 2].argmax() - 0.5) / ROWS * RATE - 6000) < 120


def test_silence_noise_and_a_single_sample_are_drawn_too() -> None:
    for wave in (np.zeros(400), np.ones(1), np.random.default_rng(0).standard_normal(90_000)):
        picture = pixels(spectrogram(wave, RATE))
        assert picture.shape[0] == ROWS
        assert picture.shape[1] <= 401
        assert "nan" not in waveform(wave)
    assert pixels(spectrogram(np.zeros(400), RATE))[..., :3].max() < 0.2  # silence is dark


def test_words_stand_at_their_times_and_what_was_given_ends_at_its_line() -> None:
    sound = clip(tone(500, 2.0), RATE)
    html = player(sound, words=(Spoken("nine", 0.5, 1.0),), prompt=0.5, longest=4.0)
    assert '<span style="left:25.0%;width:25.0%">nine</span>' in html
    assert '<i class="seam" style="left:25.0%">' in html
    assert 'style="width:50.0%"' in html
    assert f'src="data:audio/wav;base64,{sound}"' in html
    assert 'data-seconds="2.000"' in html


def test_what_is_no_sound_is_not_shown() -> None:
    for text in ("", "x", HOSTILE, '"><b>', base64.b64encode(b"RIFF").decode()):
        assert player(text) == ""


def test_mistakes_come_first_and_differ_where_they_are_marked() -> None:
    sound = clip(tone(500, 0.1), RATE)
    right = tuple(Heard(sound, "one", "one", right=True) for _ in range(10))
    wrong = (Heard(sound, "nine <two>", "five <two>", right=False, name="Ada"),)
    shown, folded = sound_list(Predictions(sounds=right + wrong)).split("<details>")
    assert shown.count("<audio") == SHOWN
    assert folded.count("<audio") == 3
    assert shown.index("✗") < shown.index("✓")
    assert "<del>five</del> &lt;two&gt;" in shown
    assert "<ins>nine</ins> &lt;two&gt;" in shown
    silent = sound_list(Predictions(sounds=(Heard(sound, "one", "", right=False),)))
    assert WORDS["samples.empty"][0] in silent


def test_continuations_stay_in_their_order_and_versions_stand_side_by_side() -> None:
    sound = clip(tone(500, 0.4), RATE)
    made = tuple(
        Heard(sound, "two", text, right=text == "two", prompt=0.1) for text in ("two", "six")
    )
    html = sound_list(Predictions(sounds=made))
    assert html.index("✓") < html.index("✗")
    assert about_sounds(Predictions(sounds=made)) == WORDS["sounds.continued"]
    versions = tuple(Heard(sound, name=f"{k} kbit/s", score=k) for k in (1.0, 2.0))
    coded = Predictions(sounds=(Heard(sound, name="Ada", wanted="two", versions=versions),))
    html = sound_list(coded)
    assert html.count("<audio") == 3
    assert "2.0 kbit/s · " in html
    assert "SI-SDR 2.0 dB" in html
    assert about_sounds(coded) == WORDS["sounds.versions"]


def test_a_page_with_sounds_is_one_file_that_may_play_them(tmp_path: Path) -> None:
    heard = Predictions(sounds=(Heard(clip(tone(500, 0.2), RATE), HOSTILE, HOSTILE, name=HOSTILE),))
    part = Part(
        *("hears", said("Hears"), said("It hears"), said("")),
        *(nn.Linear(2, 2), rows(), {"wer": 0.1}, heard),
        unit="sounds",
    )
    page = write_several(
        tmp_path / "r.html", title=said("T"), lead=said("L"), parts=[part], facts={}
    ).read_text(encoding="utf-8")
    Outline(page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "media-src data:" in policy[1]
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert HOSTILE not in page.split('id="data"')[0]
    assert WORDS["figure.wer"][1] in page


# --- where it listens -----------------------------------------------------------------------------


def recogniser() -> config.EncoderDecoder:
    block = config.Block(config.Attention(heads=2), config.Feed(16, act="gelu"), norm_at="pre")
    heard = config.Stack(
        8, config.Sound(), config.StoredSinusoids(50), (block,) * 2, final_norm=config.Norm()
    )
    says = replace(block, cross=config.Attention(heads=2))
    told = config.Stack(
        8, config.Tokens(32), config.Learned(16), (says,) * 2, causal=True, final_norm=config.Norm()
    )
    return config.EncoderDecoder(heard, told, config.LMHead(), shared=False, start_id=0)


def test_what_is_shown_is_the_attention_of_the_sharpest_layer() -> None:
    model = af.build(recogniser(), seed=0).eval()
    features = torch.randn(1, 80, 100, generator=torch.Generator().manual_seed(0))
    ids = [0, 5, 6]
    found = listens(model, features, ids)
    assert found is not None
    seen = af.trace(
        model,
        only="decoder.*.cross.weights",
        input_features=features,
        decoder_input_ids=torch.tensor([ids]),
    )
    means = [seen[f"decoder.{i}.cross.weights"][0].mean(0) for i in range(2)]  # T S
    sharp = [float(x.square().sum(-1).mean()) for x in means]
    assert found.layer == 1 + int(sharp[1] > sharp[0])
    assert found.layers == 2
    assert np.allclose(found.weights, means[found.layer - 1].numpy(), atol=1e-6)


def test_the_report_of_a_recogniser_has_its_stairs_and_says_what_it_hears(tmp_path: Path) -> None:
    model = af.build(recogniser(), seed=0)
    heard = (Heard(clip(tone(500, 0.4), RATE), "ab", "ab", right=True),)
    page = write_report(
        tmp_path / "r.html",
        model=model,
        tokenizer=Letters(),
        history=rows(),
        scores={"wer": 0.1},
        facts={},
        predictions=Predictions(sounds=heard),
    ).read_text(encoding="utf-8")
    assert Outline(page).open == []
    stairs = page.split('class="stairs"')[1]
    assert "<span>a</span><span>b</span><span>.</span>" in stairs
    assert "1 seconds of sound become 100 spectra of 80 bands" in page
    assert WORDS["diagram.convolutions"][1] in page
    assert WORDS["listens.none"][0] in listening(model, None, heard)


class Letters:
    bos_id, eos_id = 0, 1

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 95 for letter in text]

    def tokens(self, ids: list[int]) -> list[str]:
        return ["." if i == 1 else chr(i + 95) for i in ids]
