"""The layer behind the memory and its activation."""

import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces

from hadamem.agents.distributions import make_actions
from hadamem.agents.networks import ActorCritic, NetworkConfig, Trunk


def make_trunk(memory, **changes):
    torch.manual_seed(0)
    return Trunk(5, (), NetworkConfig(memory=memory, memory_size=6, encoder_size=10, layer_size=7, **changes)).double()


def inputs(N=4, T=11):
    generator = torch.Generator().manual_seed(1)
    reset = torch.rand(N, T, generator=generator) < 0.2
    return torch.randn(N, T, 5, dtype=torch.float64, generator=generator), reset


@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize("memory", ["shm", "gru", "none"])
def test_relu_is_what_none_gives_cut_at_zero(memory, shortcut):
    bent, straight = (make_trunk(memory, memory_activation=name, shortcut=shortcut) for name in ("relu", "none"))
    straight.load_state_dict(bent.state_dict())      # the activation has no parameters
    x, reset = inputs()
    y = straight(x, straight.initial_state(4), reset)[0]
    assert (y < 0).any()
    torch.testing.assert_close(F.relu(y), bent(x, bent.initial_state(4), reset)[0])
    state, rows = straight.initial_state(4), []
    for t in range(x.shape[1]):
        row, state = straight.step(x[:, t], state, reset[:, t])
        rows.append(row)
    torch.testing.assert_close(torch.stack(rows, 1), y)


def test_without_activation_all_units_have_a_gradient():
    x, reset = inputs()
    for name, dead in (("relu", True), ("none", False)):
        net = make_trunk("gru", memory_activation=name)
        with torch.no_grad():
            net.after.bias.fill_(-100.0)      # below any input: relu gives 0 everywhere
        net(x, net.initial_state(4), reset)[0].sum().backward()
        assert (net.after.weight.grad.abs().max() == 0) == dead


def test_other_activations_are_refused():
    with pytest.raises(ValueError, match="memory_activation must be 'relu' or 'none', got 'tanh'"):
        NetworkConfig(memory_activation="tanh")


def test_actor_init_scales_the_actor_s_last_weights_alone():
    def weights(**changes):
        torch.manual_seed(0)
        return ActorCritic(5, make_actions(spaces.Discrete(3)), NetworkConfig(memory="gru", memory_size=6, **changes)).state_dict()

    usual, large = weights(), weights(actor_init=0.2)
    for name in usual:
        torch.testing.assert_close(large[name], usual[name] * (20 if name == "actor.1.weight" else 1))
    for value in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="actor_init must be 0 or more"):
            NetworkConfig(actor_init=value)
