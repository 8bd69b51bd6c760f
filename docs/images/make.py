"""The README's pictures: two parts of the demo's report side by side, in English and in Chinese.

    python docs/images/make.py demo/report.html      # after `make demo`; needs Chromium or Chrome

Nothing is drawn here: the page is laid out in two columns, the other sections are hidden, and a
headless browser photographs it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

WIDTH, HEIGHT, SCALE = 1360, 1000, 1.5
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
LAYOUT = """
.bar, footer, section:not(.headline, #samples, #attention), .verdict, details,
.card:is(:nth-child(3), :nth-child(4), :nth-child(5), :nth-child(8)), .card .note code,
#samples p, #attention > p:not(.ramps), #samples li:nth-child(n + 6),
html[lang="en"] #samples li:nth-child(n + 5) { display: none; }
main { display: grid; grid-template: auto auto 1fr / 37.5rem 1fr; gap: 0 3.5rem; max-width: none; }
main { padding: 0 2.5rem; }
section, section.headline { padding: 1.8rem 0 0; border: 0; }
#samples { grid-area: 2 / 1; }
#attention { grid-area: 1 / 2 / 4 / 3; }
h1 { font-size: 2.2rem; }
html[lang|="zh"] h1 { font-size: 1.9rem; white-space: nowrap; }
.lead { margin: 0; }
.cards { grid-template-columns: repeat(4, 1fr); gap: 0 1.2rem; margin-top: 1.6rem; }
.card { padding-bottom: 0; }
.card b { font-size: 1.55rem; white-space: nowrap; }
.samples { margin: 0; }
.picks fieldset { flex-wrap: nowrap; }
.picks fieldset input + span { white-space: nowrap; padding: 0.3rem 0.5rem; font-size: 0.78rem; }
.picks legend, .picks .what { width: 5.2rem; }
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("report", type=Path, help="what `make demo` wrote: demo/report.html")
    parser.add_argument("--browser", default=next(filter(shutil.which, BROWSERS), BROWSERS[0]))
    args = parser.parse_args()
    html = args.report.read_text(encoding="utf-8")
    for language in ("en", "zh"):
        with tempfile.TemporaryDirectory() as folder:
            page, shot = Path(folder, "page.html"), Path(folder, "shot.png")
            page.write_text(html.replace("</head>", f"<style>{LAYOUT}</style></head>", 1))
            options = [
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--no-first-run", "--disable-background-networking", f"--user-data-dir={folder}"),
                *(f"--window-size={WIDTH},{HEIGHT}", f"--force-device-scale-factor={SCALE}"),
            ]
            address = f"{page.as_uri()}#{language}"
            subprocess.run(
                [args.browser, *options, f"--screenshot={shot}", address],
                check=True,
                capture_output=True,
            )
            save(shot, Path(__file__).with_name(f"report-{language}.png"))


def save(shot: Path, out: Path) -> None:
    """Cut off the empty rows at the bottom; a palette makes the file a third as large."""
    image = Image.open(shot).convert("RGB")
    paper = Image.new("RGB", image.size, image.getpixel((0, 0)))
    bottom = ImageChops.difference(image, paper).getbbox()[3]
    image = image.crop((0, 0, image.width, min(image.height, bottom + 40)))
    image.quantize(256, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out}: {image.width} × {image.height}, {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
