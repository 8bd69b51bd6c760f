"""What preprocessor_config.json says: how an image becomes the numbers that a model was taught on.

settings = make_settings({"image_processor_type": "ViTImageProcessor", "size": 32})

Fields that a file leaves out mean what transformers' class of that name means by leaving them out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from allformer.errors import DataError, did_you_mean
from allformer.images.sizes import as_size

FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
HALF = (0.5, 0.5, 0.5)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_ALL: dict[str, Any] = {
    "do_resize": True, "do_center_crop": False, "crop_size": None, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": HALF, "image_std": HALF,
    "do_convert_rgb": False, "default_to_square": True,
}  # fmt: skip
_CLIP = {
    **_ALL, "size": {"shortest_edge": 224}, "resample": 3, "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224}, "image_mean": CLIP_MEAN, "image_std": CLIP_STD,
    "do_convert_rgb": True, "default_to_square": False,
}  # fmt: skip
_SQUARE = {"height": 224, "width": 224}
# Of those that find objects: images keep their shape, and are put on a sheet of the largest.
_DETR = {
    **_ALL, "size": {"shortest_edge": 800, "longest_edge": 1333}, "resample": 2,
    "image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD, "default_to_square": False,
    "do_pad": True,
}  # fmt: skip
# What each class means by a field that is left out.
KINDS: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": {**_ALL, "size": _SQUARE, "resample": 2},
    "DeiTImageProcessor": {
        **_ALL, "size": {"height": 256, "width": 256}, "resample": 3, "do_center_crop": True,
        "crop_size": _SQUARE,
    },
    "BitImageProcessor": _CLIP,  # DINOv2's
    "CLIPImageProcessor": _CLIP,
    "SiglipImageProcessor": {
        **_ALL, "size": _SQUARE, "resample": 3, "do_convert_rgb": True, "default_to_square": False,
    },
    "ImageGPTImageProcessor": {
        **_ALL, "size": {"height": 256, "width": 256}, "resample": 2, "clusters": None,
        "do_color_quantize": True,
    },
    "DetrImageProcessor": _DETR,
    "YolosImageProcessor": _DETR,
    "EomtImageProcessor": {
        **_ALL, "size": {"shortest_edge": 640, "longest_edge": 640}, "resample": 2,
        "image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD, "default_to_square": False,
        "do_split_image": False, "do_pad": False, "ignore_index": None,
    },
}  # fmt: skip
MULTIPLE = {"YolosImageProcessor": 16}  # to which resized sides are cut down, whatever the patch is
# Of files that name no class: by the model_type of config.json.
MODEL_TYPES = {
    "vit": "ViTImageProcessor", "deit": "DeiTImageProcessor", "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor", "clip": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor", "imagegpt": "ImageGPTImageProcessor",
    "detr": "DetrImageProcessor",
    "yolos": "YolosImageProcessor",
    "eomt": "EomtImageProcessor",
}  # fmt: skip
# Said by files and without a bearing on the numbers: names of classes, and where tensors go.
_ASIDE = {
    "image_processor_type", "feature_extractor_type", "processor_class", "return_tensors", "device",
    "disable_grouping", "image_seq_length", "input_data_format", "_valid_processor_keys",
    "model_input_names", "auto_map", "format", "do_convert_annotations",
}  # fmt: skip
# Said by files, and known here in one value only.
_ONLY: dict[str, Any] = {
    "do_pad": False, "pad_size": None, "data_format": "channels_first", "use_square_size": False,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The steps, in their order: RGB, resize, centre crop, split, pad, rescale, normalise.

    `do_split_image` cuts a long image into squares of `size`'s shortest edge, `do_pad` puts black
    at the right and below up to `size` (EoMT) or to the largest of a batch (DETR); None where the
    class knows neither. With `clusters` the number of the nearest of these colours stands in place
    of each pixel (ImageGPT).
    """

    image_processor_type: str
    do_resize: bool
    size: dict[str, int]
    resample: int  # a key of FILTERS
    do_center_crop: bool
    crop_size: dict[str, int] | None
    do_rescale: bool
    rescale_factor: float
    do_normalize: bool
    image_mean: tuple[float, ...] | float
    image_std: tuple[float, ...] | float
    do_convert_rgb: bool
    clusters: tuple[tuple[float, ...], ...] | None = None
    do_split_image: bool | None = None
    do_pad: bool | None = None
    ignore_index: int | None = None  # of maps to learn from: what they call 0

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of every image, resized and cropped; None: it depends."""
        size = self.crop_size if self.do_center_crop else self.size if self.do_resize else None
        if size is None or "height" not in size:
            return None
        return self.channels, size["height"], size["width"]

    @property
    def multiple(self) -> int:
        """To which the sides of a resized image are cut down."""
        return MULTIPLE.get(self.image_processor_type, 1)

    @property
    def mode(self) -> str:
        """What an image is turned into first: "L" (grey) where the means are of one channel, and
        pixels are not numbered by colours."""
        one = isinstance(self.image_mean, tuple) and len(self.image_mean) == 1
        return "L" if one and not self.do_convert_rgb and self.clusters is None else "RGB"

    @property
    def channels(self) -> int:
        """3, or 1 of grey."""
        return len(self.mode)

    def to_dict(self) -> dict[str, Any]:
        """As preprocessor_config.json holds them."""
        raw = {name: value for name, value in asdict(self).items() if value is not None}
        if "clusters" in KINDS[self.image_processor_type]:
            raw["do_color_quantize"] = self.clusters is not None
        return {name: list(x) if isinstance(x, tuple) else x for name, x in raw.items()}


def make_settings(raw: Mapping[str, Any], model_type: str = "") -> Settings:
    """From what preprocessor_config.json holds; a field that nothing here takes is refused."""
    kind = kind_of(raw, model_type)
    usual = KINDS[kind]
    given = {name: value for name, value in raw.items() if value is not None}
    # A switch that is null is off, as transformers takes it, not what the class usually does.
    given |= {name: False for name in raw.keys() - given if isinstance(usual.get(name), bool)}
    if usual.get("do_pad"):
        given = _modern(given)
    for name, value in given.items():
        if name in _ONLY and name not in usual and value not in (_ONLY[name], None):
            raise DataError(f"{name}={value!r} is not known here; only {_ONLY[name]!r} is")
        if name not in {*usual, *_ASIDE, *_ONLY}:
            near = did_you_mean(name, usual)
            raise DataError(
                f"{name}={value!r} is no field of a {kind} that is known here; {near}leave it out "
                f"if it has no bearing on the pixels"
            )
    said = {**usual, **{name: value for name, value in given.items() if name in usual}}
    if said["do_center_crop"] and {"clusters", "do_pad"} & usual.keys():
        raise DataError(f"do_center_crop is true, but a {kind} does not crop; leave it out")
    square = _switch(said, "default_to_square")
    crop = said["crop_size"]
    settings = Settings(
        image_processor_type=kind,
        do_resize=_switch(said, "do_resize"),
        size=as_size(said["size"], "size", square),
        resample=said["resample"],
        do_center_crop=_switch(said, "do_center_crop"),
        crop_size=None if crop is None else as_size(crop, "crop_size", square=True),
        do_rescale=_switch(said, "do_rescale"),
        rescale_factor=_number(said["rescale_factor"], "rescale_factor"),
        do_normalize=_switch(said, "do_normalize"),
        image_mean=_numbers(said["image_mean"], "image_mean"),
        image_std=_numbers(said["image_std"], "image_std"),
        do_convert_rgb=_switch(said, "do_convert_rgb"),
        clusters=_clusters(said) if "clusters" in usual else None,
        do_split_image=_switch(said, "do_split_image") if "do_split_image" in usual else None,
        do_pad=_switch(said, "do_pad") if "do_pad" in usual else None,
        ignore_index=said.get("ignore_index"),
    )
    _check(settings)
    return settings


def _modern(given: dict[str, Any]) -> dict[str, Any]:
    """What older files of DETR and YOLOS say otherwise: `size` 800 with `max_size`, and
    `pad_and_return_pixel_mask`."""
    given = dict(given)
    most = given.pop("max_size", 1333)
    if isinstance(given.get("size"), int) and not isinstance(given["size"], bool):
        given["size"] = {"shortest_edge": given["size"], "longest_edge": most}
    pads = given.pop("pad_and_return_pixel_mask", None)
    return given if pads is None else {"do_pad": pads, **given}


def kind_of(raw: Mapping[str, Any], model_type: str = "") -> str:
    """transformers' class: `CLIPFeatureExtractor`, `CLIPImageProcessorFast` → `CLIPImage…`."""
    named = raw.get("image_processor_type") or raw.get("feature_extractor_type")
    named = named or MODEL_TYPES.get(model_type)
    if named is None:
        raise DataError(
            f"nothing says of which class the image processor is; name it in "
            f"image_processor_type: {', '.join(KINDS)}"
        )
    kind = str(named).removesuffix("Fast").removesuffix("Pil")
    kind = kind.replace("FeatureExtractor", "ImageProcessor")
    if kind not in KINDS:
        raise DataError(
            f"image_processor_type={str(named)[:80]!r} is not known; known are {', '.join(KINDS)}"
        )
    return kind


def _check(settings: Settings) -> None:
    if isinstance(settings.resample, bool) or settings.resample not in FILTERS:
        names = ", ".join(f"{number} ({name})" for number, name in FILTERS.items())
        raise DataError(f"resample={settings.resample!r} is no filter; try {names}")
    crop = settings.crop_size
    if settings.do_center_crop and (crop is None or "height" not in crop):
        raise DataError(f"do_center_crop is true, but crop_size={crop} has no height and width")
    cuts = settings.do_split_image is not None and (settings.do_split_image or settings.do_pad)
    if cuts and "shortest_edge" not in settings.size:
        raise DataError(
            f"size={settings.size} has no shortest_edge, to which do_split_image cuts and do_pad "
            f"fills up; give one"
        )
    if settings.do_normalize:
        for name in ("image_mean", "image_std"):
            value = getattr(settings, name)
            if isinstance(value, tuple) and len(value) != settings.channels:
                raise DataError(
                    f"{name} has {len(value)} numbers, but {settings.mode} has "
                    f"{settings.channels} channels; give one for each"
                )
        std = settings.image_std
        if 0 in (std if isinstance(std, tuple) else (std,)):
            raise DataError(f"image_std={std} has a zero, by which nothing is divided; try 0.5")


def _clusters(said: Mapping[str, Any]) -> tuple[tuple[float, ...], ...] | None:
    """The colours that pixels are numbered by; None where they stay as they are."""
    if not _switch(said, "do_color_quantize"):
        return None
    found = said["clusters"]
    if not isinstance(found, list | tuple) or not found:
        raise DataError(
            "do_color_quantize is true, but clusters has no colours; give a list of [red, green, "
            "blue], each from -1 to 1"
        )
    colours = tuple(_numbers(each, "clusters") for each in found)
    if any(not isinstance(each, tuple) or len(each) != 3 for each in colours):
        raise DataError("clusters must be a list of [red, green, blue]; correct it")
    return colours  # type: ignore[return-value]


def _switch(said: Mapping[str, Any], name: str) -> bool:
    if not isinstance(said[name], bool):
        raise DataError(f"{name}={said[name]!r} must be true or false")
    return bool(said[name])


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{name}={value!r} must be a number")
    return value


def _numbers(value: Any, name: str) -> tuple[float, ...] | float:
    if isinstance(value, list | tuple):
        return tuple(_number(each, name) for each in value)
    return _number(value, name)
