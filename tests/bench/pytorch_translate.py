#!/usr/bin/env python3
"""Beam search as one writes it with torch.nn.Transformer: no cache, the decoder runs over the whole
prefix at each step. Reads the output folder of `bantam train` (model.safetensors or
best.safetensors, run.yaml, the tokenisers) and translates a text with the weights in it.

Usage: pytorch_translate.py --model FOLDER --input FILE --output FILE [--beam 5] [--batch 64]
       [--threads 1] [--length-penalty 1]
Prints one JSON line: lines, lines_per_s (loading not counted), peak_rss_bytes."""
import argparse
import json
import math
import os
import re
import resource
import struct
import sys
import time

import numpy as np
import sentencepiece
import torch


def read_safetensors(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = np.frombuffer(f.read(), dtype=np.uint8)
    header.pop("__metadata__", None)
    return {
        name: torch.from_numpy(data[t["data_offsets"][0]:t["data_offsets"][1]].view(np.float32)
                               .reshape(t["shape"]).copy())
        for name, t in header.items() if t["dtype"] == "F32"
    }


def setting(run, name, default):
    """A key of the effective run file: `name: value`, in a line of its own or in braces."""
    found = re.search(r"\b%s: *\"?([^\s,}\"]+)" % name, run)
    return found.group(1) if found else default


class Translator(torch.nn.Module):
    def __init__(self, folder):
        super().__init__()
        best = os.path.join(folder, "best.safetensors")
        w = read_safetensors(best if os.path.exists(best) else
                             os.path.join(folder, "model.safetensors"))
        run = open(os.path.join(folder, "run.yaml"), encoding="utf-8").read()
        d = w["src_embed.weight"].shape[1]
        layers = [len({k.split(".")[3] for k in w if k.startswith("transformer.%s.layers." % s)})
                  for s in ("encoder", "decoder")]
        self.d = d
        self.transformer = torch.nn.Transformer(
            d, int(setting(run, "heads", 8)), *layers,
            w["transformer.encoder.layers.0.linear1.weight"].shape[0],
            dropout=0.0, activation=setting(run, "activation", "relu"), batch_first=True,
            norm_first=setting(run, "norm", "post") == "pre")
        if setting(run, "final_norm", "true") == "false":
            self.transformer.encoder.norm = self.transformer.decoder.norm = None
        source = w["src_embed.weight"]
        target = w.get("tgt_embed.weight", source)
        output = w.get("generator.weight", target)
        self.src_embed = torch.nn.Embedding.from_pretrained(source)
        self.tgt_embed = torch.nn.Embedding.from_pretrained(target)
        self.generator = torch.nn.Linear(d, output.shape[0])
        self.generator.weight = torch.nn.Parameter(output)
        self.generator.bias = torch.nn.Parameter(w["generator.bias"])
        self.transformer.load_state_dict(
            {k[len("transformer."):]: v for k, v in w.items() if k.startswith("transformer.")})
        self.longest = int(setting(run, "max_length", 256))
        position = torch.arange(self.longest).unsqueeze(1)
        angle = position * torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        table = torch.zeros(self.longest, d)
        table[:, 0::2] = torch.sin(angle)
        table[:, 1::2] = torch.cos(angle)[:, :d // 2]
        self.register_buffer("positions", table)

    def embed(self, table, ids):
        return table(ids) * math.sqrt(self.d) + self.positions[:ids.shape[1]]

    def encode(self, source, padding):
        return self.transformer.encoder(self.embed(self.src_embed, source),
                                        src_key_padding_mask=padding)

    def next_symbols(self, target, memory, padding):
        n = target.shape[1]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(n)
        h = self.transformer.decoder(self.embed(self.tgt_embed, target), memory, tgt_mask=mask,
                                     memory_key_padding_mask=padding)
        return torch.log_softmax(self.generator(h[:, -1]), -1)


def search(model, sources, specials, beam, penalty):
    """The best ids of each source; scores are log-probabilities / length ** penalty."""
    start, end, forbid = specials
    batch, width = len(sources), max(len(s) for s in sources)
    source = torch.zeros(batch, width, dtype=torch.long)
    padding = torch.ones(batch, width, dtype=torch.bool)
    for i, s in enumerate(sources):
        source[i, :len(s)] = torch.tensor(s)
        padding[i, :len(s)] = False
    memory = model.encode(source, padding).repeat_interleave(beam, 0)
    padding = padding.repeat_interleave(beam, 0)
    limit = [min(2 * len(s) + 10, model.longest) for s in sources]
    target = torch.full((batch * beam, 1), start)
    sums = torch.full((batch, beam), -math.inf)
    sums[:, 0] = 0
    best, done = [(-math.inf, [])] * batch, [False] * batch
    for step in range(max(limit)):
        scores = model.next_symbols(target, memory, padding).view(batch, beam, -1)
        scores[:, :, forbid] = -math.inf
        vocabulary = scores.shape[2]
        value, place = (sums.unsqueeze(2) + scores).view(batch, -1).topk(2 * beam)
        rows, symbols = (place // vocabulary).tolist(), (place % vocabulary).tolist()
        values = value.tolist()
        parent, last = torch.zeros(batch, beam, dtype=torch.long), torch.zeros(batch, beam,
                                                                             dtype=torch.long)
        for i in range(batch):
            if done[i]:
                continue
            live = 0
            for k in range(2 * beam):
                if symbols[i][k] == end:
                    score = values[i][k] / (step + 1) ** penalty
                    if k < beam and score > best[i][0]:
                        best[i] = (score, target[i * beam + rows[i][k], 1:].tolist())
                elif live < beam:
                    parent[i, live], last[i, live] = rows[i][k], symbols[i][k]
                    sums[i, live] = values[i][k]
                    live += 1
            if step + 1 == limit[i] and best[i][0] == -math.inf:
                best[i] = (-1e9, target[i * beam + parent[i, 0], 1:].tolist() + [int(last[i, 0])])
            done[i] = step + 1 == limit[i] or sums[i, 0] / limit[i] ** penalty <= best[i][0]
        if all(done):
            break
        index = (parent + beam * torch.arange(batch).unsqueeze(1)).view(-1)
        target = torch.cat([target[index], last.view(-1, 1)], 1)
    return [ids for _, ids in best]


def main():
    p = argparse.ArgumentParser()
    for name in ("model", "input", "output"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--beam", type=int, default=5)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--length-penalty", type=float, default=1.0)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    model = Translator(a.model).eval()
    spm = [sentencepiece.SentencePieceProcessor(model_file=os.path.join(a.model, f))
           for f in ("source.tokenizer", "target.tokenizer")
           if os.path.exists(os.path.join(a.model, f))]
    source, target = spm[0], spm[-1]
    start = target.bos_id() if target.bos_id() >= 0 else target.pad_id()
    specials = (start, target.eos_id(),
                [i for i in {start, target.unk_id(), target.pad_id()}
                 if i >= 0 and i != target.eos_id()])
    lines = open(a.input, encoding="utf-8").read().split("\n")[:-1]
    begin = time.time()
    ids = [source.encode(line)[:model.longest - 1] + [source.eos_id()] for line in lines]
    order = sorted((i for i in range(len(lines)) if len(ids[i]) > 1), key=lambda i: len(ids[i]))
    out = [""] * len(lines)
    with torch.inference_mode():
        for at in range(0, len(order), a.batch):
            chunk = order[at:at + a.batch]
            for i, best in zip(chunk, search(model, [ids[i] for i in chunk], specials, a.beam,
                                             a.length_penalty)):
                out[i] = target.decode(best)
    seconds = time.time() - begin
    with open(a.output, "w", encoding="utf-8") as f:
        f.writelines(line + "\n" for line in out)
    print(json.dumps({
        "lines": len(lines),
        "lines_per_s": len(lines) / seconds,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    }))


if __name__ == "__main__":
    sys.exit(main())
