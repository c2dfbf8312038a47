"""Plays a policy that `hadamem export` wrote, with numpy and onnxruntime alone: python serve_onnx.py first.onnx

The task is POPGym's RepeatPreviousEasy, where a card's suit must be named three cards later. For another env, replace `play`.
"""
import sys

import numpy as np
import onnxruntime


class Policy:
    def __init__(self, path, num_envs=1):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1                     # a step is too short to be shared among threads
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.outputs = [x.name for x in self.session.get_outputs()]
        width = next(x.shape[1] for x in self.session.get_inputs() if x.name == "state")
        self.state = np.zeros((num_envs, width), np.float32)

    def act(self, reset, **observation):
        """reset [N]: whether an episode begins. Returns all outputs by name."""
        found = dict(zip(self.outputs, self.session.run(None, {**observation, "reset": reset, "state": self.state}), strict=True))
        self.state = found["next_state"]
        return found


def play(policy, cards):
    """Whether each answer was right, for cards [T] shown one by one."""
    answers = [policy.act(np.array([t == 0]), obs=cards[t:t + 1])["action"][0] for t in range(len(cards))]
    return np.array(answers)[3:] == cards[:-3]


if __name__ == "__main__":
    policy, deck = Policy(sys.argv[1]), np.random.default_rng(0)
    right = np.concatenate([play(policy, deck.permutation(np.repeat(np.arange(4), 13))) for _ in range(20)])
    print(f"{right.mean():.0%} of {len(right)} answers were right")
