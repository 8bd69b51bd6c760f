"""What a run of one stage says of itself: RUN/sound_tokens.json.

write_stage("runs/digits/coarse", StageFacts(stage, 6.0, units="9f…", codec="07…"))
read_stage("runs/digits/coarse").stage.size
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from allformer.audiolm.tokens import Stage
from allformer.checkpoint.run import SOUND_TOKENS
from allformer.checkpoint.save import write_json
from allformer.errors import CheckpointError, ConfigError
from allformer.json_file import read_object


@dataclass(frozen=True)
class StageFacts:
    """Its ids, how many seconds a row holds, and which units and codec they are of."""

    stage: Stage
    seconds: float
    units: str | None = None  # fingerprints
    codec: str | None = None


def write_stage(run: str | Path, facts: StageFacts) -> None:
    """Beside the weights."""
    write_json(Path(run) / SOUND_TOKENS, asdict(facts))


def read_stage(run: str | Path) -> StageFacts:
    """What `write_stage` wrote."""
    raw: dict[str, Any] = read_object(Path(run) / SOUND_TOKENS, CheckpointError)
    try:
        return StageFacts(Stage(**raw["stage"]), raw["seconds"], raw["units"], raw["codec"])
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(
            f"{Path(run) / SOUND_TOKENS} is not what training writes ({error}); train it again"
        ) from None
