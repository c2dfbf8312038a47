"""The program of a worker process: serves the commands that `pool.Workers` sends through a pipe.

Worker processes load this file without the rest of hadamem, so they start fast and stay small.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import threading
import time
import traceback
from typing import Any

from .group import EnvError, Group, create, failures


def main(connection: Any, parent: int, grace: float) -> None:
    """Serve commands until "close" or the end of the connection, then close the envs. parent, grace: see `exit_with_parent`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)      # Ctrl-C is the parent's to handle
    threading.Thread(target=exit_with_parent, args=(parent, grace), daemon=True).start()
    group: Group | None = None
    try:
        while True:
            command, *args = connection.recv()
            if command == "close":
                break
            try:
                reply: Any = None
                if command == "make":
                    payload, count, first, mode = args
                    with failures(first, "its unpickling in the worker process"):
                        make = pickle.loads(payload)
                    group = Group([make] * count, first, mode)
                    reply = group.describe()
                elif command == "attach" and group is not None:
                    (num_envs, size, path), inner = args, group.envs[0]
                    with open(path, "r+b") as file:
                        group.attach(create(inner.observation_space, inner.action_space, num_envs, mmap.mmap(file.fileno(), size))[0])
                elif group is not None:
                    reply = getattr(group, command)(*args)
                _send(connection, reply)
            except (Exception, SystemExit) as error:
                connection.send(("failed", _describe(error)))
    except (EOFError, OSError):      # the parent is gone
        pass
    finally:
        if group is not None:
            group.close()


def exit_with_parent(parent: int, grace: float) -> None:
    """Watchdog thread: when the process `parent` has died, end this one after `grace` seconds, even if an env hangs.

    In that time the main thread sees the end of the connection and closes the envs, unless one hangs. Limit: no thread can run while an
    env hangs in C code that holds the GIL; the worker then stays until that code returns.
    """
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(grace)
    os._exit(1)


def _send(connection: Any, reply: Any) -> None:
    try:
        message = pickle.dumps(("done", reply))
    except Exception:       # an info holds something that cannot be pickled: send that part as text
        message = pickle.dumps(("done", _picklable(reply)))
    connection.send_bytes(message)


def _picklable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _picklable(inner) for key, inner in value.items()}
    try:
        pickle.dumps(value)
    except Exception:
        return repr(value)
    return value


def _describe(error: BaseException) -> str:
    """The message and the traceback, without the frame of `failures`."""
    if not isinstance(error, EnvError):
        return f"a worker failed: {''.join(traceback.format_exception(error))}"
    cause = error.__cause__
    assert cause is not None
    inner = cause.__traceback__.tb_next if cause.__traceback__ is not None else None
    lines = traceback.format_exception(type(cause), cause, inner or cause.__traceback__)
    return f"{error}\n\nIn the worker process:\n{''.join(lines)}"
