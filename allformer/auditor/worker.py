"""The process in which somebody's code is audited: reads what is wanted, writes an answer."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def load_target(target: str) -> Any:
    """FILE.py:NAME → the object; a directory with config.json → the model in it."""
    path = Path(target)
    if path.is_dir():
        from allformer.auditor.own_models import load_directory

        return load_directory(path)
    file, _, name = target.rpartition(":")
    if not file:
        file, name = target, ""
    source = Path(file)
    if not source.is_file():
        raise ValueError(f"{file} is no file; give FILE.py:NAME or the directory of a checkpoint")
    sys.path.insert(0, str(source.resolve().parent))
    spec = importlib.util.spec_from_file_location(source.stem, source)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.stem] = module
    spec.loader.exec_module(module)
    names = [name] if name else ["build", "model", "Model", "get_model", "make_model"]
    for candidate in names:
        if hasattr(module, candidate):
            return getattr(module, candidate)
    import torch

    public = sorted(
        n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, torch.nn.Module)
    )
    raise ValueError(
        f"{file} has no {' or '.join(names)}; its modules are {', '.join(public) or 'none'}"
    )


def _limit(megabytes: int) -> None:
    """At most this much memory; what is mapped but never touched counts too, so it is generous."""
    try:
        import resource

        size = megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    except (ImportError, ValueError, OSError):
        return


def _no_gpu(problem: str) -> str:
    """A way out where the code asks for a GPU that is not there."""
    if any(word in problem for word in ("CUDA enabled", "NVIDIA driver", "CUDA GPUs")):
        return f"it needs a GPU and there is none; take the device from the input: {problem}"
    return problem


def work(wanted: dict[str, Any]) -> dict[str, Any]:
    """The answer: {"report": …}, {"rows": …} or {"problem": …}."""
    progress = Path(wanted["progress"])

    def tell(name: str, number: int, total: int) -> None:
        progress.write_text(f"{number}/{total} {name}" if name else "", encoding="utf-8")

    try:
        from allformer.auditor import audit, consistency
        from allformer.auditor.probe import brief
        from allformer.errors import AllformerError
    except Exception as error:
        return {"problem": f"allformer cannot be imported: {error}"}
    progress.write_text("importing the code", encoding="utf-8")
    try:
        target = load_target(wanted["target"])
    except MemoryError:
        return {
            "problem": f"building it needs more than {wanted['megabytes']} MB; give --memory more"
        }
    except BaseException as error:
        said = f"{wanted['target']} could not be loaded: {type(error).__name__}: {error}"
        return {"problem": _no_gpu(said)}
    options = dict(wanted["options"])
    progress.write_text("building it and finding out how it is called", encoding="utf-8")
    try:
        if wanted["consistency"]:
            keep = {
                k: options[k] for k in ("vocab", "source_vocab", "pad", "width") if k in options
            }
            rows = consistency(target, options.get("kind"), progress=tell, **keep)
            return {"rows": [row.as_dict() for row in rows]}
        report = audit(target, progress=tell, **options)
    except AllformerError as error:
        return {"problem": _no_gpu(str(error))}
    except MemoryError:
        return {"problem": f"it needs more than {wanted['megabytes']} MB; give --memory more"}
    except BaseException as error:
        text = brief(error, 400)
        if "memory" in text:
            return {"problem": f"it needs more than {wanted['megabytes']} MB; give --memory more"}
        return {"problem": _no_gpu(f"{type(error).__name__}: {text}".rstrip(": "))}
    report.subject = wanted["target"]
    return {"report": report.as_dict()}


def main() -> None:
    """python -m allformer.auditor.worker WANTED.json"""
    wanted = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _limit(int(wanted["megabytes"]))
    answer = work(wanted)
    Path(wanted["answer"]).write_text(json.dumps(answer, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
