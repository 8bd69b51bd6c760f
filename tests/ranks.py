"""Processes that train together, for tests: a toy objective, cases, and a way to start them.

A worker is a function of this module (or another that can be imported) that gets its ranks' sizes;
the processes are forked from a server that has imported torch already.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from allformer.checkpoint.run import load_run
from allformer.checkpoint.weights import read_tensors
from allformer.config import EncoderDecoder, Model
from allformer.core.inputs import Side
from allformer.core.layout import Layout, pack
from allformer.core.model import build
from allformer.errors import ConfigError
from allformer.train.loop import train
from allformer.train.metrics import read_metrics
from allformer.train.objectives.objective import Objective
from allformer.train.objectives.seq2seq import PairBatch, Seq2Seq
from allformer.train.optim import AdamW
from allformer.train.parallel import ALONE
from allformer.train.parallel.mesh import DIMS, Mesh
from allformer.train.recipe import make_recipe
from allformer.train.state import checkpoints, damage, load_state, save_state
from allformer.train.step import Stepper, StepSettings
from tests.loud import make_loud
from tests.models import VOCAB

LENGTHS = [(7, 3, 5), (5, 7, 3), (7, 4, 4), (1, 7, 7)]  # unequal rows, as many tokens in all
ACCUMULATE, STEPS = 2, 3
ADAPTER = "adapter_model.safetensors"


class LineBatch(NamedTuple):
    ids: Tensor
    layout: Layout
    labels: Tensor
    tokens: int


class Lines(Objective[Any, LineBatch]):
    """Says the label of each token, with the one stack that there is; some labels do not count."""

    def loss(self, model, batch, *, smoothing=0.0, dtype=None, **more):
        name = next(iter(model.config.stacks))
        side = Side(batch.layout, {"input_ids": batch.ids})
        hidden = model.hidden({name: side}, dtype=dtype)[name]
        return model.vocab_head.score(hidden, batch.labels, smoothing, **more)

    def _nothing(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError

    open = texts = encode = examples = lengths = collate = _nothing
    validation = property(_nothing)


def objective_of(config: Model) -> Objective[Any, Any]:
    return Seq2Seq() if isinstance(config, EncoderDecoder) else Lines()


def batch_of(config: Model, number: int) -> Any:
    """The `number`th micro-batch; the labels that count differ from batch to batch."""
    draw = torch.Generator().manual_seed(number)
    layout = pack(torch.arange(7) < torch.tensor(LENGTHS[number % len(LENGTHS)])[:, None])
    ids, labels = (torch.randint(4, VOCAB, (15,), generator=draw) for _ in range(2))
    skip = torch.rand(15, generator=draw) < 0.1 * (number % 4)
    labels = labels.masked_fill(skip, -100)
    count = int((~skip).sum())
    if isinstance(config, EncoderDecoder):
        source = pack(torch.arange(7) < torch.tensor(LENGTHS[(number + 1) % 4])[:, None])
        words = torch.randint(4, VOCAB, (15,), generator=draw)
        return PairBatch(words, source, ids, layout, labels, count)
    return LineBatch(ids, layout, labels, count)


def build_fresh(config: Model, dtype: torch.dtype = torch.float64) -> Any:
    return make_loud(build(config, seed=0).to(dtype), 1).train()


SETTINGS = StepSettings(optim=AdamW(rate=1e-2, eps=1e-6, weight_decay=0.1, clip=0.5), ema=0.8)


def step_batches(config: Model, step: int, turn: tuple[int, int], ranks: int) -> list[Any]:
    """The micro-batches of a step that are a rank's own; those of one alone are all of them."""
    mine, readers = turn
    each = ACCUMULATE * ranks // readers
    numbers = range(step * ranks * ACCUMULATE + mine, (step + 1) * ranks * ACCUMULATE, readers)
    assert len(numbers) == each
    return [batch_of(config, n) for n in numbers]


def train_steps(stepper: Stepper, config: Model, ranks: int, steps: Sequence[int]) -> list[Any]:
    """Loss, NLL, norm and counts of some steps."""
    rows = []
    for step in steps:
        found = stepper(step_batches(config, step, stepper.ranks.turn, ranks), 1e-2)
        rows.append((found.loss.item(), found.nlls.tolist(), found.norm.item(), found.counts))
    return rows


def alone(config: Model, readers: int, steps: int = STEPS) -> tuple[Stepper, list[Any]]:
    """A single process on all micro-batches: its stepper and its rows."""
    stepper = Stepper(build_fresh(config), objective_of(config), SETTINGS)
    return stepper, train_steps(stepper, config, readers, range(steps))


def stepper_on(config: Model, ranks: Any) -> Stepper:
    model = build_fresh(config)
    ranks.prepare(model, torch.device("cpu"), None)
    return Stepper(model, objective_of(config), SETTINGS, ranks)


def mesh(**sizes: int) -> Mesh:
    return Mesh({name: sizes.get(name, 1) for name in DIMS}, torch.device("cpu"))


def assert_same(a: Any, b: Any, what: str = "", tolerance: float = 1e-9) -> None:
    """Two models' weights, by name."""
    one, other = a.state_dict(), b.state_dict()
    assert one.keys() == other.keys()
    for name in one:
        gap = (one[name] - other[name]).abs().max().item()
        assert gap < tolerance, f"{what}: {name} differs by {gap:.1e}"


def assert_same_training(stepper: Stepper, single: Stepper, what: str) -> None:
    """Weights and their moving average."""
    for swap in (nullcontext, lambda ema: ema.swapped()):
        with swap(stepper.ema), swap(single.ema):
            assert_same(stepper.ranks.whole(stepper.model, everyone=True), single.model, what)


def check_plan(sizes: dict[str, int], configs: dict[str, Model]) -> None:
    """Losses, norms and weights of a plan equal those of a single process, step for step."""
    ranks = mesh(**sizes)
    for name, config in configs.items():
        said = f"{name} on {sizes}"
        stepper = stepper_on(config, ranks)
        rows = train_steps(stepper, config, ranks.turn[1], range(STEPS))
        single, wanted = alone(config, ranks.turn[1])
        for got, want in zip(rows, wanted, strict=True):
            torch.testing.assert_close(got[:3], want[:3], rtol=1e-9, atol=1e-9, msg=said)
            assert got[3] == want[3]
        assert_same_training(stepper, single, said)
        check_looking(stepper, single.model, config)


@torch.no_grad()
def check_looking(stepper: Stepper, model: Any, config: Model) -> None:
    """The model can be called as any other while all ranks look."""
    objective, batch = stepper.objective, batch_of(config, 99)
    with stepper.ranks.looking(stepper.model) as seen:
        got, _ = objective.loss(seen, batch)
    want, _ = objective.loss(model, batch)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def check_plans(plans: Sequence[dict[str, int]], configs: dict[str, Model]) -> None:
    """Several plans in the same processes: to start them is what takes time."""
    for sizes in plans:
        check_plan(sizes, configs)


def check_recomputed(
    plans: Sequence[dict[str, int]], configs: dict[str, Model], mode: str, carried: bool
) -> None:
    """The same with activations that are made again, and (`carried`) along the way of the fused
    kernels, in their plain forms."""
    plain = build_fresh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.ranks.build_fresh", lambda *args: _recomputing(plain(*args), mode))
        if carried:
            patch.setattr("allformer.core.stack.ready", lambda x: torch.is_grad_enabled())
        check_plans(plans, configs)


def _recomputing(model: Any, mode: str) -> Any:
    model.recompute(mode)
    return model


def check_ways(run: Path, plans: Sequence[dict[str, int]], config: Model) -> None:
    """A run that goes on under another plan at each step is one that was never interrupted.

    `{}` is a single process, in its own format: the main rank alone, while the others wait.
    """
    readers = 2  # so many micro-batches a step, whoever reads them
    final = None
    for step, sizes in enumerate(plans):
        ranks: Any = mesh(**sizes) if sizes else ALONE
        if sizes or dist.get_rank() == 0:
            stepper = stepper_on(config, ranks)
            if step:
                found = load_state(run, stepper.model, stepper, print)
                assert found["step"] == step
            numbers = range(step, step + 1)
            train_steps(stepper, config, readers, numbers)
            save_state(run, step + 1, stepper, {}, keep=9, every=1)
            ranks.settle()
            final = stepper
        dist.barrier()
    if dist.get_rank() == 0:
        assert final is not None
        single, _ = alone(config, readers, len(plans))
        assert final.ranks is ALONE, "the last one is a single process"
        assert_same_training(final, single, "from plan to plan")
        assert len(checkpoints(run)) == len(plans)
        assert not any(damage(path) for path in checkpoints(run))


def check_training(
    folder: Path, plans: Sequence[dict[str, int]], asked: dict[str, Any], corpus: Any
) -> None:
    """`train` itself, from recipe to run directory: the figures are those of one process."""
    plain = read_figures(folder, {}, asked, corpus, 2)
    halved = read_figures(folder, {}, asked, corpus, 1)
    for sizes in plans:
        found = read_figures(folder, sizes, asked, corpus, 1)
        readers = sizes.get("data", 1) * sizes.get("shard", 1)
        want = plain if readers == 2 else halved
        assert found.keys() == want.keys(), sizes
        for key, value in want.items():
            assert abs(found[key] - value) < 2e-4 * abs(value), (sizes, key, found[key], value)


def read_figures(
    folder: Path, sizes: dict[str, int], asked: dict[str, Any], corpus: Any, more: int
) -> dict[Any, float]:
    """Train on a plan, or, without sizes, on each rank alone; the losses by step."""
    run = folder / "-".join(["run", *sizes, str(more)])
    settings = {**asked["train"], "accumulate": 2 * more}
    recipe = make_recipe({**asked, "train": settings, "parallel": sizes})
    if sizes:
        train(recipe, run, device="cpu", corpus=corpus)
    else:
        run = run.with_name(f"{run.name}-alone-{dist.get_rank()}")
        with by_oneself():
            train(recipe, run, device="cpu", corpus=corpus)
    assert load_run(run).model is not None
    names = ("nll", "gradient_norm", "validation_nll")
    return {(r["step"], name): r[name] for r in read_metrics(run) for name in names if name in r}


def check_resumed(
    folder: Path, plans: Sequence[dict[str, int]], asked: dict[str, Any], corpus: Any
) -> None:
    """Stopped and resumed on the same plan, with dropout: bit for bit what was never stopped."""
    for sizes in plans:
        recipe = make_recipe({**asked, "parallel": sizes})
        half = make_recipe({**asked, "parallel": sizes}, ["train.steps=2"])
        straight, parts = (folder / "-".join([name, *sizes]) for name in ("straight", "parts"))
        train(recipe, straight, device="cpu", corpus=corpus)
        train(half, parts, device="cpu", corpus=corpus)
        steps = [f"train.steps={recipe.train.steps}"]
        train(None, parts, device="cpu", corpus=corpus, resume=True, overrides=steps)
        one, other = (read_tensors(run / "model.safetensors") for run in (straight, parts))
        assert all(one[name].equal(other[name]) for name in one), sizes


def check_tuned(
    folder: Path, base: Path, asked: dict[str, Any], methods: Sequence[Any], corpus: Any
) -> None:
    """An adapter that two ranks train is the one that a single process trains; stopped, gone on
    with by another, and by a single one in the end, it is still."""
    for number, method in enumerate(methods):
        sections = {**asked, "model": {"checkpoint": str(base)}, "tune": method}
        alone, two, ways = (folder / f"{name}-{number}" for name in ("alone", "two", "ways"))
        whole = {**sections, "train": {**asked["train"], "accumulate": 2}}
        if dist.get_rank() == 0:
            with by_oneself():
                train(make_recipe(whole), alone, device="cpu", corpus=corpus)
        dist.barrier()
        train(make_recipe(sections), two, device="cpu", corpus=corpus)
        train(make_recipe(sections, ["train.steps=2"]), ways, device="cpu", corpus=corpus)
        again = [f"train.steps={asked['train']['steps']}"]
        train(None, ways, device="cpu", corpus=corpus, resume=True, overrides=again)
        one, other, third = (read_tensors(run / ADAPTER) for run in (alone, two, ways))
        assert one.keys() == other.keys() == third.keys()
        for name, tensor in one.items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
            assert third[name].equal(other[name]), name
        assert load_run(two).model is not None
        if dist.get_rank() == 0:  # the ranks' last checkpoint, gone on with by one
            with by_oneself():
                more = ["train.steps=6", "train.accumulate=2", "parallel.data=1"]
                train(None, ways, device="cpu", corpus=corpus, resume=True, overrides=more)
        dist.barrier()


@contextmanager
def by_oneself() -> Iterator[None]:
    """As if no other process were there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "is_initialized", lambda: False)
        yield


def check_words() -> None:
    """What ranks tell each other, and their random numbers."""
    ranks = mesh(data=2)
    assert ranks.turn == (dist.get_rank(), 2)
    assert ranks.same(lambda: os.getpid()) == ranks.same(lambda: os.getpid())
    assert ranks.any(ranks.main)
    assert not ranks.any(False)
    assert ranks.total([1 + dist.get_rank(), 5]) == (3, 10)
    try:
        ranks.same(_refuse)
    except ConfigError as error:
        assert str(error) == "refused"  # noqa: PT017
    else:
        raise AssertionError("an error of the main rank is one of all")
    assert _drawn(mesh(tensor=2)) == [True, True]
    assert _drawn(mesh(data=2)) == [True, False]
    assert _drawn(mesh(context=2)) == [True, False]


def _refuse() -> None:
    raise ConfigError("refused")


def _drawn(ranks: Mesh) -> list[bool]:
    """Whether each rank draws as the main one does."""
    torch.manual_seed(0)
    ranks.seed(0)
    drawn: list[Any] = [None] * ranks.world
    dist.all_gather_object(drawn, torch.rand(3).tolist())
    return [numbers == drawn[0] for numbers in drawn]


# --- starting them --------------------------------------------------------------------------------


def _main(rank: int, world: int, folder: str, work: Callable[..., None], args: Any) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
    )
    try:
        work(*args)
        dist.barrier()
    except BaseException:
        (Path(folder) / f"error-{rank}").write_text(traceback.format_exc(), encoding="utf-8")
        os._exit(1)  # the others end at once instead of waiting for this one
    dist.destroy_process_group()


def start(world: int, folder: Path, work: Callable[..., None], *args: Any) -> None:
    """Run `work(*args)` in `world` processes; what fails in one of them fails here."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.ranks", "torch.distributed.fsdp", "allformer.train.loop"]
    )
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        context.Process(target=_main, args=(rank, world, str(folder), work, args))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        if process.is_alive():
            process.kill()
    errors = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("error-*"))]
    own = [e for e in errors if "Connection" not in e] or errors
    assert not errors, own[0]
    assert all(process.exitcode == 0 for process in processes), [p.exitcode for p in processes]
