#!/usr/bin/env python3
"""Captions from two dense features with torch.nn modules, trained on drawn numbers: see compare_features.sh.

usage: pytorch_features.py [--d 256 --ff 1024 --heads 4 --layers 4 --batch 8 --words 10000 --target 31]
                           [--updates 4]           (needs torch)
Prints one JSON line: target tokens a second (median of the timed updates), peak resident bytes, those after
importing torch, and the number of parameters.
"""
import argparse
import json
import math
import resource
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

FEATURES = {"image": (197, 768), "text": (512, 1024)}


def resident(line):
    with open("/proc/self/status") as f:
        return next(int(x.split()[1]) * 1024 for x in f if x.startswith(line))


def sinusoids(n, d):
    angle = torch.arange(n)[:, None] * torch.exp(torch.arange(0, d, 2) * (-math.log(1e4) / d))
    return torch.stack([torch.sin(angle), torch.cos(angle)], 2).flatten(1)


class Captions(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.d = a.d
        self.project = nn.ModuleList(nn.Linear(width, a.d) for _, width in FEATURES.values())
        self.types = nn.Embedding(len(FEATURES), a.d)
        self.words, self.out = nn.Embedding(a.words, a.d), nn.Linear(a.d, a.words)
        self.words.weight = self.out.weight
        self.transformer = nn.Transformer(a.d, a.heads, a.layers, a.layers, a.ff, batch_first=True)
        self.drop = nn.Dropout(0.1)

    def forward(self, features, y):
        parts = [p(x) + self.types.weight[i] + sinusoids(x.shape[1], self.d)
                 for i, (p, x) in enumerate(zip(self.project, features))]
        n = y.shape[1]
        words = self.words(y) * math.sqrt(self.d) + sinusoids(n, self.d)
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        return self.out(self.transformer(self.drop(torch.cat(parts, 1)), self.drop(words), tgt_mask=mask))


def main():
    p = argparse.ArgumentParser()
    for name, value in dict(d=256, ff=1024, heads=4, layers=4, batch=8, words=10000, target=31,
                            updates=4, warm=1).items():
        p.add_argument("--" + name, type=int, default=value)
    a = p.parse_args()
    imported = resident("VmRSS")
    torch.manual_seed(1)
    net = Captions(a)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    rates = []
    for update in range(a.warm + a.updates):
        features = [torch.randn(a.batch, rows, width) for rows, width in FEATURES.values()]
        y = torch.randint(4, a.words, (a.batch, a.target + 2))
        start = time.perf_counter()
        logits = net(features, y[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), y[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if update >= a.warm:
            rates.append(a.batch * (a.target + 1) / (time.perf_counter() - start))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(dict(target_tokens_per_s=round(statistics.median(rates), 1), peak_rss_bytes=peak,
                          imported_rss_bytes=imported, parameters=sum(p.numel() for p in net.parameters()))))


main()
