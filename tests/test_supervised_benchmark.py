"""benchmarks/supervised.py: its answers can be found in what the network sees, and told them a network learns."""

import pytest
import torch

pytest.importorskip("gymnasium")

import supervised  # of benchmarks/


def test_shots_are_those_of_the_previous_actions():
    batch = supervised.play_shots(torch.Generator().manual_seed(0), "")
    seen = torch.zeros_like(batch.right[:, 0])
    for t in range(batch.x.shape[1]):
        seen = seen.maximum(batch.x[:, t, 2:-2])
        assert torch.equal(batch.right[:, t], seen)
    assert batch.x[:, 0, 2:-2].sum() == 0
    assert (batch.x[:, 0, -1] == 1).all()
    centred = supervised.play_shots(torch.Generator().manual_seed(0), "centred").x
    assert centred.mean((0, 1)).abs().max() < 0.02


def test_pairs_are_places_of_the_turned_card_s_rank_that_were_seen():
    batch = supervised.play_pairs(torch.Generator().manual_seed(0), "")
    n, T, cards = batch.right.shape
    board = batch.x[..., :cards * 14].view(n, T, cards, 14).argmax(-1)
    previous = batch.x[..., cards * 14:-2].argmax(-1)
    known = torch.full((n, cards), 13)
    checked = 0
    for t in range(T):
        known = torch.where(board[:, t] != 13, board[:, t], known)
        for i in batch.counts[:, t].nonzero()[:, 0].tolist():
            turned = int(previous[i, t])
            same = (known[i] == known[i, turned]).nonzero()[:, 0].tolist()
            places = batch.right[i, t].nonzero()[:, 0].tolist()
            assert set(places) <= set(same) - {turned}
            checked += len(places)
    assert checked > 100


def test_codes_of_pairs():
    usual, up, turned = (supervised.play_pairs(torch.Generator().manual_seed(0), codes).x for codes in ("", "up", "up x 0.3, turned"))
    board = usual[..., :52 * 14].unflatten(-1, (52, 14))[..., :13].flatten(-2)
    assert torch.equal(up[..., :52 * 13], board)
    torch.testing.assert_close(turned[..., :52 * 13], 0.3 * board)
    ranks = turned[..., -13:]
    assert ranks[:, 0].sum() == 0
    assert set(ranks.sum(-1).unique().tolist()) <= {0.0, 1.0}      # one card is turned at a time, or one that was up already


@pytest.mark.parametrize("task", supervised.CASES)
def test_a_few_updates(task):
    found = supervised.learn(task, supervised.CASES[task]["popgym-gae"], updates=2, seed=0)
    assert len(found["right"]) == 2
    assert all(0 < share < 1 for share in found["right"])


def test_rewards_move_the_network_towards_right_places():
    torch.manual_seed(0)
    right = torch.zeros(40, 50, 4)
    right[..., 2] = 1.0
    logits = torch.zeros(40, 50, 4, requires_grad=True)
    batch = supervised.Batch(torch.zeros(40, 50, 1), right, torch.ones(40, 50, dtype=torch.bool))
    supervised.pairs_loss(logits, batch, rewards=True)[0].backward()
    assert logits.grad.sum((0, 1)).argmin() == 2
