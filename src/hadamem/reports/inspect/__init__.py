"""One episode of an agent as a web page: frames, memory, what was forgotten, and which steps still matter."""

from .page import build_page, write_page
from .recording import EPSILONS, Curve, Recording, Trace, Triangle

__all__ = ["EPSILONS", "Curve", "Recording", "Trace", "Triangle", "build_page", "write_page"]
