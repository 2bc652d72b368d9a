#!/usr/bin/env python3
"""Counts the parameters of the models of tests/runs/case2-*.yaml as PyTorch has their modules.

usage: count_case2.py > case2_parameters.json        (needs torch)
"""
import json

import torch
from torch import nn

FEATURES = {"image": 768, "text": 1024}


def parts(d):
    """What brings both features into one sequence."""
    yield from (nn.Linear(width, d) for width in FEATURES.values())
    yield nn.Embedding(len(FEATURES), d)


def caption(d=1024, ff=4096, heads=16, layers=12, words=10000):
    generator = nn.Linear(d, words)
    embedding = nn.Embedding(words, d)
    embedding.weight = generator.weight
    return [*parts(d), embedding, generator, nn.Transformer(d, heads, layers, layers, ff)]


def classify(d=1792, ff=7168, heads=14, layers=9, classes=7000):
    layer = nn.TransformerEncoderLayer(d, heads, ff)
    encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(d), enable_nested_tensor=False)
    return [*parts(d), encoder, nn.Linear(d, classes)]


def count(modules):
    return sum(p.numel() for p in nn.ModuleList(modules).parameters())


with torch.device("meta"):
    print(json.dumps({"case2-caption": count(caption()), "case2-classify": count(classify())}))
