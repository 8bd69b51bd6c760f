"""PPO's whitening against TRL's, where a TRL that has PPO (its experimental part) is installed."""

from __future__ import annotations

import pytest
import torch

from allformer.train.policy.gae import whiten


@pytest.mark.parametrize("shift", [True, False])
def test_whitening_is_trls(shift: bool):
    trainer = pytest.importorskip("trl.experimental.ppo.ppo_trainer")
    torch.manual_seed(0)
    x, keep = torch.randn(5, 7).double() * 3 + 1, torch.rand(5, 7) < 0.7
    wanted = trainer.masked_whiten(x, keep, shift_mean=shift)
    torch.testing.assert_close(whiten(x, keep, shift), torch.where(keep, wanted, 0.0))
