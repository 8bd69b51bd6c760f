"""Imports point down only, and `import allformer` stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import allformer

ROOT = Path(allformer.__file__).parent

# Lower may not import higher; equals may, as long as there is no circle.
LEVELS = [
    {"begin", "disk", "errors", "version"},
    {"gguf_header", "json_file", "metrics"},
    {"config"},
    {"core"},
    {"codecs", "count", "families"},
    {"text", "data", "images", "sound"},
    {"tune"},
    {"checkpoint"},
    {"train", "generate", "explain", "auditor", "audiolm"},
    {"speech"},
    {"evaluate", "tasks"},
    {
        "bench",
        "demo",
        "demo_audio",
        "demo_room",
        "demo_vision",
        "lm_eval",
        "reproduce",
        "run_facts",
        "run_judged",
        "run_report",
        "serve",
    },
    {"cli"},
    {"__init__", "__main__"},
]
# A word for the user that nothing below calls: `model.generate(…)`, imported when it is called.
WORDS = {("allformer.core.whole", "allformer.generate.generate")}
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
HEAVY = [
    "matplotlib", "rich", "typer", "tokenizers", "transformers", "tensorboard", "sacrebleu", "PIL",
    "torch._dynamo",
]  # fmt: skip


def sources() -> dict[str, str]:
    """Module name ("allformer.core.attend") → its text."""
    out = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["allformer", *path.relative_to(ROOT).with_suffix("").parts]
        if parts[-1] == "__init__" and len(parts) > 2:
            parts.pop()
        out[".".join(parts)] = path.read_text(encoding="utf-8")
    return out


def imports(module: str, text: str, known: set[str]) -> set[str]:
    """Modules of the package that `text` imports, at the top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: -node.level]
                base = ".".join([*above, base]).rstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in known else base)
    inside = {name for name in found if name == "allformer" or name.startswith("allformer.")}
    found = {"allformer.__init__" if name == "allformer" else name for name in inside} - {module}
    return {other for other in found if (module, other) not in WORDS}


def level(module: str) -> int:
    part = module.split(".")[1]
    assert part in LEVEL, f"{module}: say in LEVELS where {part} stands"
    return LEVEL[part]


def arrows_up(texts: dict[str, str]) -> list[str]:
    """`core.attend imports train.loop` for every import that points up."""
    return [
        f"{module} imports {other}"
        for module, text in texts.items()
        for other in sorted(imports(module, text, set(texts)))
        if level(other) > level(module)
    ]


def test_imports_point_down_only():
    assert arrows_up(sources()) == []


def circle(texts: dict[str, str]) -> str:
    """`a → b → a` if modules import each other in a circle, else nothing."""
    graph = {module: imports(module, text, set(texts)) for module, text in texts.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        return " → ".join(found.args[1])
    return ""


def test_no_modules_import_each_other_in_a_circle():
    assert circle(sources()) == ""


def test_an_arrow_up_would_be_found():
    planted = {
        "allformer.core.attend": "def f():\n    from allformer.train.loop import run",
        "allformer.core.block": "import allformer as af",
        "allformer.errors": "from .config import Norm",
        "allformer.config": "from allformer import errors",
        "allformer.train.loop": "from allformer import data\nfrom allformer.core import attend",
        "allformer.data": "",
        "allformer.__init__": "from allformer.config import Norm",
    }
    assert arrows_up(planted) == [
        "allformer.core.attend imports allformer.train.loop",
        "allformer.core.block imports allformer.__init__",
        "allformer.errors imports allformer.config",
    ]


def test_a_circle_would_be_found():
    planted = {
        "allformer.core.a": "from allformer.core import b",
        "allformer.core.b": "from .c import thing",
        "allformer.core.c": "def later():\n    import allformer.core.a",
    }
    assert circle(planted).count("→") == 3
    assert circle(planted | {"allformer.core.c": ""}) == ""


def test_importing_allformer_loads_nothing_heavy():
    code = f"""
import sys, allformer
loaded = [name for name in {HEAVY} if name in sys.modules]
assert "torch" in sys.modules
sys.exit(f"import allformer loads {{loaded}}" if loaded else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
