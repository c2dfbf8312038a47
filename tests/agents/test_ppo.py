"""PPO's parts against slow loops, and what must hold before the first update."""

import math
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

import hadamem as hm
from hadamem import states
from hadamem.agents import PPO, ActorCritic, AgentSpec, NetworkConfig, PPOConfig, Progress, Rollout, make_actions
from hadamem.agents.ppo import JOINT, STATISTICS, make_batch, minibatches, ppo_loss
from hadamem.agents.returns import compute_gae, lengths_differ, rising_gamma
from hadamem.runs.config import make_config
from hadamem.training.replay import LatestRollout
from hadamem.training.trainer import Trainer

MULTI = spaces.MultiDiscrete([3, 4])
BOX = spaces.Box(-2.0, 2.0, (3,))


def network(memory="shm", space=MULTI, dtype=torch.float64, seed=0, joint=False, **options):
    torch.manual_seed(seed)
    actions, config = make_actions(space, joint=joint), NetworkConfig(memory=memory, memory_size=12, memory_output_size=16, **options)
    net = ActorCritic(7, actions, config).to(dtype)
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
            dist, value, state, _ = net.step(x[:, t], state, reset[:, t])
            dists.append(dist)
            values.append(value)
            chosen.append(net.actions.sample(dist, net.actions.noise(N, generator=g).to(dtype)))
    done = torch.cat([reset[:, 1:], torch.rand(N, 1, generator=g) < resets], 1)
    reward = torch.randn(N, T, generator=g, dtype=dtype)
    final = {"value": torch.randn(N, T, generator=g, dtype=dtype) * (torch.rand(N, T, generator=g) < 0.5)} if cut else {}
    return Rollout(x, reset, torch.stack(chosen, 1), reward, done, torch.zeros_like(done), start, torch.zeros(N, dtype=torch.int64),
                   lambda obs, *_: obs, extras={"dist": torch.stack(dists, 1), "value": torch.stack(values, 1)}, final=final,
                   last={"value": torch.randn(N, generator=g, dtype=dtype)})


def agent(config=None, **options):
    """PPO around a network of `network`, in float32."""
    made = PPO(AgentSpec(7, MULTI, NetworkConfig(memory="shm", memory_size=12, memory_output_size=16), config or PPOConfig()))
    made.network.load_state_dict(network(dtype=torch.float32, **options).state_dict())
    return made


@pytest.mark.parametrize("memory", hm.list_memories())
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("separate", [False, True])
def test_ratio_is_one_before_the_first_update(memory, dtype, limit, separate):
    """Stepwise acting and the sequence pass of learning are the same policy: resets, carried states and random rows included."""
    net = network(memory, dtype=dtype, separate_memories=separate)
    r = act(net)
    dist, value, *_ = net(r.features(), r.state, r.first)
    log_ratio = net.actions.log_prob(dist, r.action) - net.actions.log_prob(r.extras["dist"], r.action)
    assert float(log_ratio.detach().abs().max()) <= limit
    assert float((value - r.extras["value"]).detach().abs().max()) <= limit


def gae(r, gamma, gae_lambda):
    return compute_gae(r.reward, r.extras["value"], r.done, r.final.get("value"), r.last["value"], gamma, gae_lambda)


def slow_gae(r, gamma, gae_lambda):
    N, T = r.reward.shape
    value = r.extras["value"]
    out = torch.zeros_like(r.reward)
    for n in range(N):
        for t in range(T):
            factor, total = 1.0, 0.0
            for i in range(t, T):
                if bool(r.done[n, i]):
                    after = float(r.final["value"][n, i]) if r.final else 0.0
                else:
                    after = float(value[n, i + 1]) if i + 1 < T else float(r.last["value"][n])
                total += factor * (float(r.reward[n, i]) + gamma * after - float(value[n, i]))
                factor *= gamma * gae_lambda
                if bool(r.done[n, i]):
                    break
            out[n, t] = total
    return out


@pytest.mark.parametrize("gae_lambda", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("cut", [True, False])
def test_advantages_against_a_slow_loop(gae_lambda, cut):
    r = act(network(), cut=cut)
    got = gae(r, 0.97, gae_lambda)
    torch.testing.assert_close(got, slow_gae(r, 0.97, gae_lambda))
    batch = make_batch(r, PPOConfig(gamma=0.97, gae_lambda=gae_lambda))
    torch.testing.assert_close(batch.target, got + r.extras["value"])
    torch.testing.assert_close(batch.advantage, (got - got.mean()) / got.std(unbiased=False))


@pytest.mark.parametrize("actor_gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("normalize", ["batch", "none"])
def test_an_actor_with_a_discount_of_its_own_learns_from_rewards_alone(actor_gamma, normalize):
    r = act(network(), cut=True)
    N, T = r.reward.shape
    want = torch.zeros_like(r.reward)
    for n in range(N):
        for t in range(T):
            for i in range(t, T):
                want[n, t] += actor_gamma ** (i - t) * r.reward[n, i]
                if bool(r.done[n, i]):
                    break
    want -= want.mean()
    config = PPOConfig(gamma=0.97, gae_lambda=0.3, normalize_advantage=normalize)
    batch = make_batch(r, replace(config, actor_gamma=actor_gamma))
    torch.testing.assert_close(batch.advantage, want / want.std(unbiased=False) if normalize == "batch" else want)
    torch.testing.assert_close(batch.target, make_batch(r, config).target)                 # the critic learns as before
    r.extras["value"] = torch.randn_like(r.extras["value"])
    torch.testing.assert_close(make_batch(r, replace(config, actor_gamma=actor_gamma)).advantage, batch.advantage)


def test_truncation_bootstraps_and_termination_does_not():
    """One step, one env: the return is the reward, plus the discounted value of the final observation only where it was truncated."""
    one = torch.ones(1, 1)
    for cut, want in ((True, 1 + 0.9 * 5), (False, 1.0)):
        got = compute_gae(one, 0 * one, one.bool(), 5 * one * cut, torch.tensor([100.0]), 0.9, 1.0)
        assert float(got) == pytest.approx(want)


def slow_loss(actions, dist, value, batch, config, beta):
    """Step by step with torch.distributions."""
    r, total, n = batch, 0.0, 0
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
            policy = -min(ratio * A, min(max(ratio, 1 - config.clip_range), 1 + config.clip_range) * A)
            error = min(float(value[i, t] - batch.target[i, t]) ** 2, config.vf_loss_clip)
            total += policy + config.vf_coef * error - config.ent_coef * float(entropy) + beta * float(kl)
            n += 1
    return total / n


def distribution(actions, dist):
    if hasattr(actions, "sizes"):
        return [torch.distributions.Categorical(logits=part) for part in dist.split(actions.sizes)]
    mean, log_std = dist.chunk(2)
    return torch.distributions.Normal(mean, log_std.exp())


@pytest.mark.parametrize(("space", "joint"), [(MULTI, False), (MULTI, True), (spaces.Discrete(5), False), (BOX, False)])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_against_a_slow_loop(space, joint, weighted):
    old, new = network(space=space, seed=0, joint=joint), network(space=space, seed=5, joint=joint)
    r = act(old)
    config = PPOConfig(ent_coef=0.02, vf_coef=0.5, vf_loss_clip=4.0)
    batch = make_batch(r, config)
    if weighted:
        batch = batch._replace(weight=(torch.rand(r.reward.shape, generator=torch.Generator().manual_seed(3)) < 0.7).double())
    with torch.no_grad():
        dist, value, *_ = new(batch.features, r.state, r.first)
        loss, parts = ppo_loss(new.actions, dist, value, batch, config, 0.3)
    assert float(loss) == pytest.approx(slow_loss(new.actions, dist, value, batch, config, 0.3), rel=1e-9)
    assert float(parts["kl"]) > 0


def test_joint_actions():
    """Off by default; "auto" where there are few combinations; the ratio is 1 before the first update, with masks, too."""
    spec = AgentSpec(7, MULTI, NetworkConfig(memory="gru", memory_size=12), PPOConfig())
    assert [PPO(spec._replace(config=PPOConfig(joint_actions=x))).actions.sizes for x in JOINT] == [[3, 4], [12], [12]]
    assert PPO(spec).actions.sizes == [3, 4]
    large = spec._replace(action_space=spaces.MultiDiscrete([33, 32]))
    assert PPO(large._replace(config=PPOConfig(joint_actions="auto"))).actions.sizes == [33, 32]
    with pytest.raises(ValueError, match=r"1,056 combinations, and at most 1024 .* with joint_actions 'never' or 'auto'"):
        PPO(large._replace(config=PPOConfig(joint_actions="always")))
    with pytest.raises(ValueError, match=r"joint_actions must be 'never', 'always' or 'auto' .*, got 'sometimes'"):
        PPOConfig(joint_actions="sometimes")
    net = network(joint=True)
    r = act(net)
    mask = torch.rand(6, 13, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    for allowed in (None, mask | (torch.arange(7) % 3 == 0)):                    # something is left of each part
        (dist, *_), state = net(r.features(), r.state, r.first, allowed), r.state
        for t in range(13):
            stepped, _, state, _ = net.step(r.obs[:, t], state, r.first[:, t], None if allowed is None else allowed[:, t])
            torch.testing.assert_close(stepped, dist[:, t], rtol=1e-9, atol=1e-9)


def test_steps_of_no_weight_change_no_gradient():
    """Whatever stands in steps that do not count, the gradients of the others stay as they are."""
    net = network()
    batch = make_batch(act(net), PPOConfig(clip_range_vf=0.2))
    weight = torch.ones_like(batch.target)
    weight[:, 9:] = 0
    grads = []
    for noise in (0.0, 1e3):
        later = batch._replace(features=torch.cat([batch.features[:, :9], batch.features[:, 9:] + noise], 1), weight=weight,
                               value=batch.value + noise * (1 - weight), advantage=torch.where(weight > 0, 1.0, noise),
                               target=torch.where(weight > 0, 0.5, -noise))
        dist, value, *_ = net(later.features, later.state, later.first)
        loss, _ = ppo_loss(net.actions, dist, value, later, PPOConfig(normalize_advantage="minibatch", clip_range_vf=0.2), 0.2)
        grads.append(torch.autograd.grad(loss, list(net.parameters()), allow_unused=True))
    for a, b in zip(*grads, strict=True):
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_minibatches_cover_every_env_once_an_epoch():
    config = PPOConfig(num_epochs=3, num_minibatches=4)
    sets = list(minibatches(12, config, torch.Generator().manual_seed(0)))
    assert len(sets) == 12
    for epoch in range(3):
        assert sorted(torch.cat(sets[4 * epoch:4 * epoch + 4]).tolist()) == list(range(12))
    fixed = list(minibatches(12, PPOConfig(num_epochs=3, num_minibatches=4, reshuffle=False), torch.Generator().manual_seed(0)))
    assert {tuple(s.tolist()) for s in fixed} == {(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)}


def test_a_bad_batch_is_skipped_and_counted():
    ppo = agent(PPOConfig(num_minibatches=2))
    net = ppo.network
    ppo.attach(LatestRollout(act(net)))
    ppo.prepare()
    ppo.chosen.copy_(torch.arange(3))
    ppo.update()
    before = [p.detach().clone() for p in net.parameters()]
    good = ppo.batch
    ppo.batch = good._replace(advantage=good.advantage * float("nan"))
    ppo.update()
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    ppo.batch = good
    ppo.update()
    assert not all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    stats = ppo.finish(3)
    assert stats["skipped"] == 1
    assert all(torch.isfinite(x) for x in stats.values())


def test_an_iteration_without_updates_adapts_nothing():
    ppo = agent()
    ppo.skipped.fill_(4)
    stats = ppo.finish(4)
    assert {name: float(x) for name, x in stats.items() if not x.isnan()} == {"kl_coef": pytest.approx(0.2), "updates": 4, "skipped": 4}
    assert float(ppo.kl_coef) == pytest.approx(0.2)


def test_nan_stays_in_its_env():
    r = act(network())
    clean = gae(r, 0.97, 0.9)
    r.reward[2, 5] = float("nan")
    got = gae(r, 0.97, 0.9)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(got[others], clean[others])
    assert torch.equal(got[2, 6:], clean[2, 6:])


def test_the_penalty_adapts_to_the_kl():
    for kl, floor, want in ((0.05, 0.0, 0.3), (0.001, 0.0, 0.1), (0.001, 0.15, 0.15), (0.01, 0.0, 0.2)):
        ppo = agent(PPOConfig(min_kl_coef=floor))
        ppo.sums[STATISTICS.index("kl")] = 2 * kl
        assert float(ppo.finish(2)["kl_coef"]) == pytest.approx(0.2)      # the one that was used
        assert float(ppo.kl_coef) == pytest.approx(want)


def test_masked_actions_are_never_taken():
    actions = make_actions(MULTI)
    mask = torch.tensor([[True, False, True, False, False, True, False]])
    dist = actions.parameters_of(torch.zeros(1000, 7), mask)
    action = actions.sample(dist, actions.noise(1000, generator=torch.Generator().manual_seed(0)))
    assert set(action[:, 0].tolist()) == {0, 2}
    assert set(action[:, 1].tolist()) == {2}
    assert torch.isfinite(actions.log_prob(dist, action)).all()
    assert float(actions.entropy(dist)[0]) == pytest.approx(math.log(2))
    assert torch.isfinite(actions.kl(dist, dist)).all()
    lost = actions.parameters_of(torch.full((9, 7), math.nan), mask)             # a network that got nan
    assert set(actions.sample(lost, torch.zeros(9, 7))[:, 1].tolist()) == set(actions.mode(lost)[:, 1].tolist()) == {2}


def test_samples_follow_the_distribution():
    actions = make_actions(spaces.Discrete(3))
    dist = actions.parameters_of(torch.tensor([0.5, -1.0, 1.0]).expand(40000, 3))
    action = actions.sample(dist, actions.noise(40000, generator=torch.Generator().manual_seed(0)))[:, 0]
    assert (torch.bincount(action) / 40000 - dist[0].exp()).abs().max() < 0.01
    gauss = make_actions(BOX)
    dist = gauss.parameters_of(torch.tensor([0.3, 0.0, -2.0]).expand(40000, 3))
    action = gauss.sample(dist, gauss.noise(40000, generator=torch.Generator().manual_seed(0)))
    assert (action.mean(0) - torch.tensor([0.3, 0.0, -2.0])).abs().max() < 0.02
    assert (action.std(0) - 1).abs().max() < 0.02
    env = gauss.to_env(action)
    assert float(env.detach().abs().max()) <= 2.0


def test_another_scale_changes_no_value():
    net = network()
    r = act(net)
    net.rescale_values(torch.tensor(50.0, dtype=torch.float64))
    _, value, *_ = net(r.features(), r.state, r.first)
    torch.testing.assert_close(value, r.extras["value"])
    assert float(net.value_scale) == 50


def test_the_scale_follows_the_targets():
    ppo = agent(PPOConfig(normalize_values=True))
    scale = ppo.network.value_scale
    ppo.rescale_values(torch.full((4, 5), 200.0))
    assert float(scale) == pytest.approx(200)
    ppo.rescale_values(torch.full((4, 5), float("nan")))
    assert float(scale) == pytest.approx(200)
    ppo.rescale_values(torch.full((4, 5), 20.0))
    assert float(scale) == pytest.approx((0.9 * 200 ** 2 + 0.1 * 20 ** 2) ** 0.5)
    before = float(scale)
    ppo.rescale_values(torch.full((4, 5), 0.2))
    assert float(scale) == pytest.approx(before * 0.1 ** 0.5, rel=1e-3)      # it was far too large


def test_time_is_counted_from_the_start_of_episodes():
    from hadamem.agents.networks import _times

    reset = torch.tensor([[False, False, True, False, True], [True, False, False, False, False]])
    time, last = _times(torch.tensor([7, 3]), reset)
    assert time.tolist() == [[7, 8, 0, 1, 0], [0, 1, 2, 3, 4]]
    assert last.tolist() == [1, 5]


@pytest.mark.parametrize(("space", "kind"), [(spaces.Text(3), "Text"), (spaces.Box(0, 1, (2, 2)), "Box")])
def test_unknown_action_spaces_are_refused(space, kind):
    with pytest.raises(TypeError, match=kind):
        make_actions(space)


def test_a_memory_is_the_same_by_each_of_its_names():
    from hadamem.agents.networks import Trunk

    def trunk(name):
        torch.manual_seed(0)
        return Trunk(5, (), NetworkConfig(memory=name))

    class Mine(hm.GRU):
        pass

    hm.register_memory("shm-mine", Mine)
    try:
        same_as = {"hadamem:SHM": "shm", "hadamem.memory:SHM.release": "shm-release", "hadamem:GRU": "gru", "shm-mine": "gru"}
        for name, same in same_as.items():
            a, b = trunk(name), trunk(same)
            assert [p.shape for p in a.parameters()] == [p.shape for p in b.parameters()]
    finally:
        del hm.memory.MEMORIES["shm-mine"]


def test_episodes_of_different_lengths():
    first, ended = torch.zeros(2, 2, 8, dtype=torch.bool)
    assert not lengths_differ(first, ended)                             # none ended
    ended[:, [1, 5]], first[:, [2, 6]] = True, True
    assert not lengths_differ(first, ended)                             # what began before, or goes on, does not count
    ended[:, 7] = True
    assert lengths_differ(first, ended)                                 # four steps and two
    ended[:, 7], ended[0, 7] = False, True
    assert lengths_differ(torch.zeros_like(first), ended)               # out of step
    assert not lengths_differ(torch.zeros_like(first)[:1], ended[:1])


def test_a_rising_discount():
    assert rising_gamma(0.99, 0.0) == pytest.approx(0.9)
    assert 1 / (1 - rising_gamma(0.99, 0.5)) == pytest.approx(10 * 10 ** 0.5)      # horizons grow by equal factors
    assert rising_gamma(0.99, 1.0) == pytest.approx(0.99)
    assert (rising_gamma(0.5, 0.0), rising_gamma(1.0, 0.3)) == (0.5, 1.0)          # shorter than the first horizon; endless


@pytest.mark.parametrize(("reward", "lengths", "schedule", "want"), [
    ("dense", "same", "auto", 0.9), ("dense", "none", "auto", 0.9), ("dense", "differ", "auto", 0.99), ("sparse", "same", "auto", 0.99),
    ("sparse", "differ", "rising", 0.9), ("dense", "same", "constant", 0.99)])
def test_the_discount_follows_from_the_first_rollout(reward, lengths, schedule, want):
    made = agent(PPOConfig(gamma_schedule=schedule, num_minibatches=2, num_epochs=1))
    rollout = act(made.network, resets=0.15 if lengths == "differ" else 0.0)
    if lengths == "same":
        rollout.terminated[:, [3, 11]] = rollout.truncated[:, 7] = True
        rollout.first[:, [0, 4, 8, 12]] = True
    if reward == "sparse":
        rollout.reward = (torch.rand_like(rollout.reward) < 0.1).float()
    source = LatestRollout(rollout)
    made.attach(source)
    made.learn(source, Progress(0, 1000), torch.Generator().manual_seed(0))
    assert float(made.gamma) == pytest.approx(want)
    rollout.terminated[0] = True                     # from now on lengths differ, which is noticed early in training only
    made.learn(source, Progress(500, 1000), torch.Generator().manual_seed(0))
    assert float(made.gamma) == pytest.approx(want if want == 0.99 else rising_gamma(0.99, 0.5))
    made.learn(source, Progress(40, 1000), torch.Generator().manual_seed(0))
    assert float(made.gamma) == pytest.approx(rising_gamma(0.99, 0.04) if schedule == "rising" else 0.99)
    assert ("dense" in made.state_dict()) == (schedule == "auto")


@pytest.mark.parametrize("memory", ["shm", "gpt2", "linear_attention"])
def test_the_compiled_loss_is_the_plain_one(memory):
    """What the trainer compiles on a GPU: the loss with its choice of envs, and the sums of the statistics."""
    settings = {"memory_options": {"rotary": True}} if memory == "shm" else {}
    trainer = Trainer(make_config("popgym-gae", env="popgym/RepeatPreviousEasy", memory=memory, device="cpu", num_envs=16, memory_size=8,
                                  memory_output_size=16, total_steps=10_000, **settings))
    trainer.iteration()
    agent, results = trainer.agent, []
    assert agent.compiled == ("chosen_loss", "tally")
    for wrap in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)):
        torch._dynamo.reset()
        agent.sums.zero_()
        agent.chosen.copy_(torch.tensor([3, 0]))
        agent.network.zero_grad()
        loss, parts = wrap(agent.chosen_loss)()
        loss.backward()
        wrap(agent.tally)(parts, torch.tensor(2.0), torch.tensor(0.0))
        wrap(agent.tally)(parts, torch.tensor(torch.nan), torch.tensor(1.0))      # skipped
        results.append([loss.detach(), agent.sums.clone(), *(p.grad.clone() for p in agent.network.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
    assert results[0][1][-1] == 2.0
