"""The report on a narrow screen: nothing is cut without a way to see it."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from allformer.explain.words import WORDS
from tests.unit.test_report import report


def test_what_is_wider_than_a_phone_scrolls_and_says_so(tmp_path: Path) -> None:
    """In a browser: the boxes that scroll fade at an edge, and a line above each tells."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no Chromium on this machine")
    report(tmp_path)
    done = subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=500,900",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom",
         (tmp_path / "run" / "report.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    page = done.stdout
    if "</html>" not in page:
        pytest.skip(f"Chromium does not run here: {done.stderr[-200:]}")
    notes = re.findall(r'<p class="swipe"( hidden="")?>([^<]*)</p><\w+ class="wide"([^>]*)>', page)
    assert len(notes) >= 3  # diagram, parameters, growth, …
    for hidden, text, attributes in notes:
        assert text == WORDS["js.scroll"][0]
        assert bool(hidden) == ("data-more" not in attributes)
    diagram = next(attributes for _, _, attributes in notes if 'role="region"' in attributes)
    assert 'data-more="right"' in diagram
    assert re.search(r'<nav [^>]*data-more="right"', page)


def test_commands_wrap_and_heads_are_not_cut() -> None:
    style = resources.files("allformer.explain").joinpath("report.css").read_text(encoding="utf-8")
    assert "white-space: pre-wrap" in re.search(r"\.command code \{[^}]*\}", style)[0]
    assert "nowrap; overflow-x" not in style
