"""SOAP: its step as its paper has it, whole parameters in the inner loop, and the same for the
stock Trainer.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from farzi_hf.engine import InnerAdamW, InnerSoap, Soap, Tape, gradients, train, unroll

BETAS = (0.8, 0.9)
EPS = 1e-3
DECAY = 0.1
LR = 0.03
SOAP = InnerSoap(LR, BETAS, EPS, weight_decay=DECAY, no_decay=("0.bias", "2.bias"))
SOAP_PLAIN = InnerSoap(0.01)


def problem() -> tuple:
    """Two layers, one wide and one tall; the loss has the step in it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 7)).double()
    inputs = torch.randn(40, 32, 9).double() * torch.linspace(0.1, 3, 9).double()
    targets = torch.randn(40, 32, 7).double()

    def loss(params: dict[str, Tensor], _: tuple, step: int) -> Tensor:
        return (
            (torch.func.functional_call(model, params, (inputs[step - 1],)) - targets[step - 1])
            .square()
            .mean()
        )

    return model, loss, {name: x.detach().clone() for name, x in model.named_parameters()}


def plain_soap(gradients: list[Tensor], w: Tensor, sides: list[int]) -> Tensor:
    """The equations of `InnerSoap`, with no flat buffers; only these sides are turned."""
    b1, b2 = BETAS
    m = torch.zeros_like(w)
    v = torch.zeros_like(w)
    q = [torch.eye(n).to(w) for n in w.shape]
    c = [torch.zeros(n, n).to(w) for n in w.shape]
    for t, g in enumerate(gradients, 1):
        for side in sides:
            x = g @ g.T if side == 0 else g.T @ g
            c[side] = b2 * c[side] + (1 - b2) * x if t > 1 else x
            if t <= 10 or t % 10 == 0:
                q[side] = torch.linalg.qr(
                    c[side] @ q[side] + 0.1 * c[side].trace() / len(x) * q[side]
                )[0]
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * (q[0].T @ g @ q[1]) ** 2
        move = (q[0].T @ m @ q[1] / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + EPS)
        w = (1 - LR * DECAY) * w - LR * q[0] @ move @ q[1].T
    return w


@pytest.mark.parametrize(
    ("shape", "sides"), [((6, 4), [0, 1]), ((4, 6), [0, 1]), ((1030, 3), [1]), ((3, 1030), [0])]
)
def test_a_step_is_that_of_the_equations(shape, sides):
    torch.manual_seed(0)
    w = torch.randn(shape).double()
    scale = torch.linspace(0.1, 3, shape[1]).double()
    gradients = [torch.randn(shape).double() * scale for _ in range(25)]
    [own] = (
        InnerSoap(LR, BETAS, EPS, weight_decay=DECAY)
        .by_parameter({"w": torch.Size(shape)})
        .values()
    )
    apart = state = own.init(w.flatten().clone())
    assert len(state) == own.fields == 3 + 2 * len(sides)
    for t, g in enumerate(gradients, 1):
        apart = own.step(apart, g.flatten(), t, LR)
        state = own.step(state, g.flatten(), t, LR, out=state)
        assert all(map(torch.equal, apart, state))
    torch.testing.assert_close(
        state[0].view(shape), plain_soap(gradients, w, sides), rtol=1e-9, atol=1e-9
    )


def test_stacked_learners_have_the_steps_that_each_has_alone():
    torch.manual_seed(0)
    shapes = {"matrix": (6, 4), "tall": (1030, 3), "0.bias": (5,), "2.bias": (), "column": (5, 1)}
    starts, pulls = (
        {name: torch.randn(*count, *shape).double() for name, shape in shapes.items()}
        for count in ((3,), (3, 25))
    )

    def loss(params: dict[str, Tensor], _: tuple, step: int) -> Tensor:
        return sum((x * pulls[name][:, step - 1]).sum() for name, x in params.items())

    together = train(loss, starts, (), optimizer=SOAP.of_stacks(), steps=25).params
    for i in range(3):
        alone = {name: x[i] for name, x in starts.items()}
        own = lambda params, _, step, i=i: sum(  # noqa: E731
            (x * pulls[name][i, step - 1]).sum() for name, x in params.items()
        )
        for name, x in train(own, alone, (), optimizer=SOAP, steps=25).params.items():
            torch.testing.assert_close(together[name][i], x, rtol=1e-10, atol=1e-12)
    assert InnerSoap(LR, max_grad_norm=1.0).of_stacks() is None


def test_vectors_and_what_is_too_wide_have_adam():
    shapes = {
        "0.bias": torch.Size([5]),
        "2.bias": torch.Size([]),
        "column": torch.Size([5, 1]),
        "wide": torch.Size([2000, 3000]),
    }
    own = SOAP.by_parameter(
        {**shapes, "matrix": torch.Size([2000, 8]), "deep": torch.Size([3, 4, 5])}
    )
    assert {type(own[name]) for name in shapes} == {InnerAdamW}
    assert own["0.bias"] is own["2.bias"]
    assert (own["0.bias"].weight_decay, own["column"].weight_decay, own["matrix"].weight_decay) == (
        0.0,
        DECAY,
        DECAY,
    )
    assert (own["matrix"].shape, own["deep"].shape) == ((2000, 8), (12, 5))


def test_the_inner_loop_goes_on_and_is_that_of_the_torch_optimizer():
    model, loss, start = problem()
    whole = train(loss, start, (), optimizer=SOAP, steps=33)
    parts = train(
        loss, train(loss, start, (), optimizer=SOAP, steps=11), (), optimizer=SOAP, steps=22
    )
    assert all(torch.equal(whole.params[name], parts.params[name]) for name in start)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY}]
    groups += [{"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = Soap(groups, LR, BETAS, EPS)
    for step in range(1, 34):
        optimizer.zero_grad()
        loss(dict(model.named_parameters()), (), step).backward()
        optimizer.step()
        if step == 15:  # stopped, and resumed
            kept = copy.deepcopy(optimizer.state_dict())
            optimizer = Soap(groups, LR)
            optimizer.load_state_dict(kept)
        if step == 20:  # pickled, as `copy` does it
            optimizer = copy.copy(optimizer)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), whole.params[name], rtol=1e-9, atol=1e-10)
        assert (p - start[name]).abs().max() > 0.01


def test_rounding_does_not_choose_the_coordinates():
    """The gradient of the first steps has two ranks; the rest of its columns is zero but for
    rounding.
    """
    torch.manual_seed(0)
    w = torch.randn(30, 8).double()
    mix = torch.randn(2, 8).double()
    rows = torch.randn(30, 2).double()
    target = torch.randn(30, 8).double()

    def loss(params: dict[str, Tensor], _: tuple, step: int) -> Tensor:
        return (
            ((params["w"] - target) * (rows @ mix)).sum()
            if step < 3
            else (params["w"] - target).square().sum()
        )

    ends = [
        train(loss, {"w": w * (1 + by)}, (), optimizer=SOAP_PLAIN, steps=30).params["w"]
        for by in (0, 1e-12)
    ]
    torch.testing.assert_close(*ends, rtol=1e-8, atol=1e-8)


def test_correlated_columns_take_fewer_steps_than_with_adam():
    torch.manual_seed(0)
    mix = (
        torch.randn(8, 8).double()
        @ torch.diag(torch.logspace(0, -2, 8).double())
        @ torch.randn(8, 8).double()
    )
    target = torch.randn(300, 8).double()
    loss = lambda params, _, step: ((params["w"] - target) @ mix).square().mean()  # noqa: E731
    left = {}
    for kind in (InnerSoap, InnerAdamW):
        optimizer = kind(
            0.1, (0.7, 0.95), weight_decay=0.0, lr_schedule=lambda step: 1 - (step - 1) / 120
        )
        theta = train(
            loss, {"w": torch.zeros(300, 8).double()}, (), optimizer=optimizer, steps=120
        ).params
        left[kind] = float(loss(theta, (), 1))
    assert left[InnerSoap] < 0.3 * left[InnerAdamW]


def test_gradients_of_half_precision_and_of_zero():
    w = torch.randn(6, 4).bfloat16()
    for g in (torch.randn(6, 4).bfloat16(), torch.zeros(6, 4).bfloat16()):
        ended = train(
            lambda params, _, step, g=g: (params["w"] * g).sum(),
            {"w": w},
            (),
            optimizer=SOAP_PLAIN,
            steps=12,
        )
        end = ended.params["w"]
        assert end.dtype == torch.bfloat16
        assert end.isfinite().all()


def test_the_torch_optimizer_goes_on_in_half_precision_and_with_a_rate_of_zero():
    p = nn.Parameter(torch.randn(6, 4).bfloat16())
    optimizer = Soap([p], 0.1)
    for _ in range(3):
        p.grad = torch.randn(6, 4).bfloat16()
        optimizer.step()
        again = Soap([p], 0.1)
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer = again
    before = p.detach().clone()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(p, before)
    with pytest.raises(ValueError, match="betas must be two numbers"):
        Soap([p], 0.1, betas=(0.9, 1.0))


def test_nothing_is_differentiated_through_it():
    _, loss, start = problem()
    x = torch.zeros(3, requires_grad=True)
    for adjoint in (None, Tape()):
        with pytest.raises(
            ValueError,
            match=r"optimizer=InnerSoap trains, but has no derivative here; give InnerAdam",
        ):
            unroll(loss, start, (x,), optimizer=SOAP, steps=2, adjoint=adjoint)
        with pytest.raises(ValueError, match="has no derivative here"):
            gradients(
                lambda theta: [theta["0.bias"].sum()],
                loss,
                start,
                (x,),
                optimizer=SOAP,
                steps=2,
                adjoint=adjoint,
            )
    with torch.no_grad():
        assert unroll(loss, start, (x,), optimizer=SOAP, steps=2).keys() == start.keys()
    with pytest.raises(ValueError, match="another optimizer"):
        train(
            loss,
            train(loss, start, (), optimizer=InnerAdamW(LR), steps=1),
            (),
            optimizer=SOAP,
            steps=1,
        )
