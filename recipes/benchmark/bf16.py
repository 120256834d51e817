"""Measures what bf16 autocast does to the meta-gradient: its relative error and its cosine, against float64, beside those of float32.

    python recipes/benchmark/bf16.py

The problem is a summary [10×20] of the embedded corpus with soft inputs, and a GPT-2 of one layer and width 16. The inner optimizer is that
of FarziConfig. In bf16, weights and the optimizer's states are float32; matrix products run in bfloat16. Numbers are medians over seeds.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import product
from statistics import median

import torch
from benchmark import relative_error
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config

from farzi_hf import FarziConfig
from farzi_hf.data import SequenceCollator, load_sample_text, tokenize, word_tokenizer
from farzi_hf.distillation import Learner
from farzi_hf.summary import FarziData


def main(argv: Sequence[str] | None = None) -> None:
    """One line per T, window and ε."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--windows", type=int, nargs="+", default=[0, 20], help="0: all steps are differentiated")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1e-6, 1e-3], help="ε of the inner Adam")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(argv)
    text = load_sample_text(200)
    tokenizer = word_tokenizer(text["train"]["text"], vocab_size=300)
    ids = tokenize(text, tokenizer)["train"][:32]["input_ids"]
    batch = SequenceCollator()([{"input_ids": row} for row in ids])
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2, tie_word_embeddings=False, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    double = Learner(lambda: AutoModelForCausalLM.from_config(config, trust_remote_code=False).double())
    single = Learner(lambda: AutoModelForCausalLM.from_config(config, trust_remote_code=False).double().float())
    for epsilon, steps, window in product(given.epsilons, given.steps, given.windows):
        if window >= steps:
            continue
        args = FarziConfig(
            "unused", num_sequences=10, sequence_length=20, latent_dim=8, inputs="soft", labels="shared", inner_steps=steps,
            window=window, synthetic_batch_size=5, inner_epsilon=epsilon, adjoint="tape", use_cpu=True,
        )  # fmt: skip
        objective = args.make_objective()

        def gradient(learner: Learner, farzi: FarziData, seed: int, bf16: bool = False, objective=objective) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = objective(learner, farzi.tensors, batch, seed)
            found = torch.autograd.grad(loss, list(farzi.parameters()))
            return torch.cat([x.flatten().double() for x in found])

        found: dict[str, list[tuple[float, float]]] = {"float32": [], "bf16": []}
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            farzi = FarziData(args.summary_config(double.vocab_size))
            rounded, half = gradient(single, farzi, seed), gradient(single, farzi, seed, bf16=True)
            exact = gradient(double, farzi.double(), seed)
            for name, x in {"float32": rounded, "bf16": half}.items():
                found[name].append((relative_error([x], [exact]), float(torch.cosine_similarity(x, exact, dim=0))))
        medians = {name: map(median, zip(*pairs, strict=True)) for name, pairs in found.items()}
        said = "; ".join(f"{n}: relative error {e:.2g}, cosine {c:.4f}" for n, (e, c) in medians.items())
        print(f"T = {steps}, window {window or steps}, ε {epsilon:g}: {said}", flush=True)


if __name__ == "__main__":
    main()
