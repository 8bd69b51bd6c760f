"""Sound from files: formats, rates, channels, parts, blocks, and files that are no sound."""

from __future__ import annotations

import io
import math
import re
import sys

import numpy as np
import pytest
import torch

from allformer.errors import DataError
from allformer.sound import blocks, describe, log_mel, read, write
from allformer.sound.read import from_array
from allformer.sound.resample import _Sinc
from allformer.sound.write import wav_bytes
from tests.unit.test_docs import blocks as blocks_of


def tone(seconds: float = 1.0, rate: int = 16_000, hertz: float = 440.0) -> torch.Tensor:
    at = torch.arange(round(seconds * rate), dtype=torch.float64) / rate
    return (0.5 * torch.sin(2 * math.pi * hertz * at)).float()


@pytest.fixture
def bare(monkeypatch):
    """As on a machine without soundfile and soxr."""
    for name in ("soundfile", "soxr"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(("ending", "off"), [("wav", 2e-5), ("flac", 4e-5), ("ogg", 0.05)])
def test_what_is_written_is_read_again(tmp_path, ending, off):
    path = tmp_path / f"tone.{ending}"
    write(path, tone(), 16_000)
    assert describe(path).seconds == pytest.approx(1.0)
    assert (read(path) - tone()).abs().max() < off


def test_mp3_is_read(tmp_path):
    path = tmp_path / "tone.mp3"
    write(path, tone(), 16_000)
    assert (read(path)[:16_000] - tone()).abs().mean() < 0.02


def test_channels_are_averaged_or_kept():
    both = wav_bytes(torch.stack([tone(), 0.5 * tone()]), 16_000)
    assert (read(both) - 0.75 * tone()).abs().max() < 2e-5
    assert read(both, mono=False).shape == (2, 16_000)


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 48_000])
def test_any_rate_comes_as_16_khz(rate):
    wave = read(wav_bytes(tone(rate=rate), rate))
    assert wave.shape == (16_000,)
    assert (wave - tone())[500:-500].abs().max() < 1e-3


def test_without_libraries_plain_wav_is_read_and_resampled_alike(bare):
    for rate in (8_000, 16_000, 22_050):
        wave = read(wav_bytes(tone(rate=rate), rate))
        assert wave.shape == (16_000,)
        assert (wave - tone())[500:-500].abs().max() < 1e-3
    with pytest.raises(DataError, match=r"pip install allformer\[sound\]"):
        read(b"fLaC" + bytes(100))


def check_stream() -> None:
    wave = torch.randn(2, 5_000, generator=torch.Generator().manual_seed(0)) / 4
    resampler, whole = _Sinc(22_050, 16_000, 2), _Sinc(22_050, 16_000, 2).push(wave, last=True)
    parts = [
        resampler.push(wave[:, at : at + 333], last=at + 333 >= 5_000)
        for at in range(0, 5_000, 333)
    ]
    assert torch.allclose(torch.cat(parts, -1), whole, atol=1e-6)
    at = torch.arange(16_000, dtype=torch.float64) / 8_000
    tones = _Sinc(8_000, 16_000, 1).push(torch.sin(2000 * at).float()[None], last=True)[0]
    want = torch.sin(2000 * torch.arange(32_000, dtype=torch.float64) / 16_000)
    assert (tones - want)[1000:-1000].abs().max() < 1e-4


def test_the_formula_resamples_a_stream_as_a_whole():
    check_stream()


def test_blocks_are_the_whole_in_pieces():
    sound = wav_bytes(tone(2.0, 44_100), 44_100)
    pieces = list(blocks(sound, block=0.3))
    assert len(pieces) > 5
    assert max(len(piece) for piece in pieces) < 0.6 * 16_000
    assert torch.equal(torch.cat(pieces), read(sound))


def test_a_part_is_chosen_by_seconds():
    sound = wav_bytes(tone(2.0), 16_000)
    part = read(sound, start=0.5, seconds=0.25)
    assert torch.equal(part, read(sound)[8_000:12_000])
    with pytest.raises(DataError, match="ends before 3 s"):
        read(sound, start=3)


def test_files_that_are_no_sound_are_refused_by_name(tmp_path):
    empty, text, head = (tmp_path / name for name in ("empty.wav", "notes.mp3", "head.wav"))
    empty.write_bytes(b"")
    text.write_bytes(b"no sound at all\n" * 100)
    head.write_bytes(wav_bytes(torch.zeros(0), 16_000))
    for path, why in (
        (tmp_path / "gone.wav", "is not there"),
        (tmp_path, "is no file"),
        (empty, "is empty"),
        (text, "no sound that can be read"),
        (head, "has no sound in it"),
    ):
        with pytest.raises(DataError, match=why) as told:
            read(path)
        assert str(path) in str(told.value)


def test_a_file_that_is_cut_short_gives_what_is_there_or_an_error(tmp_path):
    whole = wav_bytes(tone(), 16_000)
    assert torch.equal(read(whole[:16_044]), read(whole)[:8_000])
    noise = torch.randn(16_000, generator=torch.Generator().manual_seed(0)) / 4
    write(tmp_path / "tone.flac", noise, 16_000)
    with pytest.raises(DataError, match="damaged or cut short"):
        read((tmp_path / "tone.flac").read_bytes()[:9_000])


def headed(whole: int, sound: int, between: bytes = b"") -> bytes:
    """A tone under a head that says so many bytes of the whole and of the sound."""
    plain = wav_bytes(tone(), 16_000)
    sizes = [x.to_bytes(4, "little") for x in (whole, sound)]
    return plain[:4] + sizes[0] + plain[8:36] + between + plain[36:40] + sizes[1] + plain[44:]


@pytest.mark.parametrize("library", [True, False], ids=["soundfile", "wave"])
@pytest.mark.parametrize("whole", [0, 36, 32_036, 0xFFFFFFFF])
@pytest.mark.parametrize("sound", [0, 32_000, 0x7FFFF000, 0xFFFFFFFF])
def test_a_wav_of_a_pipe_whose_head_knows_no_length_is_read_to_its_end(
    whole, sound, library, tmp_path, request
):
    if not library:
        request.getfixturevalue("bare")
    path = tmp_path / "pipe.wav"
    path.write_bytes(headed(whole, sound, b"LIST\4\0\0\0INFO"))
    assert describe(path).samples == 16_000
    assert torch.equal(read(path), read(wav_bytes(tone(), 16_000)))
    assert torch.equal(read(path, start=0.5), read(path)[8_000:])


@pytest.mark.parametrize("library", [True, False], ids=["soundfile", "wave"])
def test_a_wav_that_says_0_bytes_and_has_none_is_empty(library, request):
    if not library:
        request.getfixturevalue("bare")
    head = headed(36, 0)[:44]
    for rest in (b"", b"LIST\4\0\0\0INFO"):
        with pytest.raises(DataError, match="has no sound in it"):
            read(head + rest)


def test_a_file_that_cannot_say_where_it_is_is_read_from_its_beginning():
    """Old telephones' GSM: libsndfile cannot seek in it."""
    import soundfile

    out = io.BytesIO()
    soundfile.write(out, tone(rate=8_000).numpy(), 8_000, format="WAV", subtype="GSM610")
    wave = read(out.getvalue())
    assert 16_000 <= len(wave) <= 16_640  # whole frames
    assert (wave[:16_000] - tone()[: len(wave)]).abs().mean() < 0.1
    with pytest.raises(DataError, match="give start=0"):
        read(out.getvalue(), start=0.5)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"seconds": math.inf}, "seconds=inf"),
        ({"start": math.nan}, "start=nan"),
        ({"rate": 0}, "=0 Hz is not between"),
    ],
)
def test_a_part_or_a_rate_that_is_no_number_is_refused(part, why):
    with pytest.raises(DataError, match=why):
        read(wav_bytes(tone(), 16_000), **part)


def test_sound_that_is_no_file_for_us_is_told_how_to_become_one():
    with pytest.raises(DataError, match="`ffmpeg -i FILE"):
        read(b"\0\0\0\x1cftypM4A " + bytes(200))


def test_what_is_written_may_be_an_array_or_whole_numbers(tmp_path):
    path, loud = tmp_path / "tone.wav", (tone() * 2**15).round().to(torch.int16)
    for wave in (tone().numpy(), tone().numpy().astype("f8"), loud, loud.numpy()):
        write(path, wave, 16_000)
        assert (read(path) - tone()).abs().max() < 4e-5
        assert (log_mel(read(path).numpy()) - log_mel(read(path))).abs().max() == 0


@pytest.mark.parametrize(
    ("wave", "rate", "why"),
    [
        (torch.full((9,), math.nan), 16_000, "no numbers"),
        (torch.zeros(9, dtype=torch.int64), 16_000, "int16"),
        (torch.zeros(9), 0, "rate=0"),
    ],
)
def test_what_is_no_sound_is_not_written(wave, rate, why, tmp_path):
    with pytest.raises(DataError, match=why):
        write(tmp_path / "tone.wav", wave, rate)
    assert not (tmp_path / "tone.wav").exists()
    with pytest.raises(DataError, match="make it first"):
        write(tmp_path / "no" / "tone.wav", torch.zeros(9), 16_000)


def test_samples_that_are_no_numbers_are_refused():
    import soundfile

    out = io.BytesIO()
    wave = np.full(100, np.nan, "f4")
    soundfile.write(out, wave, 16_000, format="WAV", subtype="FLOAT")
    with pytest.raises(DataError, match="no numbers"):
        read(out.getvalue())


def test_arrays_come_as_files_do():
    wave = (tone(rate=8_000) * 32_768).round().to(torch.int16)
    given = from_array(wave.numpy(), rate=8_000)
    assert torch.allclose(given, read(wav_bytes(tone(rate=8_000), 8_000)), atol=1e-6)
    with pytest.raises(DataError, match="int16"):
        from_array(torch.zeros(4, dtype=torch.int64), rate=16_000)


@pytest.mark.parametrize("about", ["allformer.sound import", "allformer.text.spoken import"])
def test_what_the_page_on_sound_shows_is_what_is_said(about, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = (block for block in blocks_of("docs/audio.md", "python") if about in block)
    exec(compile(code, "docs/audio.md", "exec"), {})
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    shown = re.findall(r"^print.*  # (.*)$", code, re.MULTILINE)
    assert said == [line.split(": ")[0] if line.startswith("[]") else line for line in shown]
