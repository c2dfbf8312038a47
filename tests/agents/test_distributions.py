"""Joint and squashed distributions against enumeration and numerical integration. (The others are in test_ppo.)"""

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from hadamem.agents import make_actions
from hadamem.agents.distributions import Categorical, Joint, TanhGaussian

MULTI = spaces.MultiDiscrete([2, 3, 2], start=[0, 5, -1])
COMBINATIONS = list(itertools.product(range(2), range(3), range(2)))


def test_a_joint_choice_against_enumeration():
    actions = make_actions(MULTI, joint=True)
    assert isinstance(actions, Joint)
    assert (actions.inputs, actions.width, actions.factors, actions.mask_size) == (12, 12, 1, 7)
    torch.manual_seed(0)
    y = torch.randn(4, 12, dtype=torch.float64)
    dist = actions.parameters_of(y)
    for i, parts in enumerate(COMBINATIONS):
        chosen = torch.full((4, 1), i)
        want = y[:, i] - y.logsumexp(-1)
        torch.testing.assert_close(actions.log_prob(dist, chosen), want)
        assert actions.to_env(chosen)[0].tolist() == [part + start for part, start in zip(parts, MULTI.start, strict=True)]
        assert MULTI.contains(actions.to_env(chosen)[0].numpy())
    p = torch.softmax(y, -1)
    torch.testing.assert_close(actions.entropy(dist), -(p * p.log()).sum(-1))
    other = actions.parameters_of(torch.randn(4, 12, dtype=torch.float64))
    torch.testing.assert_close(actions.kl(dist, other), (p * (p.log() - other)).sum(-1))
    noise = actions.noise(20_000, generator=torch.Generator().manual_seed(0))
    shares = actions.sample(dist[:1].float(), noise)[:, 0].bincount(minlength=12) / 20_000
    assert float((shares - p[0]).abs().max()) < 0.015
    assert actions.mode(dist)[:, 0].tolist() == y.argmax(-1).tolist()


def test_a_joint_choice_of_independent_parts_is_their_product():
    """With logits that are sums over the parts: the log-probabilities, entropies and divergences of separate choices, masked or not."""
    joint, separate = make_actions(MULTI, joint=True), make_actions(MULTI)
    torch.manual_seed(0)
    y = torch.randn(2, 5, 7, dtype=torch.float64)                                # old and new
    mask = torch.tensor([True, True, True, False, True, False, True])
    together = torch.stack([y[..., a] + y[..., 2 + b] + y[..., 5 + c] for a, b, c in COMBINATIONS], -1)
    for allowed in (None, mask.expand(5, 7)):
        (old, new), (first, second) = (actions.parameters_of(x, None if allowed is None else allowed.expand(2, 5, 7))
                                       for actions, x in ((separate, y), (joint, together)))
        for i, parts in enumerate(COMBINATIONS):
            if allowed is None or all(mask[offset + part] for offset, part in zip((0, 2, 5), parts, strict=True)):
                want = separate.log_prob(old, torch.tensor(parts).expand(5, 3))
                torch.testing.assert_close(joint.log_prob(first, torch.full((5, 1), i)), want)
        torch.testing.assert_close(joint.entropy(first), separate.entropy(old))
        torch.testing.assert_close(joint.kl(first, second), separate.kl(old, new))


def test_only_a_joint_choice_can_leave_out_single_combinations():
    """As in Battleship: any cell that was not shot at yet, with equal odds. Here the free ones are a diagonal of 2 x 2 cells."""
    board = spaces.MultiDiscrete([2, 2])
    free = torch.tensor([False, True, True, False])                              # cells (0, 1) and (1, 0)
    joint, separate = make_actions(board, joint=True), make_actions(board)
    dist = joint.parameters_of(torch.where(free, 0.0, -1e4))
    assert dist.exp().tolist() == pytest.approx([0, 0.5, 0.5, 0])
    cells = torch.cartesian_prod(torch.arange(2), torch.arange(2))
    grid = torch.linspace(0.01, 0.99, 99).logit()
    y = torch.cartesian_prod(grid, grid)                                         # logits of row 1 and column 1, against 0
    dist = separate.parameters_of(torch.stack([torch.zeros(len(y)), y[:, 0], torch.zeros(len(y)), y[:, 1]], -1))
    p = torch.stack([separate.log_prob(dist, cell.expand(len(y), 2)) for cell in cells], -1).exp()
    fair = p[:, free].amin(-1)                                                   # odds of the free cell that is less likely
    assert float(fair.max()) == pytest.approx(0.25)                              # then every second shot is wasted


def test_the_mask_of_a_joint_choice_has_an_entry_for_every_part():
    actions = make_actions(MULTI, joint=True)
    torch.manual_seed(0)
    y = torch.randn(50, 12, dtype=torch.float64)
    mask = torch.rand(50, 7) < 0.7
    mask[:, [0, 2, 5]] = True                                                    # something is always left
    dist = actions.parameters_of(y, mask)
    allowed = torch.tensor([[bool(m[a] and m[2 + b] and m[5 + c]) for a, b, c in COMBINATIONS] for m in mask])
    assert not bool(dist.exp()[~allowed].any())
    want = y.masked_fill(~allowed, -math.inf)
    torch.testing.assert_close(dist.exp(), torch.softmax(want, -1))
    noise = actions.noise(50, generator=torch.Generator().manual_seed(1))
    for chosen in (actions.sample(dist.float(), noise), actions.uniform(noise, mask), actions.mode(dist)):
        assert bool(allowed.gather(1, chosen).all())
    entropy = actions.entropy(dist)
    p = torch.softmax(want, -1)
    torch.testing.assert_close(entropy, -torch.special.xlogy(p, p).sum(-1))


def test_how_many_combinations_are_too_many():
    assert isinstance(make_actions(spaces.MultiDiscrete([32, 32]), joint=True), Joint)
    with pytest.raises(ValueError, match=r"have 1,056 combinations, and at most 1024 can be one choice; use agent 'ppo' with"):
        make_actions(spaces.MultiDiscrete([33, 32]), joint=True)
    assert isinstance(make_actions(spaces.MultiDiscrete([32, 32]), joint="auto"), Joint)
    assert type(make_actions(spaces.MultiDiscrete([33, 32]), joint="auto")) is Categorical
    assert isinstance(make_actions(spaces.MultiDiscrete([33, 32])), Categorical)
    assert type(make_actions(spaces.Discrete(5), joint=True)) is Categorical


LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)


def test_the_density_of_a_squashed_normal_distribution():
    """By a change of variables, numerically: density of u over the slope of tanh. It integrates to 1."""
    actions = make_actions(spaces.Box(LOW, HIGH), squashed=True)
    assert isinstance(actions, TanhGaussian)
    y = torch.tensor([[0.4, -0.3, -0.5, 0.2]], dtype=torch.float64)              # means, logarithms of deviations
    dist = actions.parameters_of(y)
    noise = torch.linspace(-2.5, 2.5, 11, dtype=torch.float64)[:, None].expand(-1, 2)
    action, log_prob = actions.sample_with_log_prob(dist.expand(11, -1), noise)
    u = y[:, :2] + y[:, 2:].exp() * noise
    torch.testing.assert_close(action, torch.tanh(u))
    h = 1e-5
    slope = (torch.tanh(u + h) - torch.tanh(u - h)) / (2 * h)
    density = torch.distributions.Normal(y[:, :2], y[:, 2:].exp()).log_prob(u)
    torch.testing.assert_close(log_prob, (density - slope.log()).sum(-1), rtol=1e-4, atol=1e-3)      # 1e-6 is added to the slope
    torch.testing.assert_close(actions.log_prob(dist.expand(11, -1), action), log_prob, rtol=1e-6, atol=1e-6)
    grid = torch.linspace(-0.998, 0.998, 500, dtype=torch.float64)               # the middles of cells
    pairs = torch.cartesian_prod(grid, grid)
    total = actions.log_prob(dist.expand(len(pairs), -1), pairs).exp().sum() * 0.004 ** 2
    assert float(total) == pytest.approx(1, abs=2e-3)


def test_log_probabilities_are_finite_at_the_bounds():
    actions = make_actions(spaces.Box(LOW, HIGH), squashed=True)
    dist = torch.tensor([[30.0, -30.0, 2.0, -20.0]], requires_grad=True)
    action, log_prob = actions.sample_with_log_prob(actions.parameters_of(dist), torch.tensor([[3.0, -3.0]]))
    assert action.tolist() == [[1.0, -1.0]]
    log_prob.sum().backward()
    assert bool(torch.isfinite(log_prob).all())
    assert bool(torch.isfinite(dist.grad).all())
    assert bool(torch.isfinite(actions.log_prob(dist, action)).all())


def test_actions_stay_within_the_bounds():
    box = spaces.Box(LOW, HIGH)
    actions = make_actions(box, squashed=True)
    assert actions.bounded
    noise = actions.noise(5000, generator=torch.Generator().manual_seed(0))
    dist = actions.parameters_of(torch.tensor([[0.3, -0.2, 1.5, 9.0]]).expand(5000, -1))
    assert float(dist[0, 3]) == 2.0                                              # deviations are limited
    for chosen in (actions.sample(dist, noise), actions.uniform(noise), actions.mode(dist)):
        assert all(box.contains(x) for x in actions.to_env(chosen)[::100].numpy())
    ends = actions.to_env(torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [1.5, -1.5]]))
    assert ends.tolist() == [[-2.0, 0.0], [2.0, 10.0], [0.0, 5.0], [2.0, 0.0]]
    assert not make_actions(spaces.Box(-np.inf, np.inf, (2,)), squashed=True).bounded


def test_uniform_actions_are_uniform():
    actions = make_actions(spaces.Box(LOW, HIGH), squashed=True)
    x = actions.to_env(actions.uniform(actions.noise(20_000, generator=torch.Generator().manual_seed(0))))
    for i in range(2):
        counts = torch.histc(x[:, i], 10, float(LOW[i]), float(HIGH[i]))
        assert float(((counts - 2000) ** 2 / 2000).sum()) < 30                   # chi-square with 9 degrees of freedom
    assert abs(float(torch.corrcoef(x.T)[0, 1])) < 0.03


def test_divergence_of_squashed_distributions():
    """Through tanh it is that of the normal distributions."""
    actions = make_actions(spaces.Box(LOW, HIGH), squashed=True)
    torch.manual_seed(0)
    old, new = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    normals = [torch.distributions.Normal(x[:, :2], x[:, 2:].exp()) for x in (old, new)]
    torch.testing.assert_close(actions.kl(old, new), torch.distributions.kl_divergence(*normals).sum(-1))
    noise = torch.randn(200_000, 2, dtype=torch.float64)
    action, log_prob = actions.sample_with_log_prob(old[:1].expand(200_000, -1), noise)
    inside = action.abs().amax(-1) < 1 - 1e-6
    other = actions.log_prob(new[:1].expand(200_000, -1), action)
    assert float((log_prob - other)[inside].mean()) == pytest.approx(float(actions.kl(old, new)[0]), rel=0.1)
