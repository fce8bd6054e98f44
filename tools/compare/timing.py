"""Times a peer's call as testkit/bench/timing.cpp times Strata's: one launch of a captured graph of many calls, inputs round-robin."""
import itertools
import statistics
import time

import torch

SAMPLE_SECONDS, MAX_CALLS, MIN_SAMPLES = 2e-3, 1000, 5


def elapsed_seconds(work):
    """Of what work() enqueues on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


class Burst:
    """Many calls, of the copies of the inputs round-robin."""

    def __init__(self, calls):
        """`calls`: one for each copy."""
        torch.cuda.synchronize()
        for call in calls:  # code is compiled, and whatever a first call makes is made
            call()
        once = elapsed_seconds(calls[0])
        self._count = max(1, min(int(SAMPLE_SECONDS / max(once, 1e-9)), MAX_CALLS), len(calls))
        self._once = once
        self._graph = torch.cuda.CUDAGraph()
        self._calls = itertools.cycle(calls)
        try:
            with torch.cuda.graph(self._graph):
                self._put()
        except RuntimeError:
            self._graph = None  # the peer does what no graph can hold
            torch.cuda.synchronize()
        self._run()

    @property
    def captured(self):
        """Otherwise a sample is the calls one by one, and the host may be what takes the time."""
        return self._graph is not None

    def _put(self):
        for _ in range(self._count):
            next(self._calls)()

    def _run(self):
        return elapsed_seconds(self._graph.replay if self.captured else self._put) / self._count

    def median_us(self, min_time):
        samples, begin = [], time.monotonic()
        at_least = 2 if self._once > min_time else MIN_SAMPLES
        while len(samples) < at_least or time.monotonic() - begin < min_time:
            samples.append(self._run())
        return statistics.median(samples) * 1e6
