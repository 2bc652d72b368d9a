#!/usr/bin/env python3
"""Makes the golden values of this folder with PyTorch, in double.

usage: make_golden.py OUT_DIR        (needs torch and safetensors)

Small torch.nn.Transformer models with embeddings and an output layer: weights (fp32), and in double
the losses and gradient norms of three clipped AdamW updates, the decoder output and every gradient
of the first, and the parameters after the third.
"""
import json
import math
import random
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

START, END, UPDATES = 1, 2, 3

MODELS = [
    dict(name="transformer_small_post_gelu", norm_first=False, activation="gelu", tie="none",
         vocab=[29, 23], d_model=12, heads=3, ff=20, encoder_layers=1, decoder_layers=2,
         lengths=[[4, 3], [1, 6], [9, 1]]),
    dict(name="transformer_small_pre_relu", norm_first=True, activation="relu", tie="target",
         vocab=[19, 31], d_model=10, heads=2, ff=16, encoder_layers=2, decoder_layers=1,
         lengths=[[2, 5], [6, 2], [3, 3], [1, 1]]),
    dict(name="transformer_small_post_relu_tied", norm_first=False, activation="relu", tie="all",
         vocab=[27, 27], d_model=8, heads=2, ff=24, encoder_layers=1, decoder_layers=1,
         lengths=[[5, 5], [1, 3], [7, 2]]),
]


class Model(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["d_model"]
        self.scale = math.sqrt(d)
        self.src_embed = torch.nn.Embedding(c["vocab"][0], d)
        self.tgt_embed = torch.nn.Embedding(c["vocab"][1], d)
        self.transformer = torch.nn.Transformer(
            d, c["heads"], c["encoder_layers"], c["decoder_layers"], c["ff"], dropout=0.0,
            activation=c["activation"], batch_first=True, norm_first=c["norm_first"])
        self.generator = torch.nn.Linear(d, c["vocab"][1])
        if c["tie"] == "all":
            self.tgt_embed.weight = self.src_embed.weight
        if c["tie"] != "none":
            self.generator.weight = self.tgt_embed.weight
        for p in self.parameters():  # biases and gains away from 0 and 1, so that a missing one shows
            if p.dim() == 1:
                torch.nn.init.normal_(p, 0.5, 0.3)

    def embed(self, table, ids):
        d, n = table.weight.shape[1], ids.shape[1]
        angle = torch.arange(n, dtype=torch.double)[:, None] * torch.exp(
            torch.arange(0, d, 2, dtype=torch.double) * (-math.log(1e4) / d))
        pe = torch.zeros(n, d, dtype=torch.double)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(angle), torch.cos(angle)[:, :d // 2]
        return table(ids) * self.scale + pe

    def forward(self, src, src_pad, tgt, tgt_pad):
        causal = torch.triu(torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool), 1)
        return self.transformer(
            self.embed(self.src_embed, src), self.embed(self.tgt_embed, tgt), tgt_mask=causal,
            src_key_padding_mask=src_pad, tgt_key_padding_mask=tgt_pad,
            memory_key_padding_mask=src_pad)


def padded(lines):
    n = max(len(x) for x in lines)
    ids = torch.tensor([x + [0] * (n - len(x)) for x in lines])
    pad = torch.tensor([[i >= len(x) for i in range(n)] for x in lines])
    return ids, pad


def make(c, folder, seed):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = Model(c).float().double()
    source = [[rng.randrange(4, c["vocab"][0]) for _ in range(a)] + [END] for a, _ in c["lengths"]]
    target = [[rng.randrange(4, c["vocab"][1]) for _ in range(b)] + [END] for _, b in c["lengths"]]
    src, src_pad = padded(source)
    tgt, tgt_pad = padded([[START] + t[:-1] for t in target])
    labels, _ = padded(target)
    named = dict(model.named_parameters())  # a tied table appears once, under its first name
    tensors = {"param." + k: p.detach().float().clone() for k, p in named.items()}
    settings = dict(lr=1e-3, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    losses, norms, nll = [], [], None
    for update in range(UPDATES):
        hidden = model(src, src_pad, tgt, tgt_pad)[~tgt_pad]
        logits = model.generator(hidden)
        loss = F.cross_entropy(logits, labels[~tgt_pad], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        if update == 0:
            nll = F.cross_entropy(logits, labels[~tgt_pad]).item()
            tensors["decoder_output_rows"] = hidden.detach().clone()
            tensors.update({"grad." + k: p.grad.clone() for k, p in named.items()})
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    tensors.update({"after3." + k: p.detach().clone() for k, p in named.items()})
    save_file({k: v.contiguous() for k, v in tensors.items()}, f"{folder}/{c['name']}.safetensors")
    keys = "vocab d_model heads ff encoder_layers decoder_layers norm_first activation tie".split()
    info = {k: c[k] for k in keys}
    info.update(layer_norm_eps=1e-5, start=START, end=END, source=source, target=target,
                label_smoothing=0.1, loss=losses, nll_first=nll, grad_norm_before_clip=norms,
                optimizer=dict(name="AdamW", clip=1.0, **settings))
    with open(f"{folder}/{c['name']}.json", "w", encoding="utf-8") as f:
        json.dump(info, f)
        f.write("\n")


for number, config in enumerate(MODELS):
    make(config, sys.argv[1], 41 + number)
