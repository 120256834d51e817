"""The layers of a GPT-2 for a student whose positions are rotary and whose norms have no mean.

A Llama differs from a GPT-2 in five things. Each has a part of the map; e is the teacher's width, w
the student's, and rows are x M of states x, as `farzi_hf.summary.layers` has it.

- **Norms.** States of a GPT-2 are orthogonal to (1, …, 1) once all that writes is centred. The mean
  of such states is 0, so RMSNorm is LayerNorm.
- **Biases.** A Llama has none. The direction of (1, …, 1) is free and nothing writes there, so each
  embedding holds a constant c in it. What writers add to all states, Σ b, goes into the
  embeddings, too:

      y = (x + Σ b) M + c · 1/√w.

  A norm divides by ‖y‖ now and not by ‖x‖, and what a layer's input lacks of the teacher's
  positions is lost. So what reads normalised states ŷ gets its weights by least squares: with the
  teacher's x̂ of the same places, A is the matrix with ŷ A ≈ [x̂, 1] (a ridge holds it near the A
  that would be right if ‖y‖ / ‖x‖ were a constant), and weights W with biases b become A [W; b].
- **Learnt positions.** Their mean belongs to the embeddings. The first entry of all rows, if it is
  the same in all, has the first position whole.
- **MLP.** GELU(z) ≈ silu(1.702 z) / 1.702. A gated unit writes silu(gate · ŷ) · (up · ŷ), where
  up · ŷ ≈ 1 is read from the constant.
- **Attention.** Values and what writes them go head by head, as in a GPT-2. Queries and keys have
  to find by rotations what the teacher finds by positions that are added, so they are fitted: the
  teacher's patterns P of each layer are known, and some steps of Adam make the mean of
  KL(P ‖ softmax(q R k)) small. They begin with the teacher's products of queries and keys, the
  strongest directions in the pairs of coordinates that rotate slowest.

The places are of rows that the teacher writes itself; nothing of it is random for a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
)
from transformers.activations import ACT2FN

from farzi_hf.summary.endless import WrittenRows
from farzi_hf.summary.layers import Gpt2, Values, of_rank

_KINDS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM)
"""Students whose modules have the names of a Llama's."""
_PLACES = 2**14
"""Places in the rows that the teacher writes, of all rows together."""
_PLACES_OF_A_STEP = 2**10
_LONGEST = 128
"""Places of a row. Rotations go on beyond them."""
_STEPS = 120
_RATE = 0.015
_CONSTANT = 0.5
"""c beside the length of an embedding."""
_RIDGE = 1e-3
_GELU = 1.702
"""GELU(z) is nearly z σ(1.702 z) (Hendrycks and Gimpel, 2016, arXiv 1606.08415)."""
FIT_O = False
FIT_DOWN = False
PCA = False
KSCALE = 1.0

def rotary_layers(teacher: PreTrainedModel, model: PreTrainedModel, length: int) -> Values:
    """The parameters of a Llama, or of a model with its modules, that make it compute nearly what a
    GPT-2 does, by name: all but those of layers that it has beyond the teacher's, of which only
    what writes is set, to 0. {} for other pairs of models.

    Args:
        teacher: a trained model, with weights on any device.
        model: a new model over the same vocabulary.
        length: of the rows that students read, in ids.
    """
    if not _fits(teacher, model):
        return {}
    rows = _written(teacher, min(length, _LONGEST))
    return dict(_Fit(teacher, model, rows).values())


def _fits(teacher: PreTrainedModel, model: PreTrainedModel) -> bool:
    """Whether there is a map between the two, and room for each layer and head."""
    if type(teacher) is not GPT2LMHeadModel or type(model) not in _KINDS:
        return False
    theirs, ours = teacher.config, model.config
    is_plain = (
        "gelu" in theirs.activation_function
        and theirs.scale_attn_weights
        and not theirs.scale_attn_by_inverse_layer_idx
        and not theirs.add_cross_attention
    )
    is_known = ours.hidden_act == "silu" and not ours.tie_word_embeddings
    has_room = (
        ours.num_hidden_layers >= theirs.n_layer and ours.num_attention_heads >= theirs.n_head
    )
    return is_plain and is_known and has_room


def _written(teacher: GPT2LMHeadModel, length: int) -> Tensor:
    """Rows (n, length) that the teacher writes, about `_PLACES` ids in all."""
    length = min(length, teacher.config.n_positions)
    entries = torch.ones(teacher.config.vocab_size)
    padding = teacher.config.pad_token_id
    if padding is not None and 0 <= padding < len(entries):
        entries[padding] = 0
    return WrittenRows(teacher, entries, length, seed=0).beginning(_PLACES // length, length)


class _Fit:
    """Teacher and student read the same rows, layer by layer, and each part of the student is made
    from what both have there.
    """

    def __init__(self, teacher: GPT2LMHeadModel, model: PreTrainedModel, ids: Tensor) -> None:
        self.theirs = Gpt2(teacher)
        self.activation = ACT2FN[teacher.config.activation_function]
        self.epsilons = (teacher.config.layer_norm_epsilon, model.config.rms_norm_eps)
        self.model = model
        self.ids = ids
        self.width: int = model.config.hidden_size
        self.heads: int = model.config.num_attention_heads
        self.groups: int = model.config.num_key_value_heads
        self.size = model.model.layers[0].self_attn.head_dim
        self.to_student = self.theirs.to_width(self.width).float()
        if PCA and self.width < self.theirs.width: self.pca()
        self.alone = torch.full((self.width,), self.width**-0.5)
        places = torch.arange(ids.shape[1])[None]
        like = torch.zeros(1, 1, device=model.device)
        self.rotation = [
            x.float().cpu() for x in model.model.rotary_emb(like, places.to(model.device))
        ]
        # What writers add to all states and have not added yet.
        self.ahead = sum(
            self.theirs.writer(number, name)[1]
            for number in range(teacher.config.n_layer)
            for name in ("attn.c_proj", "mlp.c_proj")
        ).float()

    def pca(self):
        x = (self.theirs.embedding[self.ids] + self.theirs.positions[: self.ids.shape[1]]).float()
        from farzi_hf.summary.layers import _orthogonal_to_ones
        C = 0
        def add(x):
            f = x.flatten(0, 1).double(); f = f / f.norm(dim=1, keepdim=True)
            return f.T @ f
        C = C + add(x)
        for n in range(self.model_layers()):
            _, pat = self._patterns(n, x)
            x = self._after_attention(n, x, pat); C = C + add(x)
            x = self._after_mlp(n, x); C = C + add(x)
        h = self.theirs.head; h = h / h.norm()
        _, d = torch.linalg.eigh(C / C.trace())
        k = self.width - 1
        self.to_student = (d[:, -k:] @ _orthogonal_to_ones(self.width)[:k]).float()
    def model_layers(self):
        return max(int(n.split(".")[2]) for n in self.theirs._parameters if ".h." in n) + 1

    def values(self) -> Iterator[tuple[str, Tensor]]:
        table = self._embedding()
        yield "model.embed_tokens.weight", table
        x = (self.theirs.embedding[self.ids] + self.theirs.positions[: self.ids.shape[1]]).float()
        y = table[self.ids]
        for number, layer in enumerate(self.model.model.layers):
            own = {name: weight.detach().float().cpu() for name, weight in layer.named_parameters()}
            prefix = f"model.layers.{number}."
            if number >= self.model_layers():
                yield f"{prefix}self_attn.o_proj.weight", torch.zeros_like(own["self_attn.o_proj.weight"])
                yield f"{prefix}mlp.down_proj.weight", torch.zeros_like(own["mlp.down_proj.weight"])
                continue
            made, x, y = self._attention(number, own, x, y)
            mlp, x, y = self._mlp(number, own, x, y)
            for name, weight in (made | mlp).items():
                yield prefix + name, weight
        reading = self._reading(x, y)
        head = torch.cat([self.theirs.head, self.theirs.head_bias[:, None]], 1).float()
        yield "lm_head.weight", head @ reading.T
        yield "model.norm.weight", torch.ones(self.width)

    def _embedding(self) -> Tensor:
        length = self.ids.shape[1]
        table = self.theirs.embedding + self.theirs.positions[1:length].mean(0)
        first = self.ids[0, 0]
        if (self.ids[:, 0] == first).all():
            table[first] = self.theirs.embedding[first] + self.theirs.positions[0]
        table = table.float()
        self.constant = _CONSTANT * table[self.ids].norm(dim=-1).mean()
        return (table + self.ahead) @ self.to_student + self.constant * self.alone

    def _reading(self, x, y):
        """A (w, e + 1)"""
        wanted = torch.cat([self._normed(x), torch.ones_like(x[..., :1])], -1)
        ratio = (y.norm(dim=-1) / x.norm(dim=-1)).mean()
        states = self.to_student.T - torch.outer(self.alone, self.ahead) / self.constant
        states = states * ratio * (self.theirs.width / self.width) ** 0.5
        constant = self.alone * y.norm(dim=-1).mean() / self.constant / self.width**.5
        prior = torch.cat([states, constant[:, None]], 1)
        return _least_squares(self._rms(y), wanted, prior)

    def _normed(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilons[0])

    def _rms(self, y):
        return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.epsilons[1])

    def _patterns(self, number, x):
        weight, bias = self.theirs.reader(number, "ln_1", "attn.c_attn")
        q, k, v = (self._normed(x) @ weight.float() + bias.float()).chunk(3, -1)
        q, k = (_heads(z, self.theirs.heads) for z in (q, k))
        return v, _log_patterns(q, k)

    def _after_attention(self, number, x, patterns):
        weight, bias = self.theirs.reader(number, "ln_1", "attn.c_attn")
        v = (self._normed(x) @ weight.float() + bias.float()).chunk(3, -1)[2]
        writer, wbias = self.theirs.writer(number, "attn.c_proj")
        out = patterns.exp() @ _heads(v, self.theirs.heads)
        return x + _joined(out) @ writer.float() + wbias.float()

    def _after_mlp(self, number, x):
        weight, bias = self.theirs.reader(number, "ln_2", "mlp.c_fc")
        writer, wbias = self.theirs.writer(number, "mlp.c_proj")
        return x + self.activation(self._normed(x) @ weight.float() + bias.float()) @ writer.float() + wbias.float()

    def _attention(self, number, own, x, y):
        reading = self._reading(x, y)
        weight, bias = self.theirs.reader(number, "ln_1", "attn.c_attn")
        read = reading @ torch.cat([weight, bias[None]]).float()
        queries, keys, values = (_parts(z, self.theirs.heads) for z in read.chunk(3, -1))
        _, wanted = self._patterns(number, x)
        writing, wbias = self.theirs.writer(number, "attn.c_proj")
        writers = (writing.float() @ self.to_student).chunk(self.theirs.heads)
        q, k, patterns = self._fitted(self._rms(y), wanted, queries, keys, own['self_attn.k_proj.weight'].T)
        v = own["self_attn.v_proj.weight"].T.clone().contiguous()
        o = torch.zeros_like(own["self_attn.o_proj.weight"].T)
        count = self.theirs.heads
        share = self.heads // self.groups
        for g in range(self.groups):
            hs = range(g * share, min(count, (g + 1) * share))
            if not len(hs): continue
            left = torch.cat([values[h] for h in hs], 1)
            right = torch.block_diag(*[writers[h].T for h in hs])
            a, b = of_rank(left.double(), right.double(), self.size)
            v[:, g * self.size:(g + 1) * self.size] = a.float()
            for h, z in zip(hs, b.float().split(self.width)):
                o[h * self.size:(h + 1) * self.size] = z.T
        out = self._rms(y) @ v
        out = _heads(out, self.groups).repeat_interleave(share, 1)[:, :count]
        out = _joined(patterns.exp() @ out)
        x = self._after_attention(number, x, wanted)
        self.ahead = self.ahead - wbias.float()
        if FIT_O:
            want = (x + self.ahead) @ self.to_student + self.constant * self.alone - y
            o[: count * self.size] = _least_squares(out, want, o[: count * self.size])
        y = y + out @ o[: count * self.size]
        qw = own["self_attn.q_proj.weight"].T.clone()
        kw = own["self_attn.k_proj.weight"].T.clone()
        qw[:, : q.shape[0] * self.size] = q.transpose(0, 1).flatten(1)
        kw[:, : k.shape[0] * self.size] = k.transpose(0, 1).flatten(1)
        made = {"input_layernorm.weight": torch.ones(self.width), "self_attn.q_proj.weight": qw.T, "self_attn.k_proj.weight": kw.T, "self_attn.v_proj.weight": v.T, "self_attn.o_proj.weight": o.T}
        return made, x, y

    def _fitted(self, read, wanted, queries, keys, fresh):
        count = self.theirs.heads
        share = self.heads // self.groups
        pairs = self.size // 2
        slow = torch.stack([torch.arange(pairs, 0, -1) - 1, torch.arange(self.size, pairs, -1) - 1], 1).flatten()
        q = torch.zeros(count, self.width, self.size)
        groups = -(-count // share)
        k = torch.stack(fresh.split(self.size, 1)[:groups]).contiguous() * KSCALE
        scale = (self.size / queries[0].shape[1]) ** .25
        for g in range(groups):
            hs = range(g * share, min(count, (g + 1) * share))
            a, b = of_rank(torch.cat([keys[h] for h in hs], 1).double(), torch.block_diag(*[queries[h] for h in hs]).double(), min(self.size, queries[0].shape[1]))
            k[g][:, slow[: a.shape[1]]] = a.float() * scale
            for h, z in zip(hs, b.split(self.width)):
                q[h][:, slow[: a.shape[1]]] = z.float() * scale
        flat = read.flatten(0, 1).double()
        var, vec = torch.linalg.eigh(flat.T @ flat / len(flat))
        var = var.clamp_min(1e-3 * var.mean())
        root = (vec * var.sqrt() @ vec.T).float()
        inv = (vec / var.sqrt() @ vec.T).float()
        n = read @ inv
        q = root @ q; k = root @ k
        target = wanted.exp()
        cos, sin = self.rotation
        def logs(n):
            qs = _rotated(n[:, None] @ q, cos, sin)
            ks = _rotated(n[:, None] @ k, cos, sin).repeat_interleave(share, 1)[:, :count]
            return _log_patterns(qs, ks)
        with torch.enable_grad():
            q.requires_grad_(); k.requires_grad_()
            opt = torch.optim.Adam([q, k], lr=_RATE, betas=(.9, .99))
            sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: min(1.0, (1 - t / _STEPS) / .6))
            B = max(1, _PLACES_OF_A_STEP // n.shape[1])
            for step in range(_STEPS):
                at = slice(step * B % len(n), step * B % len(n) + B)
                loss = F.kl_div(logs(n[at]), wanted[at], reduction="none", log_target=True).sum(-1).mean((0, 2)).sum()
                opt.zero_grad(); loss.backward(); opt.step(); sched.step()
        q = q.detach(); k = k.detach()
        patterns = torch.cat([logs(z) for z in n.split(B)])
        self.kls = getattr(self, "kls", []) + [float((target * (wanted - patterns)).sum(-1).mean())]
        return inv @ q, inv @ k, patterns

    def _mlp(self, number, own, x, y):
        reading = self._reading(x, y)
        weight, bias = self.theirs.reader(number, "ln_2", "mlp.c_fc")
        read = reading @ torch.cat([weight, bias[None]]).float()
        writing, wbias = self.theirs.writer(number, "mlp.c_proj")
        writing = writing.float() @ self.to_student / _GELU
        gate = own["mlp.gate_proj.weight"].T.clone()
        up = own["mlp.up_proj.weight"].T.clone()
        down = torch.zeros_like(own["mlp.down_proj.weight"].T)
        sizes = read.norm(dim=0) * writing.norm(dim=1)
        kept = sizes.argsort(descending=True, stable=True)[: len(down)].sort().values
        gate[:, : len(kept)] = _GELU * read[:, kept]
        up[:, : len(kept)] = reading[:, -1:]
        down[: len(kept)] = writing[kept]
        n = self._rms(y)
        x = self._after_mlp(number, x)
        self.ahead = self.ahead - wbias.float()
        hidden = F.silu(n @ gate) * (n @ up)
        if FIT_DOWN:
            want = (x + self.ahead) @ self.to_student + self.constant * self.alone - y
            down = _least_squares(hidden, want, down)
        y = y + hidden @ down
        return {"post_attention_layernorm.weight": torch.ones(self.width), "mlp.gate_proj.weight": gate.T, "mlp.up_proj.weight": up.T, "mlp.down_proj.weight": down.T}, x, y


def _parts(z, n):
    return z.chunk(n, -1)

def _heads(x, n):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)

def _joined(x):
    return x.transpose(1, 2).flatten(2)

def _log_patterns(q, k):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, torch.finfo(scores.dtype).min).log_softmax(-1)

def _rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin

def _least_squares(x, wanted, prior):
    x = x.flatten(0, -2).double(); wanted = wanted.flatten(0, -2).double()
    square = x.T @ x
    ridge = _RIDGE * square.diagonal().mean() * torch.eye(len(square), dtype=torch.double)
    return torch.linalg.solve(square + ridge, x.T @ wanted + ridge @ prior.double()).float()
