"""PPO's parts against slow loops, and what must hold before the first update."""

import math

import pytest
import torch
from gymnasium import spaces

import hadamem as hm
from hadamem import states
from hadamem.agents import PPO, ActorCritic, Batch, NetworkConfig, PPOConfig, Rollout, make_actions
from hadamem.agents.ppo import advantages, minibatches, ppo_loss
from hadamem.agents.returns import compute_gae

MULTI = spaces.MultiDiscrete([3, 4])
BOX = spaces.Box(-2.0, 2.0, (3,))


def network(memory="shm", space=MULTI, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    net = ActorCritic(7, make_actions(space), NetworkConfig(memory=memory, memory_size=12, memory_output=16, **options)).to(dtype)
    for head in (net.actor, net.critic):
        torch.nn.init.normal_(head[-1].weight, 0, 0.5)      # a start of 0.01 would hide differences
    for p in net.parameters():
        if p.ndim == 2 and p.abs().max() == 0:
            torch.nn.init.normal_(p, 0, 0.3)                # theta starts at 0
    return net


def act(net, N=6, T=13, resets=0.15, seed=1, cut=True):
    """A rollout of random observations, acted step by step, from a state in the middle of episodes."""
    g, dtype = torch.Generator().manual_seed(seed), next(net.parameters()).dtype
    x = torch.randn(N, T, 7, generator=g, dtype=dtype)
    reset = torch.rand(N, T, generator=g) < resets
    state = net.initial_state(N, generator=g)
    with torch.no_grad():
        for _ in range(3):
            state = net.step(torch.randn(N, 7, generator=g, dtype=dtype), state, torch.zeros(N, dtype=torch.bool))[2]
        start, dists, values, chosen = states.apply(torch.clone, state), [], [], []
        for t in range(T):
            dist, value, state = net.step(x[:, t], state, reset[:, t])
            dists.append(dist)
            values.append(value)
            chosen.append(net.actions.sample(dist, net.actions.noise(N, generator=g).to(dtype)))
    done = torch.cat([reset[:, 1:], torch.rand(N, 1, generator=g) < resets], 1)
    reward = torch.randn(N, T, generator=g, dtype=dtype)
    bootstrap = torch.randn(N, T, generator=g, dtype=dtype) * (torch.rand(N, T, generator=g) < 0.5) if cut else None
    return Rollout(x, reset, torch.stack(chosen, 1), torch.stack(dists, 1), torch.stack(values, 1), reward, done, bootstrap,
                   torch.randn(N, generator=g, dtype=dtype), start)


@pytest.mark.parametrize("memory", hm.list_memories())
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("separate", [False, True])
def test_ratio_is_one_before_the_first_update(memory, dtype, limit, separate):
    """Stepwise acting and the sequence pass of learning are the same policy: resets, carried states and random rows included."""
    net = network(memory, dtype=dtype, separate_memories=separate)
    r = act(net)
    dist, value, _ = net(r.features, r.state, r.reset)
    log_ratio = net.actions.log_prob(dist, r.action) - net.actions.log_prob(r.dist, r.action)
    assert float(log_ratio.detach().abs().max()) <= limit
    assert float((value - r.value).detach().abs().max()) <= limit


def slow_gae(r, discount, trace):
    N, T = r.reward.shape
    out = torch.zeros_like(r.reward)
    for n in range(N):
        for t in range(T):
            factor, total = 1.0, 0.0
            for i in range(t, T):
                if bool(r.done[n, i]):
                    after = float(r.bootstrap[n, i]) if r.bootstrap is not None else 0.0
                else:
                    after = float(r.value[n, i + 1]) if i + 1 < T else float(r.last_value[n])
                total += factor * (float(r.reward[n, i]) + discount * after - float(r.value[n, i]))
                factor *= discount * trace
                if bool(r.done[n, i]):
                    break
            out[n, t] = total
    return out


@pytest.mark.parametrize("trace", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("cut", [True, False])
def test_advantages_against_a_slow_loop(trace, cut):
    r = act(network(), cut=cut)
    got = compute_gae(r.reward, r.value, r.done, r.bootstrap, r.last_value, 0.97, trace)
    torch.testing.assert_close(got, slow_gae(r, 0.97, trace))
    batch = advantages(r, PPOConfig(discount=0.97, trace=trace))
    torch.testing.assert_close(batch.target, got + r.value)
    torch.testing.assert_close(batch.advantage, (got - got.mean()) / got.std(unbiased=False))


def test_truncation_bootstraps_and_termination_does_not():
    """One step, one env: the return is the reward, plus the discounted value of the final observation only where it was cut short."""
    one = torch.ones(1, 1)
    for cut, want in ((True, 1 + 0.9 * 5), (False, 1.0)):
        got = compute_gae(one, 0 * one, one.bool(), 5 * one * cut, torch.tensor([100.0]), 0.9, 1.0)
        assert float(got) == pytest.approx(want)


def slow_loss(actions, dist, value, batch, config, beta):
    """Step by step with torch.distributions."""
    r, total, n = batch.rollout, 0.0, 0
    for i in range(value.shape[0]):
        for t in range(value.shape[1]):
            if r.weight is not None and not float(r.weight[i, t]):
                continue
            new, old = (distribution(actions, d[i, t]) for d in (dist, r.dist))
            a = r.action[i, t]
            if isinstance(new, list):
                logp, logp_old = (sum(d.log_prob(a[f]) for f, d in enumerate(ds)) for ds in (new, old))
                entropy = sum(d.entropy() for d in new)
                kl = sum(torch.distributions.kl_divergence(o, m) for o, m in zip(old, new, strict=True))
            else:
                logp, logp_old, entropy = new.log_prob(a).sum(), old.log_prob(a).sum(), new.entropy().sum()
                kl = torch.distributions.kl_divergence(old, new).sum()
            ratio, A = math.exp(logp - logp_old), float(batch.advantage[i, t])
            policy = -min(ratio * A, min(max(ratio, 1 - config.clip), 1 + config.clip) * A)
            error = min(float(value[i, t] - batch.target[i, t]) ** 2, config.value_clip)
            total += policy + config.value_coefficient * error - config.entropy_coefficient * float(entropy) + beta * float(kl)
            n += 1
    return total / n


def distribution(actions, dist):
    if hasattr(actions, "sizes"):
        return [torch.distributions.Categorical(logits=part) for part in dist.split(actions.sizes)]
    mean, log_std = dist.chunk(2)
    return torch.distributions.Normal(mean, log_std.exp())


@pytest.mark.parametrize("space", [MULTI, spaces.Discrete(5), BOX])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_against_a_slow_loop(space, weighted):
    old, new = network(space=space, seed=0), network(space=space, seed=5)
    r = act(old)
    if weighted:
        r = r._replace(weight=(torch.rand(r.reward.shape, generator=torch.Generator().manual_seed(3)) < 0.7).double())
    config = PPOConfig(entropy_coefficient=0.02, value_coefficient=0.5, value_clip=4.0)
    batch = advantages(r, config)
    with torch.no_grad():
        dist, value, _ = new(r.features, r.state, r.reset)
        loss, parts = ppo_loss(new.actions, dist, value, batch, config, 0.3)
    assert float(loss) == pytest.approx(slow_loss(new.actions, dist, value, batch, config, 0.3), rel=1e-9)
    assert float(parts["kl"]) > 0


def test_steps_of_no_weight_change_no_gradient():
    """Whatever stands in steps that do not count, the gradients of the others stay as they are."""
    net = network()
    r = act(net)
    weight = torch.ones_like(r.reward)
    weight[:, 9:] = 0
    r = r._replace(weight=weight)
    grads = []
    for noise in (0.0, 1e3):
        later = r._replace(features=torch.cat([r.features[:, :9], r.features[:, 9:] + noise], 1),
                           reward=r.reward + noise * (1 - weight), value=r.value + noise * (1 - weight))
        batch = Batch(later, torch.where(weight > 0, 1.0, noise), torch.where(weight > 0, 0.5, -noise))
        dist, value, _ = net(later.features, later.state, later.reset)
        loss, _ = ppo_loss(net.actions, dist, value, batch, PPOConfig(normalize_advantages="minibatch"), 0.2)
        grads.append(torch.autograd.grad(loss, list(net.parameters()), allow_unused=True))
    for a, b in zip(*grads, strict=True):
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_minibatches_cover_every_env_once_an_epoch():
    config = PPOConfig(epochs=3, minibatches=4)
    sets = list(minibatches(12, config, torch.Generator().manual_seed(0)))
    assert len(sets) == 12
    for epoch in range(3):
        assert sorted(torch.cat(sets[4 * epoch:4 * epoch + 4]).tolist()) == list(range(12))
    fixed = list(minibatches(12, PPOConfig(epochs=3, minibatches=4, reshuffle=False), torch.Generator().manual_seed(0)))
    assert {tuple(s.tolist()) for s in fixed} == {(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)}
    with pytest.raises(ValueError, match="multiple of minibatches"):
        list(minibatches(13, config, torch.Generator()))


def test_a_bad_batch_is_skipped_and_counted():
    net = network(dtype=torch.float32)
    ppo = PPO(net, PPOConfig())
    batch = advantages(act(net), ppo.config)
    ppo.begin(0.0)
    ppo.update(batch)
    before = [p.detach().clone() for p in net.parameters()]
    ppo.update(batch._replace(advantage=batch.advantage * float("nan")))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    ppo.update(batch)
    assert not all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    stats = ppo.end(3)
    assert stats["skipped"] == 1
    assert all(math.isfinite(x) for x in stats.values())


def test_an_iteration_without_updates_adapts_nothing():
    ppo = PPO(network(dtype=torch.float32), PPOConfig())
    ppo.totals[-1] = 4
    assert ppo.end(4) == {"kl_coefficient": pytest.approx(0.2), "skipped": 4.0}
    assert float(ppo.kl_coefficient) == pytest.approx(0.2)


def test_nan_stays_in_its_env():
    r = act(network())
    clean = compute_gae(r.reward, r.value, r.done, r.bootstrap, r.last_value, 0.97, 0.9)
    reward = r.reward.clone()
    reward[2, 5] = float("nan")
    got = compute_gae(reward, r.value, r.done, r.bootstrap, r.last_value, 0.97, 0.9)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(got[others], clean[others])
    assert torch.equal(got[2, 6:], clean[2, 6:])


def test_the_penalty_adapts_to_the_kl():
    net = network(dtype=torch.float32)
    for kl, factor in ((0.05, 1.5), (0.001, 0.5), (0.01, 1.0)):
        ppo = PPO(net, PPOConfig())
        ppo.totals.copy_(torch.tensor([0, 0, 0, 0, 2 * kl, 0, 0, 0.0]))
        ppo.end(2)
        assert float(ppo.kl_coefficient) == pytest.approx(0.2 * factor)


def test_masked_actions_are_never_taken():
    actions = make_actions(MULTI)
    mask = torch.tensor([[True, False, True, False, False, True, False]])
    dist = actions.describe(torch.zeros(1000, 7), mask)
    action = actions.sample(dist, actions.noise(1000, generator=torch.Generator().manual_seed(0)))
    assert set(action[:, 0].tolist()) == {0, 2}
    assert set(action[:, 1].tolist()) == {2}
    assert torch.isfinite(actions.log_prob(dist, action)).all()
    assert float(actions.entropy(dist)[0]) == pytest.approx(math.log(2))
    assert torch.isfinite(actions.kl(dist, dist)).all()
    lost = actions.describe(torch.full((9, 7), math.nan), mask)             # a network that got nan
    assert set(actions.sample(lost, torch.zeros(9, 7))[:, 1].tolist()) == set(actions.mode(lost)[:, 1].tolist()) == {2}


def test_samples_follow_the_distribution():
    actions = make_actions(spaces.Discrete(3))
    dist = actions.describe(torch.tensor([0.5, -1.0, 1.0]).expand(40000, 3))
    action = actions.sample(dist, actions.noise(40000, generator=torch.Generator().manual_seed(0)))[:, 0]
    assert (torch.bincount(action) / 40000 - dist[0].exp()).abs().max() < 0.01
    gauss = make_actions(BOX)
    dist = gauss.describe(torch.tensor([0.3, 0.0, -2.0]).expand(40000, 3))
    action = gauss.sample(dist, gauss.noise(40000, generator=torch.Generator().manual_seed(0)))
    assert (action.mean(0) - torch.tensor([0.3, 0.0, -2.0])).abs().max() < 0.02
    assert (action.std(0) - 1).abs().max() < 0.02
    env = gauss.to_env(action)
    assert float(env.detach().abs().max()) <= 2.0


def test_another_scale_changes_no_value():
    net = network()
    r = act(net)
    net.rescale_values(torch.tensor(50.0, dtype=torch.float64))
    _, value, _ = net(r.features, r.state, r.reset)
    torch.testing.assert_close(value, r.value)
    assert float(net.value_scale) == 50


def test_the_scale_follows_the_targets():
    net = network(dtype=torch.float32)
    ppo = PPO(net, PPOConfig(normalize_values=True))
    ppo.follow_values(torch.full((4, 5), 200.0))
    assert float(net.value_scale) == pytest.approx(200)
    ppo.follow_values(torch.full((4, 5), float("nan")))
    assert float(net.value_scale) == pytest.approx(200)
    ppo.follow_values(torch.zeros(4, 5))
    assert float(net.value_scale) == pytest.approx(200 * 0.9 ** 0.5)


def test_time_is_counted_from_the_start_of_episodes():
    from hadamem.agents.network import _times

    reset = torch.tensor([[False, False, True, False, True], [True, False, False, False, False]])
    time, last = _times(torch.tensor([7, 3]), reset)
    assert time.tolist() == [[7, 8, 0, 1, 0], [0, 1, 2, 3, 4]]
    assert last.tolist() == [1, 5]


@pytest.mark.parametrize(("space", "kind"), [(spaces.Text(3), "Text"), (spaces.Box(0, 1, (2, 2)), "Box")])
def test_unknown_action_spaces_are_refused(space, kind):
    with pytest.raises(TypeError, match=kind):
        make_actions(space)


def test_a_memory_is_the_same_by_each_of_its_names():
    from hadamem.agents.network import Trunk

    def trunk(name):
        torch.manual_seed(0)
        return Trunk(5, (), NetworkConfig(memory=name, time_encoding="shm"))

    class Mine(hm.GRU):
        pass

    hm.register_memory("shm-mine", Mine)
    try:
        same_as = {"hadamem:SHM": "shm", "hadamem.memory:SHM.release": "shm-release", "hadamem:GRU": "gru", "shm-mine": "gru"}
        for name, same in same_as.items():
            a, b = trunk(name), trunk(same)
            assert (a.time is None) == (b.time is None)
            assert [p.shape for p in a.parameters()] == [p.shape for p in b.parameters()]
    finally:
        del hm.memory.MEMORIES["shm-mine"]
