"""Small meta-learning problems, and an independent reference that differentiates their inner loops.

The reference is textbook code: one Python loop per tensor, the optimizers' update rules as their
papers print them, and autograd through everything. It shares nothing with the package but the
hyper-parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import GPT2Config, GPT2LMHeadModel

from farzi_hf.engine import InnerAdam, InnerAdamW, InnerOptimizer, InnerSGD, PaperAdam


@dataclass(frozen=True)
class MetaProblem:
    """An inner loss with its start and its inputs, leaves where they are to be differentiated, and
    an outer loss.
    """

    inner_loss: Callable[[dict[str, Tensor], tuple[Tensor, ...], int], Tensor]
    params: dict[str, Tensor]
    inputs: tuple[Tensor, ...]

    @property
    def arguments(self) -> tuple:
        """The positional arguments of `unroll`."""
        return self.inner_loss, self.params, self.inputs

    @property
    def leaves(self) -> list[Tensor]:
        return [x for x in (*self.params.values(), *self.inputs) if x.requires_grad]

    def with_leaves(self, leaves: list[Tensor]) -> MetaProblem:
        values = iter(leaves)
        params = {name: next(values) if x.requires_grad else x for name, x in self.params.items()}
        return replace(
            self,
            params=params,
            inputs=tuple(next(values) if x.requires_grad else x for x in self.inputs),
        )


def outer_loss(theta: dict[str, Tensor]) -> Tensor:
    """Some function that depends on every trained number in its own way."""
    return sum(
        (x.flatten() + torch.arange(x.numel()).cos()).square().mean()
        for x in theta.values()
        if x.requires_grad
    )


def _normal(
    *shape: int, scale: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def mlp(dtype: torch.dtype = torch.float64) -> MetaProblem:
    """Regression on minibatches chosen by step, with a dead, a frozen and an integer entry among
    the parameters.
    """
    params = {
        "in": _normal(3, 6, scale=0.6, dtype=dtype).requires_grad_(),
        "count": torch.arange(4),
        "bias": _normal(6, scale=0.1, dtype=dtype).requires_grad_(),
        "dead": _normal(2, 2, dtype=dtype).requires_grad_(),
        "frozen": nn.Parameter(1 + 0.1 * _normal(6, dtype=dtype), requires_grad=False),
        "out": _normal(6, 2, scale=0.6, dtype=dtype).requires_grad_(),
    }
    x = _normal(10, 3, dtype=dtype).requires_grad_()
    y = _normal(10, 2, dtype=dtype).requires_grad_()

    def inner_loss(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int) -> Tensor:
        x, y, order = inputs
        rows = order[(4 * step + torch.arange(4)) % len(order)]
        hidden = torch.tanh(x[rows] @ params["in"] + params["bias"]) * params["frozen"]
        return (hidden @ params["out"] - y[rows]).square().mean() * params["count"].sum() / 6

    return MetaProblem(
        inner_loss, params, (x, y, torch.randperm(10, generator=torch.Generator().manual_seed(1)))
    )


def gpt2(dtype: torch.dtype = torch.float64) -> MetaProblem:
    """A Transformer (tied embeddings, eager attention) on soft sequences; its last position
    embeddings are dead.
    """
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=11,
        n_positions=6,
        n_embd=8,
        n_layer=1,
        n_head=2,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        initializer_range=0.3,
    )
    model = GPT2LMHeadModel(config).to(dtype)
    soft = _normal(6, 5, 11, dtype=dtype).softmax(-1).requires_grad_()

    def inner_loss(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int) -> Tensor:
        tokens = inputs[0][[step % 6, (step + 1) % 6]]
        embeds = tokens @ params["transformer.wte.weight"]
        logits = functional_call(model, params, kwargs={"inputs_embeds": embeds}).logits
        return -(tokens[:, 1:] * logits[:, :-1].log_softmax(-1)).sum(-1).mean()

    return MetaProblem(inner_loss, dict(model.named_parameters()), (soft,))


PROBLEMS: dict[str, Callable[..., MetaProblem]] = {"mlp": mlp, "gpt2": gpt2}


def warmup_then_decay(step: int) -> float:
    return min(step / 3, 3 / step)


# A small ε or weight decay on parameters whose gradient is zero (attention's key biases) makes the
# loop itself chaotic: where a test is about rounding or differences, ε is large enough to be
# smooth.
OPTIMIZERS: dict[str, InnerOptimizer] = {
    "adam": InnerAdam(lr=0.02, eps=1e-3),
    "adam_eps_root": InnerAdam(lr=0.02, betas=(0.8, 0.95), eps=0.0, eps_root=1e-6),
    "adam_decay_schedule": InnerAdam(
        lr=0.05, eps=1e-2, weight_decay=0.1, lr_schedule=warmup_then_decay
    ),
    "adam_clipped": InnerAdam(lr=0.02, eps=1e-2, weight_decay=0.1, max_grad_norm=0.3),
    "adamw": InnerAdamW(lr=0.05, betas=(0.8, 0.95), eps=1e-2, weight_decay=0.5),
    "adamw_clipped": InnerAdamW(
        lr=0.05, eps=1e-2, weight_decay=0.5, lr_schedule=warmup_then_decay, max_grad_norm=0.98
    ),
    "sgd": InnerSGD(lr=0.1),
    "sgd_momentum": InnerSGD(lr=0.005, momentum=0.9),
    "sgd_clipped": InnerSGD(lr=0.1, momentum=0.5, max_grad_norm=0.2),
    "sgd_decay_schedule": InnerSGD(
        lr=0.1, momentum=0.5, weight_decay=0.1, lr_schedule=warmup_then_decay
    ),
}
ADAM = OPTIMIZERS["adam"]


Adam = torch.optim.Adam
AdamW = torch.optim.AdamW
SGD = torch.optim.SGD
falling = warmup_then_decay
TWINS: dict[str, tuple[InnerOptimizer, type[torch.optim.Optimizer], dict]] = {
    "adam": (InnerAdam(lr=0.05), Adam, {}),
    "adam_betas_eps": (
        InnerAdam(lr=0.05, betas=(0.5, 0.9), eps=1e-3),
        Adam,
        {"betas": (0.5, 0.9), "eps": 1e-3},
    ),
    "adam_decay": (
        InnerAdam(lr=0.05, weight_decay=0.1, lr_schedule=falling),
        Adam,
        {"weight_decay": 0.1},
    ),
    "adamw": (InnerAdamW(lr=0.05), AdamW, {}),
    "adamw_decay": (
        InnerAdamW(lr=0.05, weight_decay=0.5, lr_schedule=falling),
        AdamW,
        {"weight_decay": 0.5},
    ),
    "paper_adam": (PaperAdam(lr=0.05), Adam, {}),
    "sgd": (InnerSGD(lr=0.002, lr_schedule=falling), SGD, {}),
    "sgd_decay": (
        InnerSGD(lr=0.002, momentum=0.5, weight_decay=0.1),
        SGD,
        {"momentum": 0.5, "weight_decay": 0.1},
    ),
}
"""Each with the optimizer of torch that it equals, and that one's settings besides the learning
rate.
"""


def reference_unroll(
    problem: MetaProblem,
    optimizer: InnerOptimizer,
    steps: int,
    window: int | None = None,
    first_step: int = 1,
) -> dict[str, Tensor]:
    """θ_T by name, differentiable by autograd through every step of the window."""
    w = {name: x for name, x in problem.params.items() if x.requires_grad}
    accumulators: dict[str, tuple[Tensor, ...]] = dict.fromkeys(w, ())
    update = RULES[type(optimizer)]
    for t in range(1, steps + 1):
        step = first_step + t - 1
        if window is not None and t == steps - window + 1 and t > 1:
            w = {name: x.detach().requires_grad_() for name, x in w.items()}
            accumulators = {
                name: tuple(a.detach() for a in slots) for name, slots in accumulators.items()
            }
        loss = problem.inner_loss({**problem.params, **w}, problem.inputs, step)
        gradients = torch.autograd.grad(
            loss, list(w.values()), create_graph=True, materialize_grads=True
        )
        if optimizer.max_grad_norm is not None:
            norm = torch.sqrt(sum(g.square().sum() for g in gradients))
            gradients = [g * min(1.0, optimizer.max_grad_norm / (norm + 1e-6)) for g in gradients]
        lr = optimizer.lr * (optimizer.lr_schedule(step) if optimizer.lr_schedule else 1.0)
        for name, g in zip(list(w), gradients, strict=True):
            hyper = (
                replace(optimizer, weight_decay=0.0)
                if name in getattr(optimizer, "no_decay", ())
                else optimizer
            )
            if not isinstance(optimizer, InnerAdamW):
                g = g + optimizer.weight_decay * w[name]
            w[name], accumulators[name] = update(hyper, w[name], g, accumulators[name], t, lr)
    return {**problem.params, **w}


def _adam(
    hyper: InnerAdam, w: Tensor, g: Tensor, moments: tuple[Tensor, ...], t: int, lr: float
) -> tuple:
    """Kingma & Ba (2015), Algorithm 1, with optax's eps_root."""
    m, v = moments or (torch.zeros_like(w), torch.zeros_like(w))
    beta1, beta2 = hyper.betas
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t) + hyper.eps_root
    root = torch.sqrt(torch.where(v_hat == 0, torch.ones_like(v_hat), v_hat)) * (v_hat != 0)
    return w - lr * m_hat / (root + hyper.eps), (m, v)


def _adamw(
    hyper: InnerAdamW, w: Tensor, g: Tensor, moments: tuple[Tensor, ...], t: int, lr: float
) -> tuple:
    """Loshchilov & Hutter (2019), Algorithm 2, with the decay times the learning rate, as torch has
    it.
    """
    moved, moments = _adam(hyper, w, g, moments, t, lr)
    return moved - lr * hyper.weight_decay * w, moments


def _sgd(
    hyper: InnerSGD, w: Tensor, g: Tensor, velocity: tuple[Tensor, ...], t: int, lr: float
) -> tuple:
    """Heavy ball as in torch.optim.SGD: the first step takes the gradient as it is."""
    buffer = hyper.momentum * velocity[0] + g if velocity else g
    return w - lr * buffer, (buffer,)


RULES: dict[type[InnerOptimizer], Callable] = {InnerAdam: _adam, InnerAdamW: _adamw, InnerSGD: _sgd}
"""`rule(hyper-parameters, w, g, accumulators, t, lr)` gives the next w and accumulators; there are
none before the first step.
"""


def gradients(loss: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, leaves, materialize_grads=True))


def relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """‖found − expected‖ / ‖expected‖ over all tensors; 0 if both are zero."""
    found, expected = (torch.cat([x.flatten() for x in tensors]) for tensors in (found, expected))
    difference = (found - expected).norm()
    return float(difference / expected.norm()) if difference else 0.0
