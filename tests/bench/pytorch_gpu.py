#!/usr/bin/env python3
"""Speed of a plain torch.nn.Transformer training loop on a CUDA card, beside ci/gpu.sh's.

usage: pytorch_gpu.py --src F --tgt F --spm MODEL [--mode eager|amp|flash] [--batch 128] [--updates 20]
                      [--device cuda] [--d 512 --ff 2048 --heads 8 --layers 6]

eager  fp32, attention by plain products
amp    autocast to fp16 with a gradient scaler, attention by plain products
flash  the same with the fused attention kernels that torch picks
Batches have lines of like length, so that little is padding. Prints one JSON line: real target tokens a
second (median of the timed updates) and the peak bytes of torch's allocator.
"""
import argparse, json, math, random, statistics, time

import sentencepiece
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

p = argparse.ArgumentParser()
for name, default in dict(src=None, tgt=None, spm=None, mode="eager", device="cuda").items():
    p.add_argument("--" + name, default=default)
for name, default in dict(batch=128, updates=20, warm=5, d=512, ff=2048, heads=8, layers=6).items():
    p.add_argument("--" + name, type=int, default=default)
a = p.parse_args()
torch.manual_seed(1)
random.seed(1)
half = a.mode != "eager"
cuda = a.device.startswith("cuda")

sp = sentencepiece.SentencePieceProcessor(model_file=a.spm)
PAD, EOS, V = 0, sp.eos_id(), sp.get_piece_size()


def lines(path):
    with open(path, encoding="utf-8", newline="\n") as f:
        return [line.rstrip("\n") for line in f]


pairs = [(sp.encode(s) + [EOS], [PAD] + sp.encode(t) + [EOS]) for s, t in zip(lines(a.src), lines(a.tgt))]
pairs.sort(key=lambda x: (len(x[1]), len(x[0])))
batches = [pairs[i:i + a.batch] for i in range(0, len(pairs) - a.batch + 1, a.batch)]
random.shuffle(batches)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(V, a.d), nn.Embedding(V, a.d)
        pos = torch.arange(1024.0)[:, None] * torch.exp(torch.arange(0, a.d, 2) * (-math.log(1e4) / a.d))
        self.register_buffer("pe", torch.stack([pos.sin(), pos.cos()], 2).flatten(1))
        self.body = nn.Transformer(a.d, a.heads, a.layers, a.layers, a.ff, 0.1, batch_first=True)
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(a.d, V)

    def embed(self, table, ids):
        return self.drop(table(ids) * math.sqrt(a.d) + self.pe[:ids.size(1)])

    def forward(self, x, y):
        causal = nn.Transformer.generate_square_subsequent_mask(y.size(1), device=y.device).isinf()
        h = self.body(self.embed(self.source, x), self.embed(self.target, y), tgt_mask=causal,
                      src_key_padding_mask=x == -1, tgt_key_padding_mask=y == -1)
        return self.out(h)


def padded(rows):
    out = torch.full((len(rows), max(map(len, rows))), PAD)
    for i, row in enumerate(rows):
        out[i, :len(row)] = torch.tensor(row)
    return out.to(a.device)


net = Net().to(a.device).train()
opt = torch.optim.Adam(net.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
scaler = torch.amp.GradScaler(a.device.split(":")[0], enabled=half and cuda)
backends = [SDPBackend.MATH]
if a.mode == "flash":
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def update(batch):
    x, y = padded([b[0] for b in batch]), padded([b[1] for b in batch])
    labels = y[:, 1:].clone()
    for i, b in enumerate(batch):
        labels[i, len(b[1]) - 1:] = -100
    with sdpa_kernel(backends), torch.autocast(a.device.split(":")[0], torch.float16, enabled=half and cuda):
        logits = net(x, y[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), label_smoothing=0.1)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    return sum(len(b[1]) - 1 for b in batch)


speed = []
for i in range(a.updates):
    start = time.monotonic()
    tokens = update(batches[i % len(batches)])
    if cuda:
        torch.cuda.synchronize()
    if i >= a.warm:
        speed.append(tokens / (time.monotonic() - start))
print(json.dumps(dict(mode=a.mode, torch=torch.__version__, target_tokens_per_s=statistics.median(speed),
                      peak_bytes=torch.cuda.max_memory_allocated() if cuda else 0)))
