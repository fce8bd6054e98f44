"""Tensor parallelism: the layers of two and four ranks, by threads and by processes, against one rank."""

from __future__ import annotations

import copy
import pathlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

import strata_attention as sa
from strata_attention import Request

LIMITS = sa.BatchLimits(64, 2, 256)
STEPS = ((40, 40), (41, 1), (42, 1))


@pytest.fixture(scope="module", params=["v4-tiny", "v3-tiny"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp(request.param)
    sa.synthesize(request.param, folder, seed=5)
    return folder


def outputs(folder: pathlib.Path, communicator: sa.Communicator | None, **options: object) -> list[torch.Tensor]:
    """What every layer gives for a prefill and two decode steps, layer after layer."""
    checkpoint = sa.Checkpoint(folder)
    layers = sa.load_layers(checkpoint, LIMITS, communicator=communicator, **options)
    pool = sa.Pool(layers)
    batch = sa.BatchBuilder(LIMITS, pool, window=checkpoint.config.get("sliding_window") or 0)
    generator = torch.Generator().manual_seed(11)
    pool.add_request(1)
    found = []
    for seq_len, query_len in STEPS:
        assert pool.extend(1, seq_len - query_len, seq_len)
        batch.build([Request(seq_len, query_len, 1)])
        hidden = torch.randn(query_len, layers[0].hidden_size, generator=generator).bfloat16()
        found += [layer(hidden, batch, pool) for layer in layers]
    return found


def check(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected) > 0
    for number, (one, all_heads) in enumerate(zip(found, expected)):
        error = (one.double() - all_heads.double()).norm() / all_heads.double().norm()
        assert error < 0.02, f"output {number}: {error}"


class Ranks:
    """Sums over the threads of one process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.tensors: list[torch.Tensor | None] = [None] * size

    def communicator(self, rank: int) -> sa.Communicator:
        def all_reduce_sum(tensor: torch.Tensor) -> None:
            self.tensors[rank] = tensor.clone()
            self.barrier.wait()
            tensor.copy_(sum(part.float() for part in self.tensors))
            self.barrier.wait()

        return sa.FunctionCommunicator(all_reduce_sum, rank, self.size)

    def run(self, work: Callable[[int], object]) -> list[object]:
        results: list[object] = [None] * self.size

        def guarded(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except BaseException as error:  # noqa: BLE001
                results[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_by_threads_agree_with_one(model: pathlib.Path, size: int) -> None:
    if size == 4 and "v4" in model.name:
        with pytest.raises(ValueError, match="o_groups must be a multiple of tp_size 4, is 2"):
            outputs(model, None, tp_size=4)
        return
    expected = outputs(model, None)
    ranks = Ranks(size)
    results = ranks.run(lambda rank: outputs(model, ranks.communicator(rank)))
    for found in results:
        if isinstance(found, BaseException):
            raise found
        check(found, expected)
        assert all(torch.equal(one, other) for one, other in zip(found, results[0]))


_PROCESS = """
import sys
import torch
import torch.distributed as distributed
import test_communicator as own
import strata_attention as sa
folder, rank, size, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
communicator = sa.ProcessGroup()
assert (communicator.rank, communicator.size) == (rank, size)
torch.save(own.outputs(folder, communicator), f"{store}.{rank}")
group = distributed.new_group([0])
if rank == 0:
    assert sa.ProcessGroup(group).size == 1
else:
    try:
        sa.ProcessGroup(group)
        raise SystemExit("no ValueError")
    except ValueError as error:
        assert "of the group" in str(error), error
distributed.destroy_process_group()
"""


def test_processes_with_gloo_agree_with_one(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    store = str(tmp_path / "store")
    paths = [str(pathlib.Path(__file__).parent), str(pathlib.Path(sa.__file__).parents[1])]
    script = f"import sys; sys.path[:0] = {paths!r}\n{_PROCESS}"
    processes = [subprocess.Popen([sys.executable, "-c", script, str(model), str(rank), "2", store]) for rank in range(2)]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    expected = outputs(model, None)
    for rank in range(2):
        check(torch.load(f"{store}.{rank}"), expected)


def test_without_a_communicator_the_output_is_a_part(model: pathlib.Path) -> None:
    expected = outputs(model, None)
    parts = [outputs(model, None, tp_rank=rank, tp_size=2) for rank in range(2)]
    check([(one.float() + other.float()) for one, other in zip(*parts)], expected)
    with pytest.raises(AssertionError):
        check(parts[0], expected)


def test_a_single_rank_is_a_layer_that_is_not_split(model: pathlib.Path) -> None:
    single = sa.SingleRank()
    assert (single.rank, single.size) == (0, 1)
    for found, expected in zip(outputs(model, single), outputs(model, None)):
        assert torch.equal(found, expected)


def test_the_sum_is_over_contiguous_tensors_once_a_forward(model: pathlib.Path) -> None:
    seen: list[tuple[torch.Size, bool, torch.dtype, threading.Thread]] = []

    def look(tensor: torch.Tensor) -> None:
        seen.append((tensor.shape, tensor.is_contiguous(), tensor.dtype, threading.current_thread()))

    found = outputs(model, sa.FunctionCommunicator(look, 0, 2))
    assert [shape for shape, *_ in seen] == [one.shape for one in found]
    assert all(entry[1:] == (True, entry[2], threading.current_thread()) and entry[2] in (torch.bfloat16, torch.float32) for entry in seen)


@pytest.mark.parametrize("error", [ValueError("the link is down"), KeyError("rank"), AssertionError()])
def test_a_rank_that_raises(model: pathlib.Path, error: Exception) -> None:
    def fail(_tensor: torch.Tensor) -> None:
        raise error

    with pytest.raises(RuntimeError, match=f"all_reduce_sum.*{type(error).__name__}") as caught:
        outputs(model, sa.FunctionCommunicator(fail, 1, 2))
    assert caught.value.__cause__ is error and str(error) in str(caught.value)


def test_an_interrupt_stays_one(model: pathlib.Path) -> None:
    def interrupt(_tensor: torch.Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outputs(model, sa.FunctionCommunicator(interrupt, 1, 2))


def test_one_of_two_threads_raises(model: pathlib.Path) -> None:
    ranks = Ranks(2)

    def work(rank: int) -> list[torch.Tensor]:
        if rank == 1:

            def fail(_tensor: torch.Tensor) -> None:
                raise OSError("rank 1 has no link")

            return outputs(model, sa.FunctionCommunicator(fail, 1, 2))
        return outputs(model, ranks.communicator(rank))

    first, second = ranks.run(work)
    assert isinstance(first, RuntimeError) and "BrokenBarrierError" in str(first)
    assert isinstance(second, RuntimeError) and "OSError: rank 1 has no link" in str(second)


def test_layers_after_a_failure(model: pathlib.Path) -> None:
    """The error of one forward is not that of the next."""
    fails = [True]

    def sometimes(_tensor: torch.Tensor) -> None:
        if fails.pop():
            fails.append(False)
            raise OSError("once")
        fails.append(False)

    communicator = sa.FunctionCommunicator(sometimes, 0, 1)
    with pytest.raises(RuntimeError, match="once"):
        outputs(model, communicator)
    for found, expected in zip(outputs(model, communicator), outputs(model, None)):
        assert torch.equal(found, expected)
    layer = sa.load_layers(sa.Checkpoint(model), LIMITS, communicator=communicator)[0]
    with pytest.raises(ValueError) as caught:
        layer(torch.zeros(1, layer.hidden_size).bfloat16(), sa.BatchBuilder(LIMITS, device="cpu"), caches={})
    assert "once" not in str(caught.value)


def test_refusals(model: pathlib.Path) -> None:
    def nothing(_tensor: torch.Tensor) -> None: ...

    for rank, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="rank|size"):
            sa.FunctionCommunicator(nothing, rank, size)
    with pytest.raises(TypeError, match="must be a function, is int"):
        sa.FunctionCommunicator(1, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be initialised"):
        sa.ProcessGroup()
    checkpoint = sa.Checkpoint(model)
    with pytest.raises(TypeError, match="must be a Communicator, is function"):
        sa.Layer(checkpoint, 0, LIMITS, communicator=nothing)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="communicator|rank"):
        sa.Layer(checkpoint, 0, LIMITS, communicator=sa.SingleRank(), tp_size=2)
    with pytest.raises(ValueError, match="3"):
        sa.Layer(checkpoint, 0, LIMITS, communicator=sa.FunctionCommunicator(nothing, 0, 3))


def test_objects_are_not_copied() -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="SingleRank: cannot be copied or pickled"):
            copied(sa.SingleRank())
