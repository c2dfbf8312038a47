"""`python -m tests.fuzz`: run random inputs in child processes, and print those that end in anything but a result or a readable error."""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from .child import KINDS

BATCH = 500        # inputs of one child
START = 300.0      # seconds that a child has to begin; kernels may have to be compiled
LIMIT = 60.0       # seconds for one input


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Run random inputs; exit code 1 if any of them fails.")
    parser.add_argument("--seed", type=int, help="fixes all inputs (default: a new one, which is printed)")
    parser.add_argument("--count", type=int, default=10_000, help="how many inputs (default: 10000)")
    parser.add_argument("--kind", choices=KINDS, help="only inputs of this kind")
    parser.add_argument("--only", type=int, metavar="N", help="input number N alone, in this process")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time (default: 2)")
    args = parser.parse_args()
    if args.only is not None:
        from .child import run_alone

        return run_alone(args.seed or 0, args.only, args.kind or "")
    seed = int.from_bytes(os.urandom(3), "big") if args.seed is None else args.seed
    print(f"seed {seed}, {args.count:,} inputs", flush=True)
    begin = time.monotonic()
    results = Session(seed, args.kind, args.workers).run(args.count)
    counts = collections.Counter(result["kind"] for result in results)
    failures = [result for result in results if result["failure"] is not None]
    for result in failures:
        print(f"\n{result['kind']}: {result['text'][:500]}\n  {result['failure'][:1000]}")
        print(f"  python -m tests.fuzz --seed {seed} --only {result['n']}{f' --kind {args.kind}' if args.kind else ''}")
    shares = ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if counts[kind])
    print(f"\nseed {seed}: {len(results):,} inputs ({shares}) in {time.monotonic() - begin:.0f} s, {len(failures)} failures")
    return 1 if failures else 0


class Session:
    """Hands out batches of inputs to children, several at a time, and watches them: a child that ends or hangs has failed its input."""

    def __init__(self, seed: int, kind: str | None, workers: int):
        self.seed, self.kind, self.workers = seed, kind, workers
        self.results: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def run(self, count: int) -> list[dict[str, Any]]:
        batches: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        for first in range(0, count, BATCH):
            batches.put((first, min(count, first + BATCH)))

        def work() -> None:
            while True:
                try:
                    first, last = batches.get_nowait()
                except queue.Empty:
                    return
                while first < last:
                    first = self.watch(first, last)

        threads = [threading.Thread(target=work) for _ in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(self.results, key=lambda result: result["n"])

    def watch(self, first: int, last: int) -> int:
        """Run a child on inputs first .. last - 1. Returns the first one that it did not come to."""
        command = [sys.executable, "-m", "tests.fuzz.child", str(self.seed), str(first), str(last), self.kind or ""]
        with tempfile.TemporaryDirectory(prefix="hadamem-fuzz-", ignore_cleanup_errors=True) as folder:      # also if the child is killed
            return self._watch(command, {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "TMPDIR": folder}, first, last)

    def _watch(self, command: list[str], environment: dict[str, str], first: int, last: int) -> int:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as child:
            stderr = child.stderr
            assert child.stdout is not None
            assert stderr is not None
            errors = bytearray()
            reader = threading.Thread(target=lambda: errors.extend(stderr.read()))
            reader.start()
            current, limit, rest = None, START, b""
            while True:
                ready, _, _ = select.select([child.stdout], [], [], limit)
                if not ready:
                    child.kill()
                    return self._lost(current, first, f"no answer for {limit:.0f} s")
                data = os.read(child.stdout.fileno(), 1 << 16)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if "failure" in message:
                        with self.lock:
                            self.results.append(message)
                        first, current = message["n"] + 1, None
                    else:
                        current, limit = message, LIMIT
            code = child.wait()
            reader.join()
        if code == 0 and first == last:
            return last
        tail = " ".join(errors.decode(errors="replace").split())[-400:]
        return self._lost(current, first, f"the process ended with {code}: {tail}")

    def _lost(self, current: dict[str, Any] | None, first: int, why: str) -> int:
        if current is None:
            raise SystemExit(f"a child could not start with input {first}: {why}")
        with self.lock:
            self.results.append({**current, "failure": why})
        print(f"input {current['n']}: {why}", flush=True)
        return int(current["n"]) + 1


if __name__ == "__main__":
    sys.exit(main())
