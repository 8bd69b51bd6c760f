"""How fast image files are read: by threads, by processes, and what training from them waits.

    python benchmarks/read_images.py [--files 2000] [--workers 1 2 4 8 16]
    python benchmarks/read_images.py --train          # a ViT-S/16 from files; on a GPU

JPEGs of 224 to 500 pixels are drawn, resized and cropped to 224 × 224 as CLIP's processor does.
Threads and processes read in turns; the best of each counts, and processes count from when they
have begun. With --train a run of a few steps says its speed and the share of the time in which it
waited for data, with threads (`data.workers: 0`) and with processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clip_files import make_pictures

from allformer.images.crew import Crew, read_pixels, usual_crew
from allformer.images.in_order import in_order
from allformer.images.settings import Settings, make_settings
from allformer.train.loop import train
from allformer.train.pictures import gallery
from allformer.train.recipe import make_recipe


def stages(paths: list[str], settings: Settings) -> dict[str, float]:
    """Milliseconds of one core for an image: decoding, and all."""
    from PIL import Image

    def each(work: Callable[[str], Any]) -> float:
        begin = time.process_time()
        for path in paths[:100]:
            work(path)
        return 1e3 * (time.process_time() - begin) / len(paths[:100])

    return {
        "decode": each(lambda path: Image.open(path).load()),
        "all": each(lambda path: read_pixels(path, "", settings)),
    }


def speeds(paths: list[str], settings: Settings, workers: int, turns: int) -> dict[str, float]:
    """Images a second by so many threads, and by so many processes."""

    def threads() -> None:
        for _ in in_order(lambda path: read_pixels(path, "", settings), paths, workers):
            pass

    best = {"threads": 0.0, "processes": 0.0}
    with Crew(settings, workers) as crew:
        for pipe in crew._pipes:
            pipe.poll(120)

        def processes() -> None:
            for _ in crew.read((path, path) for path in paths):
                pass

        for _ in range(turns):
            for name, work in (("threads", threads), ("processes", processes)):
                begin = time.perf_counter()
                work()
                best[name] = max(best[name], len(paths) / (time.perf_counter() - begin))
    return best


def trained(paths: list[str], folder: Path, workers: int | None, args: Any) -> dict[str, float]:
    """Of a run over the files: images a second, and the share in which it waited for them."""
    for number, path in enumerate(paths):
        place = folder / "pictures" / "train" / f"class {number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        if not (place / f"{number}.jpg").exists():
            os.link(path, place / f"{number}.jpg")
    sizes = (16, 32, 1, 32, 1) if args.tiny else (16, 384, 6, 1536, 12)
    recipe = make_recipe({
        "objective": "image-classification",
        "data": {"path": str(folder / "pictures"), "image": [224, 224], "hold_out": 8,
                 "workers": workers},
        "model": dict(zip(("patch", "dim", "heads", "feed", "layers"), sizes, strict=True)),
        "train": {"steps": args.steps, "batch_rows": args.batch, "validate_every": args.steps,
                  "save_every": args.steps, "average": 1},
        "log": {"every": args.steps // 2, "tensorboard": False},
    })  # fmt: skip
    gallery.MOST_BYTES = 0  # files are read each time
    run = folder / f"run {workers}"
    shutil.rmtree(run, ignore_errors=True)
    rows = [row for row in train(recipe, run).rows if "data_wait" in row]
    return {"images": rows[-1]["tokens_per_second"], "wait": rows[-1]["data_wait"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, usual_crew()])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--steps", type=int, default=60, help="of --train; the second half counts")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--tiny", action="store_true", help="a tiny model: does it run?")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    settings = make_settings({"image_processor_type": "CLIPImageProcessor"})
    with tempfile.TemporaryDirectory() as name:
        paths = make_pictures(Path(name) / "files", args.files)
        said: dict[str, Any] = {"cores": usual_crew(), "ms": stages(paths, settings)}
        said["read"] = {n: speeds(paths, settings, n, args.turns) for n in args.workers}
        if args.train:
            said["train"] = {
                told: trained(paths, Path(name), workers, args)
                for told, workers in (("threads", 0), ("processes", usual_crew()))
            }
    if args.json:
        print(json.dumps(said))
        return
    cost = said["ms"]
    print(f"one core: {cost['all']:.2f} ms an image, of which decoding {cost['decode']:.2f}")
    for count, row in said["read"].items():
        print(f"{count:3} workers: " + ", ".join(f"{k} {v:,.0f} images/s" for k, v in row.items()))
    for told, row in said.get("train", {}).items():
        print(f"training, {told}: {row['images']:,.0f} images/s, wait {row['wait']:.1%}")


if __name__ == "__main__":
    main()
