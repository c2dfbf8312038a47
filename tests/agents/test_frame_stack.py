"""What the memory sees beside the current step: the frame stack, against a slow loop, and sines of the time."""

import math

import pytest
import torch

from hadamem.agents.networks import NetworkConfig, Trunk

CONFIG = {"memory_size": 6, "memory_output_size": 8, "encoder_size": 10, "layer_size": 7, "frame_stack": 4}


def trunk(**changes):
    torch.manual_seed(0)
    return Trunk(5, (), NetworkConfig(**{"memory": "gru", "time_encoding": "none", **CONFIG, **changes})).double()


def slow(net, x, reset):
    """What the layer before the memory is given, [N, T, 4 E], of episodes that start with the sequence."""
    seen, rows = net.encoder(x), []
    for n in range(len(x)):
        start, row = 0, []
        for t in range(x.shape[1]):
            start = t if reset[n, t] else start
            row.append(torch.cat([seen[n, t - lag] if t - lag >= start else torch.zeros_like(seen[n, t]) for lag in range(4)]))
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("T", [1, 2, 3, 9])
def test_it_stacks_the_steps_of_the_same_episode(T):
    net = trunk()
    x, reset = torch.randn(6, T, 5, dtype=torch.float64), torch.rand(6, T) < 0.3
    reset[:, 0] = True
    got = {}
    net.before.register_forward_pre_hook(lambda module, args: got.update(x=args[0]))
    net(x, net.initial_state(6), reset)
    torch.testing.assert_close(got["x"], slow(net, x, reset))


@pytest.mark.parametrize(("time_encoding", "time_features"), [("none", 0), ("sine", 0), ("sine", 6), ("none", 5)])
@pytest.mark.parametrize("memory", ["shm", "gru", "none"])
def test_sequences_halves_and_steps_agree(memory, time_encoding, time_features):
    net = trunk(memory=memory, time_encoding=time_encoding, time_features=time_features, shortcut=True)
    x, reset = torch.randn(4, 11, 5, dtype=torch.float64), torch.rand(4, 11) < 0.2
    whole, end = net(x, net.initial_state(4), reset)
    first, state = net(x[:, :2], net.initial_state(4), reset[:, :2])      # fewer steps than the stack
    second, halves = net(x[:, 2:], state, reset[:, 2:])
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(halves.recent, end.recent)
    state, rows = net.initial_state(4), []
    for t in range(11):
        y, state = net.step(x[:, t], state, reset[:, t])
        rows.append(y)
    torch.testing.assert_close(torch.stack(rows, 1), whole)
    torch.testing.assert_close(state.recent, end.recent)


def test_time_features_are_sines_since_the_episode_began():
    net = trunk(frame_stack=1, time_features=4, time_base=100)
    assert net.memory.input_size == 7 + 4
    got = {}
    net.memory.register_forward_pre_hook(lambda module, args: got.update(x=args[0]))
    reset = torch.tensor([[True, False, False, True, False]])
    net.memory.through = lambda layer, x, *args, **promises: (layer(net.memory(x, *args)[0]), None)
    net(torch.randn(1, 5, 5, dtype=torch.float64), net.initial_state(1), reset)
    want = [[math.sin(t), math.cos(t), math.sin(t / 10), math.cos(t / 10)] for t in (0, 1, 2, 0, 1)]
    torch.testing.assert_close(got["x"][0, :, 7:].float(), torch.tensor(want))
    with pytest.raises(ValueError, match="time_features must be 0 or more, got -1"):
        NetworkConfig(time_features=-1)


def test_a_reset_recovers_from_infinite_features():
    net = trunk()
    state = net.initial_state(2)._replace(recent=torch.full((2, 3, 10), float("inf"), dtype=torch.float64))
    x, reset = torch.randn(2, 5, 5, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.bool)
    reset[:, 0] = True
    y, after = net(x, state, reset)
    want, _ = net(x, net.initial_state(2), reset)
    torch.testing.assert_close(y, want)
    assert after.recent.isfinite().all()
