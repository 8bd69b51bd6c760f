"""Images are read upright and in RGB, or refused with the file's name and a way out."""

from __future__ import annotations

import io
import struct
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from allformer.errors import DataError
from allformer.images import read_image
from allformer.images.read import MOST_PIXELS


def picture(height=9, width=14, channels=3, seed=0):
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(image, kind="PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def test_path_bytes_array_tensor_and_pillow_image_are_one_image(tmp_path):
    values = picture()
    image = Image.fromarray(values)
    image.save(tmp_path / "a.png")
    sources = [
        tmp_path / "a.png", str(tmp_path / "a.png"), encoded(image), values, image,
        values.transpose(2, 0, 1), torch.from_numpy(values),
        torch.from_numpy(values).permute(2, 0, 1),
    ]  # fmt: skip
    for source in sources:
        read = read_image(source)
        assert read.mode == "RGB"
        assert (np.asarray(read) == values).all()


def test_without_pillow_the_way_to_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install allformer\[vision\]"):
        read_image(b"bytes")


def test_grey_becomes_three_equal_channels_and_grey_stays_where_it_is_asked_for():
    values = picture(channels=1)
    colour = np.asarray(read_image(encoded(Image.fromarray(values))))
    assert (colour == values[..., None]).all()
    assert (np.asarray(read_image(values, mode="L")) == values).all()
    assert (np.asarray(read_image(values[..., None], mode="L")) == values).all()


def test_what_is_transparent_lies_on_white():
    values = picture(channels=4)
    values[0, 0, 3], values[0, 1, 3] = 0, 255
    read = np.asarray(read_image(encoded(Image.fromarray(values))))
    assert (read[0, 0] == 255).all()
    assert (read[0, 1] == values[0, 1, :3]).all()
    clear = values[..., 3:] / 255
    wanted = clear * values[..., :3] + (1 - clear) * 255
    assert np.abs(read - wanted).max() <= 1
    assert np.abs(np.asarray(read_image(values)) - wanted).max() <= 0.5


def test_a_palette_gives_its_colours_and_its_clear_colour_is_white():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    assert np.asarray(read_image(encoded(image))).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    clear = encoded(image, transparency=1)
    assert np.asarray(read_image(clear)).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_cmyk_becomes_rgb():
    image = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    read = np.asarray(read_image(encoded(image, "TIFF")))
    assert (read == [0, 255, 255]).all()
    assert read_image(encoded(image, "JPEG")).mode == "RGB"


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_of_16_bits_the_upper_8_count(kind):
    values = np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)
    read = np.asarray(read_image(encoded(Image.fromarray(values), kind)))
    assert read[0, :, 0].tolist() == [0, 0, 1, 128, 255]
    assert np.asarray(read_image(values))[0, :, 0].tolist() == [0, 0, 1, 128, 255]


def test_pixels_without_a_known_white_are_refused():
    with pytest.raises(DataError, match="8 or 16 bits"):
        read_image(Image.fromarray(np.ones((2, 2), np.float32)))
    with pytest.raises(DataError, match=r"from 0 to 70000.*8 or 16 bits"):
        read_image(Image.fromarray(np.array([[0, 70000]], np.int32)))
    with pytest.raises(DataError, match=r"array of float64; give uint8.*255"):
        read_image(np.ones((2, 2, 3)))


@pytest.mark.parametrize(
    ("orientation", "turned"),
    [
        (1, lambda x: x),
        (2, lambda x: x[:, ::-1]),
        (3, lambda x: x[::-1, ::-1]),
        (6, lambda x: np.rot90(x, -1)),
        (8, lambda x: np.rot90(x)),
    ],
)
def test_exif_turns_the_image(orientation, turned):
    values = picture()
    exif = Image.Exif()
    exif[0x0112] = orientation
    read = np.asarray(read_image(encoded(Image.fromarray(values), exif=exif)))
    assert (read == turned(values)).all()


def test_of_an_animation_the_first_frame_is_read():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        options = {"save_all": True, "append_images": frames[1:]}
        read = read_image(encoded(frames[0], kind, **options))
        assert np.abs(np.asarray(read).astype(int) - [255, 0, 0]).max() < 5, kind


def test_what_is_no_image_is_refused_by_name(tmp_path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "words.jpg").write_text("these are words")
    (tmp_path / "page.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for name, said in (
        ("empty.jpg", "is empty"),
        ("words.jpg", "no image that can be read"),
        ("page.eps", "no image that can be read"),
        ("none.jpg", "is not there; check the path"),
        (".", "is no file"),
    ):
        with pytest.raises(DataError, match=said) as error:
            read_image(tmp_path / name)
        assert str(tmp_path) in str(error.value)
    with pytest.raises(DataError, match="image 3 is a dict; give a path"):
        read_image({}, name="image 3")
    with pytest.raises(DataError, match=r"array of .5, 5, 2.*1, 3 or 4 channels"):
        read_image(np.zeros((5, 5, 2), np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_a_file_that_is_cut_short_is_refused(kind, tmp_path):
    whole = encoded(Image.fromarray(picture(60, 60)), kind)
    for part in (0.9, 0.5, 0.1):
        (tmp_path / "cut").write_bytes(whole[: int(part * len(whole))])
        with pytest.raises(DataError, match=r"cut .*(damaged|no image)"):
            read_image(tmp_path / "cut")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_damaged_file_is_read_or_refused(thorough):
    generator, said = np.random.default_rng(0), set()
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"):
        whole = np.frombuffer(encoded(Image.fromarray(picture(20, 20)), kind), np.uint8)
        for _ in range(500 if thorough else 25):
            damaged = whole.copy()
            at = generator.integers(0, len(whole), 5)
            damaged[at] = generator.integers(0, 256, 5)
            try:
                assert read_image(damaged.tobytes()).mode == "RGB"
            except DataError as error:
                said.add(str(error))
    assert said
    assert all(";" in each for each in said)


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is so large, and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("edge", [10_000, 60_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(edge, tmp_path):
    (tmp_path / "bomb.png").write_bytes(bomb(edge, edge))
    with pytest.raises(DataError, match=rf"bomb.png .*{MOST_PIXELS:,} pixels.*smaller first"):
        read_image(tmp_path / "bomb.png")


def test_what_is_given_back_is_not_the_callers_own_image():
    own = Image.new("RGB", (4, 3), (9, 9, 9))
    read = read_image(own)
    read.putpixel((0, 0), (1, 2, 3))
    assert own.getpixel((0, 0)) == (9, 9, 9)
