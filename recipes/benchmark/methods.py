"""The benchmark's problem, and its methods: other libraries, used as their users would write it,
and `unroll`.

A method is a function `(problem, steps) → θ_T`, differentiable in the problem's latents and
decoder. All methods start from the same θ_0 and train on the same soft tokens with Adam. The other
libraries use the textbook loss; ours is `Learner.soft_loss`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from transformers import DataCollatorForLanguageModeling, GPT2Config

from farzi_hf.data import load_sample_text, tokenize, word_tokenizer
from farzi_hf.distillation import Learner, Parameters
from farzi_hf.engine import (
    Adjoint,
    Checkpoint,
    Direct,
    GradientGraphs,
    InnerAdam,
    Reversible,
    Tape,
    unroll,
)
from farzi_hf.summary import FarziData, FarziDataConfig, soft_tokens
from farzi_hf.summary.soft_tokens import SoftTokens

ADAM = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-4}
EPS_ROOT = 1e-30
"""Without it, autograd gives NaN for √v of a parameter that never had a gradient. It changes no
other number.
"""


@dataclass(frozen=True)
class Size:
    """The sizes of the problem.

    Args:
        num_sequences, sequence_length, latent_dim, vocab_size: μ, ξ, d, V of the summary. Every
            inner step uses all μ sequences.
        hidden_size: h of the learner, a GPT-2 of one layer.
        batch_size: real sequences of the outer loss.
    """

    num_sequences: int = 50
    sequence_length: int = 50
    latent_dim: int = 8
    vocab_size: int = 2000
    hidden_size: int = 32
    batch_size: int = 64


@dataclass(frozen=True)
class Problem:
    """A learner with its start θ_0, the summary (leaves of the graph), and the real batch of the
    outer loss.
    """

    learner: Learner
    start: Parameters
    latents: Tensor
    decoder: Tensor
    batch: Mapping[str, Tensor]

    @classmethod
    def of(cls, size: Size, dtype: torch.dtype, device: str) -> Problem:
        """Draws all numbers in float32 from fixed seeds and then converts them: every method and
        dtype has the same numbers.

        The summary has the usual small start. The norm of its gradient is then 1e-3 at T = 100 and
        400, and float32 is right to six digits. With ten times this standard deviation, the inner
        loop is chaotic: the norm is 88 at T = 50 and 14,000 at T = 100, where no digit is right.
        """
        learner = Learner(learner_config(size)).to(device)
        start = {name: x.to(dtype) for name, x in learner.initial_parameters(0, device).items()}
        torch.manual_seed(0)
        summary = FarziData(
            FarziDataConfig(
                size.num_sequences, size.sequence_length, size.latent_dim, size.vocab_size
            )
        )
        latents, decoder = (
            x.detach().to(device, dtype).requires_grad_()
            for x in (summary.latents, summary.decoder)
        )
        return cls(
            learner, start, latents, decoder, {k: x.to(device) for k, x in real_batch(size).items()}
        )

    @property
    def leaves(self) -> dict[str, Tensor]:
        """θ_0 in new tensors that require gradients."""
        return {name: x.clone().requires_grad_() for name, x in self.start.items()}

    @property
    def summary(self) -> tuple[Tensor, Tensor]:
        """Latents and decoder, in which the methods differentiate."""
        return self.latents, self.decoder

    def tokens(self) -> Tensor:
        """Soft tokens q (μ, ξ, V). Other libraries compute them once per meta-gradient, because
        every inner step uses all of them.
        """
        return soft_tokens(self.latents, self.decoder, tau=1.0)

    def module(self) -> torch.nn.Module:
        """A model like the learner's with its own parameters, at θ_0, for peers that
        train modules.
        """
        # No copy: the learner's has a `forward` of its own in its head, where higher looks for that
        # of the class.
        model = type(self.learner.model)(self.learner.model.config).to(self.learner.model.dtype)
        for name, x in model.named_parameters():
            x.data = self.start[name].clone()
        return model

    def fused_loss(self, params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
        """The inner loss in the form that `unroll` takes. It computes the soft tokens anew in each
        step, chunk by chunk, and keeps none.
        """
        return self.learner.soft_loss(params, SoftTokens(*inputs))

    def meta_gradient(self, method: Method, steps: int) -> list[Tensor]:
        """Derivatives of the outer loss in latents and decoder. The outer loss is the loss of θ_T
        on the real batch.
        """
        self.latents.grad = self.decoder.grad = None
        self.learner.hard_loss(method(self, steps), self.batch).backward()
        return [self.latents.grad, self.decoder.grad]


Method = Callable[[Problem, int], Parameters]
Loss = Callable[[Problem, Parameters, Tensor], Tensor]


def learner_config(size: Size) -> GPT2Config:
    return GPT2Config(
        vocab_size=size.vocab_size,
        n_positions=size.sequence_length,
        n_embd=size.hidden_size,
        n_layer=1,
        n_head=1,
        tie_word_embeddings=False,
        initializer_range=0.1,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )


def real_batch(size: Size) -> dict[str, Tensor]:
    """Padded sentences of the embedded grammar: ids, labels and attention mask, (b, L)
    with L ≤ ξ.
    """
    text = load_sample_text(max(10, 2 * size.batch_size))
    tokenizer = word_tokenizer(text["train"]["text"], size.vocab_size - 4)
    ids = tokenize(text, tokenizer)["train"]["input_ids"][: size.batch_size]
    rows = [{"input_ids": sequence[: size.sequence_length]} for sequence in ids]
    return dict(DataCollatorForLanguageModeling(tokenizer, mlm=False)(rows))


# -- the loop that a user would write --------------------------------------------------------------


def plain_loss(problem: Problem, params: Parameters, q: Tensor) -> Tensor:
    """Cross-entropy of soft tokens q under the model's logits, in its textbook form."""
    embeds = q @ params["transformer.wte.weight"]
    z = functional_call(problem.learner.model, params, kwargs={"inputs_embeds": embeds}).logits
    return cross_entropy(q, z)


def cross_entropy(q: Tensor, z: Tensor) -> Tensor:
    return -(q[:, 1:] * z[:, :-1].log_softmax(-1)).sum(-1).mean()


def our_loss(problem: Problem, params: Parameters, q: Tensor) -> Tensor:
    """`Learner.soft_loss`. It shows how much the same loop gains by this loss alone."""
    return problem.fused_loss(params, problem.summary, 0)


def adam_step(
    w: list[Tensor], m: list[Tensor], v: list[Tensor], g: list[Tensor], t: int
) -> tuple[list[Tensor], ...]:
    """One step of Adam over lists of tensors, out of place."""
    (beta1, beta2), lr, eps = ADAM["betas"], ADAM["lr"], ADAM["eps"]
    m = [beta1 * m_i + (1 - beta1) * g_i for m_i, g_i in zip(m, g, strict=True)]
    v = [beta2 * v_i + (1 - beta2) * g_i**2 for v_i, g_i in zip(v, g, strict=True)]
    s = [(v_i / (1 - beta2**t) + EPS_ROOT).sqrt() for v_i in v]
    w = [
        w_i - lr / (1 - beta1**t) * m_i / (s_i + eps) for w_i, m_i, s_i in zip(w, m, s, strict=True)
    ]
    return w, m, v


def autograd(loss: Loss) -> Method:
    """Plain autograd through the whole loop."""

    def method(problem: Problem, steps: int) -> Parameters:
        q = problem.tokens()
        names, w = zip(*problem.leaves.items(), strict=True)
        m = v = [torch.zeros_like(x) for x in w]
        for t in range(1, steps + 1):
            g = torch.autograd.grad(
                loss(problem, dict(zip(names, w, strict=True)), q), w, create_graph=True
            )
            w, m, v = adam_step(w, m, v, g, t)
        return dict(zip(names, w, strict=True))

    return method


def step_checkpoint(problem: Problem, steps: int) -> Parameters:
    """`torch.utils.checkpoint` around each step, in its reentrant form.

    The other form evaluates the network a third time per step: `autograd.grad` inside the step
    already needs the tensors that the checkpoint has thrown away, and then keeps them. At T = 10,
    this takes 3.3 CPU seconds and 780 MB, against 2.7 and 380.
    """
    names, w = zip(*problem.leaves.items(), strict=True)
    m = v = [torch.zeros_like(x) for x in w]
    q = problem.tokens()

    def step(t: int, q: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        w, m, v = (state[i::3] for i in range(3))
        recomputing = torch.is_grad_enabled()
        with torch.enable_grad():
            w = w if recomputing else [x.detach().requires_grad_() for x in w]
            loss = plain_loss(problem, dict(zip(names, w, strict=True)), q)
            g = torch.autograd.grad(loss, w, create_graph=recomputing)
        return tuple(x for triple in zip(*adam_step(w, m, v, g, t), strict=True) for x in triple)

    for t in range(1, steps + 1):
        state = (x for triple in zip(w, m, v, strict=True) for x in triple)
        state = checkpoint(step, t, q, *state, use_reentrant=True)
        w, m, v = (state[i::3] for i in range(3))
    return dict(zip(names, w, strict=True))


# -- libraries -------------------------------------------------------------------------------------


def higher_adam(problem: Problem, steps: int) -> Parameters:
    """`higher`: a functional copy of the module and a differentiable twin of `torch.optim.Adam`."""
    import higher

    model = problem.module()
    q = problem.tokens()
    names = [name for name, _ in model.named_parameters()]
    with higher.innerloop_ctx(model, torch.optim.Adam(model.parameters(), **ADAM)) as (
        functional,
        optimizer,
    ):
        for _ in range(steps):
            optimizer.step(
                cross_entropy(
                    q, functional(inputs_embeds=q @ functional.transformer.wte.weight).logits
                )
            )
        return dict(zip(names, functional.parameters(), strict=True))


def torchopt_adam(problem: Problem, steps: int) -> Parameters:
    """TorchOpt's MetaAdam. It replaces the parameters of the module by tensors with a history."""
    import torchopt

    model = problem.module()
    q = problem.tokens()
    optimizer = torchopt.MetaAdam(model, **ADAM, eps_root=EPS_ROOT)
    for _ in range(steps):
        optimizer.step(
            cross_entropy(q, model(inputs_embeds=q @ model.transformer.wte.weight).logits)
        )
    return dict(model.named_parameters())


# -- ours ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ours:
    """`unroll` with an adjoint. The adjoint is made when the method runs.

    Args:
        adjoint: a function that returns the adjoint.
        torch_compile: an argument of `unroll`.
        bf16: whether the losses run under autocast, as `FarziConfig(bf16=True)` does.
    """

    adjoint: Callable[[], Adjoint]
    torch_compile: bool = False
    bf16: bool = False

    def __call__(self, problem: Problem, steps: int) -> Parameters:
        return self.train(problem, steps, self.adjoint())

    def train(self, problem: Problem, steps: int, adjoint: Adjoint) -> Parameters:
        settings = {"optimizer": InnerAdam(**ADAM), "steps": steps, "adjoint": adjoint}
        with torch.autocast(problem.latents.device.type, torch.bfloat16, enabled=self.bf16):
            return unroll(
                problem.fused_loss,
                problem.start,
                problem.summary,
                torch_compile=self.torch_compile,
                **settings,
            )

    def step_seconds(
        self, problem: Problem, timer: Callable[[Callable], tuple[float, float]]
    ) -> tuple[float, float]:
        """Seconds of G, one inner gradient, and of R, one reverse step, each with Adam's
        elementwise part.

        G is measured in a loop without a record, and R in the backward pass of `Tape`. Neither of
        them computes anything twice.
        """
        steps = 4

        def forward() -> Parameters:
            with torch.no_grad():
                return self.train(problem, steps, Tape())

        theta = list(self.train(problem, steps, Tape()).values())
        ones = [torch.ones_like(x) for x in theta]
        reverse = timer(lambda: torch.autograd.grad(theta, problem.summary, ones))
        return timer(forward)[0] / steps, reverse[0] / steps


METHODS: dict[str, Method] = {
    "autograd": autograd(plain_loss),
    "autograd, our loss": autograd(our_loss),
    "higher": higher_adam,
    "TorchOpt": torchopt_adam,
    "torch.utils.checkpoint": step_checkpoint,
    **{
        kind.__name__: Ours(kind) for kind in (GradientGraphs, Direct, Tape, Checkpoint, Reversible)
    },
    **{
        f"{kind.__name__}, compiled": Ours(kind, torch_compile=True)
        for kind in (Tape, Checkpoint, Reversible)
    },
    "Tape, bf16": Ours(Tape, bf16=True),
}
REFERENCE = "Tape"  # in float64
PACKAGES = {"higher": "higher", "TorchOpt": "torchopt"}  # what a method imports
