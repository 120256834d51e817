"""A budget refuses an operation of torch before it runs, by what it would take."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from farzi_hf.summary.store.budget import Budget, OverBudgetError

MANY = 10**6


def spent(work, seconds: float = 100.0, nbytes: int = 10**9) -> tuple[float, int]:
    """The seconds and the bytes that `work` takes of a budget, as long as its result lives."""
    budget = Budget(seconds, nbytes)
    with budget:
        result = work()
    taken = (seconds - budget.seconds, nbytes - budget.nbytes)
    del result
    return taken


LARGE = {
    "zeros": lambda: torch.zeros(10**6, 10**6),
    "a range": lambda: torch.arange(10**12),
    "a product of all pairs": lambda: torch.ones(10**6, 1) * torch.ones(10**6),
    "a matrix": lambda: torch.ones(10**6, 1) @ torch.ones(1, 10**6),
    "a copy of one number": lambda: torch.ones(1).expand(10**12).clone(),
    "padding": lambda: torch.nn.functional.pad(torch.ones(3), (0, 10**12)),
    "one-hot rows": lambda: torch.nn.functional.one_hot(torch.arange(10**6), 10**6),
    "repetitions": lambda: torch.ones(1).repeat(10**12),
}

SLOW = {
    "a matrix": lambda: torch.ones(3000, 3000) @ torch.ones(3000, 3000),
    "half precision": lambda: torch.ones(3000, 3000).half() @ torch.ones(3000, 30).half(),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(
        *[torch.ones(1, 4, 9000, 64)] * 3
    ),
    "a convolution": lambda: torch.nn.functional.conv1d(
        torch.ones(1, 64, 9000), torch.ones(64, 64, 999)
    ),
    "orthogonal columns": lambda: torch.linalg.qr(torch.ones(3000, 3000)),
    "numbers": lambda: torch.ones(4 * 10**7).exp(),
    "sorted numbers": lambda: torch.ones(10**7).sort(),
    "a loop": lambda: [torch.ones(1) for _ in range(10**6)],
    "a recurrent layer": lambda: torch.nn.LSTM(512, 512)(torch.ones(2000, 1, 512)),
}


@pytest.mark.parametrize("work", LARGE.values(), ids=LARGE)
def test_memory_is_refused_before_it_is_taken(work):
    with Budget(1e9, 10**8), pytest.raises(OverBudgetError, match="memory"):
        work()


@pytest.mark.parametrize("work", SLOW.values(), ids=SLOW)
def test_time_is_refused_before_it_is_spent(work):
    with Budget(0.1, 10**9), pytest.raises(OverBudgetError, match="time"):
        work()


def test_what_an_operation_would_take_is_all_that_is_looked_at():
    """No process has these bytes: torch itself could not make them."""
    with Budget(1e30, 2**70), pytest.raises(RuntimeError, match="allocate"):
        torch.empty(2**60)
    with Budget(1e30, 2**60), pytest.raises(OverBudgetError, match="memory"):
        torch.empty(2**60)


def test_bytes_count_as_long_as_somebody_looks_at_them():
    assert spent(lambda: torch.ones(MANY))[1] == 4 * MANY
    assert spent(lambda: torch.ones(MANY)[:1])[1] == 4 * MANY  # a view
    assert spent(lambda: torch.ones(MANY).add_(1).view(10, -1).T)[1] == 4 * MANY
    assert spent(lambda: (torch.ones(MANY) + 1).sum())[1] == 4
    budget = Budget(100.0, 10 * MANY)
    with budget:
        for _ in range(50):
            kept = torch.ones(MANY)
            kept = kept.exp()
    assert budget.nbytes == 6 * MANY
    del kept
    gc.collect()
    assert budget.nbytes == 10 * MANY


def test_tensors_without_numbers_cost_nothing_but_calls():
    seconds, nbytes = spent(
        lambda: torch.empty(10**9, 10**3, device="meta") @ torch.empty(10**3, 10**9, device="meta")
    )
    assert nbytes == 0
    assert seconds < 1e-3


def test_a_share_is_a_part_of_the_budget():
    budget = Budget(1.0, 10**9)
    with budget:
        with pytest.raises(OverBudgetError), budget.share(0.25):
            torch.ones(10**8).exp()
        assert 0.5 < budget.seconds < 0.8
        torch.ones(10**6).exp()


def test_other_threads_are_free():
    with Budget(0.0, 0):
        thread = threading.Thread(target=torch.ones, args=(1000,))
        thread.start()
        thread.join()
        with pytest.raises(OverBudgetError):
            torch.ones(1000)


def test_layers_that_repeat_are_counted_each_time():
    once, _ = spent(lambda: torch.ones(1000).exp())
    often, _ = spent(lambda: [torch.ones(1000).exp() for _ in range(100)])
    assert often == pytest.approx(100 * once)
