#!/usr/bin/env python3
"""Makes the golden values of models with dense features with PyTorch, in double.

usage: make_fused.py OUT_DIR        (needs torch and safetensors)

As make_golden.py, with features beside the text or in its place, joined to it in every way, and heads
without a decoder. Examples run one by one, so that nothing is padded. Feature NAME is the tensor
feature.NAME, the rows of all examples one after the other.
"""
import json
import math
import random
import sys

import torch
import torch.nn.functional as F
from torch import nn
from safetensors.torch import save_file

START, END, UPDATES = 1, 2, 3


def feature(name, width, rows, norm=False):
    return dict(name=name, width=width, rows=rows, norm=norm)


# text: source tokens of each example without the end symbol; target: the same of the decoder.
MODELS = [
    dict(name="fused_concat_caption", fusion="concat", text=None, target=[3, 1, 4],
         features=[feature("image", 7, [4, 1, 3], norm=True)]),
    dict(name="fused_concat_classes", fusion="concat", head="classification", pooling="first",
         text=[2, 5, 1], outputs=3, learned_rows=2, norm_first=True, activation="gelu",
         positions="learned",
         features=[feature("image", 5, [3, 2, 4], norm=True), feature("sound", 3, [1, 1, 1])]),
    dict(name="fused_add_decoder", fusion="add", text=[2, 4, 1], target=[2, 3, 5], tie="all",
         features=[feature("image", 6, [1, 1, 1], norm=True), feature("tags", 4, [3, 5, 2])]),
    dict(name="fused_gate_decoder", fusion="gate", text=[3, 1, 2], target=[4, 2, 1], tie="target",
         norm_first=True, positions="learned",
         features=[feature("image", 6, [1, 2, 1]), feature("tags", 4, [4, 1, 3], norm=True)]),
    dict(name="fused_cross_decoder", fusion="cross", text=[3, 1, 4], target=[2, 4, 1],
         activation="gelu",
         features=[feature("image", 6, [4, 2, 3]), feature("sound", 3, [2, 1, 5], norm=True)]),
    dict(name="fused_cross_classes", fusion="cross", head="classification", pooling="attention",
         text=None, outputs=4, norm_first=True,
         features=[feature("words", 5, [3, 6, 1]), feature("image", 6, [2, 1, 4])]),
    dict(name="fused_gate_labels", fusion="gate", head="multilabel", pooling="mean", text=None,
         outputs=3, features=[feature("words", 5, [3, 4, 2]), feature("image", 6, [1, 4, 1])]),
    dict(name="fused_add_numbers", fusion="add", head="regression", pooling="mean",
         text=[4, 1, 3], outputs=2, features=[feature("image", 6, [5, 1, 1])]),
]
DEFAULTS = dict(head="decoder", pooling="mean", outputs=0, learned_rows=0, norm_first=False,
                activation="relu", positions="sinusoid", tie="none", target=None, d_model=8, heads=2,
                ff=12, encoder_layers=2, decoder_layers=1, vocab=17, position_rows=9,
                label_smoothing=0.1)


class Feature(nn.Module):
    def __init__(self, c, f, mixed):
        super().__init__()
        d = c["d_model"]
        self.projection = nn.Linear(f["width"], d)
        self.placed = max(f["rows"]) > 1 and not mixed
        if f["norm"]:
            self.norm = nn.LayerNorm(d)
        if self.placed and c["positions"] == "learned":
            self.positions = nn.Embedding(max(f["rows"]), d)
        if mixed and c["fusion"] == "gate":
            self.gate = nn.Linear(2 * d, d)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        d, text, decoder = c["d_model"], c["text"] is not None, c["head"] == "decoder"
        self.cross = c["fusion"] == "cross"
        if text:
            self.src_embed = nn.Embedding(c["vocab"], d)
        if decoder:
            self.tgt_embed = nn.Embedding(c["vocab"], d)
            self.generator = nn.Linear(d, c["vocab"])
        else:
            self.head = nn.Linear(d, c["outputs"])
        if c["positions"] == "learned":
            if text:
                self.src_positions = nn.Embedding(c["position_rows"], d)
            if decoder:
                self.tgt_positions = nn.Embedding(c["position_rows"], d)
        if c["learned_rows"]:
            self.learned_rows = nn.Embedding(c["learned_rows"], d)
        if c["pooling"] == "attention":
            self.pooling = nn.Module()
            self.pooling.query = nn.Parameter(torch.randn(1, d) / math.sqrt(d))
        joined = c["fusion"] == "concat"
        self.features = nn.ModuleDict()
        for i, f in enumerate(c["features"]):
            mixed = not joined and not self.cross and (text or i > 0)
            self.features[f["name"]] = Feature(c, f, mixed)
        types = len(c["features"]) + text if joined else len(c["features"]) - (not text)
        if (joined or self.cross) and types > 1:
            self.segments = nn.Embedding(types, d)
        settings = dict(d_model=d, nhead=c["heads"], dim_feedforward=c["ff"], dropout=0.0,
                        activation=c["activation"], batch_first=True, norm_first=c["norm_first"])
        self.transformer = nn.Module()
        if self.cross:
            self.transformer.encoder = nn.TransformerDecoder(
                nn.TransformerDecoderLayer(**settings), c["encoder_layers"], nn.LayerNorm(d))
        else:
            self.transformer.encoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(**settings), c["encoder_layers"], nn.LayerNorm(d),
                enable_nested_tensor=False)
        if decoder:
            self.transformer.decoder = nn.TransformerDecoder(
                nn.TransformerDecoderLayer(**settings), c["decoder_layers"], nn.LayerNorm(d))
        if c["tie"] == "all":
            self.tgt_embed.weight = self.src_embed.weight
        if c["tie"] != "none":
            self.generator.weight = self.tgt_embed.weight
        for p in self.parameters():  # biases and gains away from 0 and 1, so that a missing one shows
            if p.dim() == 1:
                nn.init.normal_(p, 0.5, 0.3)
            else:
                nn.init.normal_(p, 0, 1 / math.sqrt(p.shape[-1]))

    def placed(self, x, learned):
        if self.c["positions"] == "learned":
            return x + learned.weight[:len(x)]
        d, n = self.c["d_model"], len(x)
        angle = torch.arange(n, dtype=torch.double)[:, None] * torch.exp(
            torch.arange(0, d, 2, dtype=torch.double) * (-math.log(1e4) / d))
        pe = torch.zeros(n, d, dtype=torch.double)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(angle), torch.cos(angle)
        return x + pe

    def words(self, ids, side):
        table = self.tgt_embed if side else self.src_embed
        name = "tgt_positions" if side else "src_positions"
        return self.placed(table(ids) * math.sqrt(self.c["d_model"]), getattr(self, name, None))

    def rows_of(self, name, values):
        f = self.features[name]
        x = f.projection(values)
        if hasattr(f, "norm"):
            x = f.norm(x)
        return self.placed(x, getattr(f, "positions", None)) if f.placed else x

    def typed(self, parts):
        if not hasattr(self, "segments"):
            return torch.cat(parts)
        return torch.cat([x + self.segments.weight[i] for i, x in enumerate(parts)])

    def encode(self, ids, values):
        parts = [] if ids is None else [self.words(ids, 0)]
        parts += [self.rows_of(f["name"], v) for f, v in zip(self.c["features"], values)]
        names = [None] * (ids is not None) + [f["name"] for f in self.c["features"]]
        fusion, encoder = self.c["fusion"], self.transformer.encoder
        if fusion == "concat":
            x = self.typed(parts)
            if hasattr(self, "learned_rows"):
                x = torch.cat([self.learned_rows.weight, x])
            return encoder(x[None])[0]
        x = parts[0]
        if fusion == "cross":
            return encoder(x[None], self.typed(parts[1:])[None])[0]
        for name, part in zip(names[1:], parts[1:]):
            part = part.expand(len(x), -1)
            if fusion == "add":
                x = x + part
            else:
                s = torch.sigmoid(self.features[name].gate(torch.cat([x, part], 1)))
                x = s * x + (1 - s) * part
        return encoder(x[None])[0]

    def pooled(self, x):
        if self.c["pooling"] == "first":
            return x[:1]
        if self.c["pooling"] == "mean":
            return x.mean(0, keepdim=True)
        h, d = self.c["heads"], self.c["d_model"]
        q = self.pooling.query.view(1, h, d // h).transpose(0, 1)
        k = x.view(len(x), h, d // h).transpose(0, 1)
        return F.scaled_dot_product_attention(q, k, k).transpose(0, 1).reshape(1, d)

    def forward(self, ids, values, target):
        memory = self.encode(ids, values)
        if self.c["head"] != "decoder":
            return self.head(self.pooled(memory))
        read = torch.tensor([START] + target[:-1])
        causal = torch.triu(torch.ones(len(read), len(read), dtype=torch.bool), 1)
        hidden = self.transformer.decoder(self.words(read, 1)[None], memory[None], tgt_mask=causal)
        return self.generator(hidden[0])


def loss_of(c, outputs, targets):
    """Loss, and the one without smoothing."""
    if c["head"] == "multilabel":
        loss = F.binary_cross_entropy_with_logits(outputs, torch.tensor(targets).double())
        return loss, loss
    if c["head"] == "regression":
        loss = F.mse_loss(outputs, torch.tensor(targets).double())
        return loss, loss
    labels = torch.tensor([x for t in targets for x in t])
    return (F.cross_entropy(outputs, labels, label_smoothing=c["label_smoothing"]),
            F.cross_entropy(outputs, labels))


def make_targets(c, rng, n):
    if c["head"] == "decoder":
        return [[rng.randrange(4, c["vocab"]) for _ in range(t)] + [END] for t in c["target"]]
    if c["head"] == "classification":
        return [[rng.randrange(c["outputs"])] for _ in range(n)]
    if c["head"] == "multilabel":
        return [[float(rng.randrange(2)) for _ in range(c["outputs"])] for _ in range(n)]
    return [[rng.randrange(-64, 64) / 32 for _ in range(c["outputs"])] for _ in range(n)]


def make(c, folder, seed):
    c = {**DEFAULTS, **c}
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = Model(c).float().double()
    n = len(c["features"][0]["rows"])
    source = None
    if c["text"] is not None:
        source = [[rng.randrange(4, c["vocab"]) for _ in range(t)] + [END] for t in c["text"]]
    targets = make_targets(c, rng, n)
    values = [[torch.randn(r, f["width"]).double() for r in f["rows"]] for f in c["features"]]
    named = dict(model.named_parameters())  # a tied table appears once, under its first name
    tensors = {"param." + k: p.detach().float().clone() for k, p in named.items()}
    tensors.update({"feature." + f["name"]: torch.cat(v).float()
                    for f, v in zip(c["features"], values)})
    settings = dict(lr=1e-3, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    losses, norms, nll = [], [], None
    for update in range(UPDATES):
        outputs = torch.cat([model(torch.tensor(source[i]) if source else None,
                                   [v[i] for v in values], targets[i]) for i in range(n)])
        loss, plain = loss_of(c, outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        if update == 0:
            nll = plain.item()
            tensors["outputs"] = outputs.detach().clone()
            tensors.update({"grad." + k: p.grad.clone() for k, p in named.items()})
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    tensors.update({"after3." + k: p.detach().clone() for k, p in named.items()})
    save_file({k: v.contiguous() for k, v in tensors.items()}, f"{folder}/{c['name']}.safetensors")
    keys = "d_model heads ff encoder_layers norm_first activation tie fusion head pooling outputs " \
        "learned_rows positions position_rows features".split()
    info = {k: c[k] for k in keys}
    decoder = c["head"] == "decoder"
    info.update(vocab=[c["vocab"] if source else 0, c["vocab"] if decoder else 0],
                decoder_layers=c["decoder_layers"] if decoder else 0, layer_norm_eps=1e-5,
                start=START, end=END, source=source if source else [[]] * n, target=targets,
                label_smoothing=c["label_smoothing"], loss=losses, nll_first=nll,
                grad_norm_before_clip=norms,
                optimizer=dict(name="AdamW", clip=1.0, **settings))
    with open(f"{folder}/{c['name']}.json", "w", encoding="utf-8") as f:
        json.dump(info, f)
        f.write("\n")


for number, config in enumerate(MODELS):
    make(config, sys.argv[1], 141 + number)
