"""hadamem's memories inside other frameworks. Each module imports its framework, and nothing else in hadamem imports them.

    from hadamem.integrations.sb3 import MemoryPolicy         # sb3-contrib's RecurrentPPO: pip install 'hadamem[sb3]'
    from hadamem.integrations.torchrl import MemoryModule     # TorchRL: pip install 'hadamem[torchrl]'
    from hadamem.integrations.rllib import MemoryModule       # RLlib: pip install 'hadamem[rllib]'
"""
