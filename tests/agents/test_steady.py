"""Acting with layers multiplied out, while no weight changes."""

import pytest
import torch

from hadamem.agents.distributions import make_actions
from hadamem.agents.networks import ActorCritic, NetworkConfig

from .test_ppo import MULTI

CASES = {
    "relu": {}, "linear": {"memory_activation": "none"}, "shortcut": {"memory_activation": "none", "shortcut": True},
    "heads that bend": {"head_activation": "tanh"}, "two memories": {"separate_memories": True}, "frames": {"frame_stack": 3},
}


def make(memory, baseline=False, **changes):
    torch.manual_seed(0)
    config = NetworkConfig(memory=memory, memory_size=6, memory_output_size=9, encoder_size=10, layer_size=7, **changes)
    net = ActorCritic(5, make_actions(MULTI), config, baseline=baseline).double()
    with torch.no_grad():
        net.value_scale.fill_(3.0)
        for p in net.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return net


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("memory", ["shm", "gru", "none"])
def test_steps_are_the_same(memory, case, baseline, monkeypatch):
    monkeypatch.setattr("hadamem.agents.networks.FOLDS", ("cpu",))
    net = make(memory, baseline, **CASES[case])
    x, reset, state = torch.randn(6, 4, 5).double(), torch.rand(6, 4) < 0.3, net.initial_state(4)
    other = state
    with torch.no_grad():
        for t in range(6):
            want = net.step(x[t], other, reset[t])
            with net.steady():
                assert (net.folded is not None) == (case not in ("heads that bend", "two memories"))
                got = net.step(x[t], state, reset[t])
            assert net.folded is None
            for a, b in zip(got, want, strict=True):
                if isinstance(b, torch.Tensor):
                    torch.testing.assert_close(a, b)
            other, state = want.state, got.state
            torch.testing.assert_close(state.actor.time, other.actor.time)


def test_the_network_is_as_before_after_an_error():
    net = make("shm")
    with pytest.raises(KeyError), net.steady():
        raise KeyError
    assert net.folded is None


def test_a_cpu_acts_as_always():
    net = make("shm")
    with net.steady():
        assert net.folded is None


def test_it_follows_the_weights(monkeypatch):
    """Each rollout begins with what the updates before have made of the weights."""
    monkeypatch.setattr("hadamem.agents.networks.FOLDS", ("cpu",))
    net, x, reset = make("gru"), torch.randn(4, 5).double(), torch.zeros(4, dtype=torch.bool)
    for _ in range(2):
        with torch.no_grad():
            net.critic[-1].weight.mul_(2.0)
            want = net.step(x, net.initial_state(4), reset).value
            with net.steady():
                assert net.folded is not None
                torch.testing.assert_close(net.step(x, net.initial_state(4), reset).value, want)
