#!/usr/bin/env python3
"""Makes parallel German-English text out of unpacked Debian packages.

usage: demo_text.py PACKAGES OUT [--sources help,ui,examples,phrases] [--samples N]

PACKAGES holds one folder for each package, as dpkg-deb -x leaves it: libreoffice-help-de,
libreoffice-help-en-us, libreoffice-l10n-de and trans-de-en. Writes to OUT:
  train.{de,en}                   the parts named by --sources, one after the other
  valid.{de,en} test.{de,en}      help pages that are in no part: 500 and 1,000 sentences
  part.{help,ui,...}.{de,en}      every part by itself
No sentence of valid or test, neither side, is in any part. The same packages give the same bytes.
"""
import argparse
import concurrent.futures
import gettext
import hashlib
import html.parser
import os
import re
import sys

VALID, TEST = 500, 1000
MAX_WORDS = 100

# ---- help pages ----------------------------------------------------------------------------------
BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
CODE_CLASSES = {"code", "codeintable", "smathcode", "image", "imageintable", "youtube_consent"}
CODE_SPANS = {"literal", "input", "code"}


class Page(html.parser.HTMLParser):
    """Collects (key, text) of every block of one help page.

    The key is the block's id. Blocks without one are known by the block with an id before them,
    their class and their place since. Where a text depends on the system (<span
    class="switchinline">), the default variant is taken.
    """

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.blocks = []
        self.key = None  # of the open block
        self.text = []  # pieces of the open block
        self.code_letters = 0
        self.stack = []  # of open spans: "code", "", a list of variants, or a variant's (name, start)
        self.anchor, self.since = "", {}
        self.skip = 0  # depth inside <pre>, <script>, <style>

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        cls = a.get("class") or ""
        if tag in ("pre", "script", "style"):
            self.skip += 1
        elif tag in BLOCKS:
            self.close_block()
            self.open_block(a.get("id") or "", cls)
        elif self.key is None:
            return
        elif tag in ("br", "img"):
            self.text.append(" ")
        elif tag in ("span", "code"):
            self.open_span(a, cls, tag)

    def open_block(self, ident, cls):
        if cls.split(" ")[0] in CODE_CLASSES:
            return
        if ident:
            self.anchor, self.since = ident, {}
            self.key = ident
        else:
            n = self.since[cls] = self.since.get(cls, 0) + 1
            self.key = "%s/%s/%d" % (self.anchor, cls, n)
        self.text, self.stack, self.code_letters = [], [], 0

    def open_span(self, a, cls, tag):
        if cls == "switchinline":
            self.stack.append([])
        elif self.stack and isinstance(self.stack[-1], list) and "hidden" in a:
            name = (a.get("id") or "").startswith("default") and "default" or cls
            self.stack.append((name, len(self.text)))
        else:
            self.stack.append("code" if tag == "code" or cls in CODE_SPANS else "")

    def handle_endtag(self, tag):
        if tag in ("pre", "script", "style"):
            self.skip = max(0, self.skip - 1)
        elif tag in BLOCKS:
            self.close_block()
        elif tag in ("span", "code") and self.stack:
            top = self.stack.pop()
            if isinstance(top, tuple):
                name, start = top
                variant = "".join(self.text[start:])
                del self.text[start:]
                self.stack[-1].append((name, variant))
            elif isinstance(top, list) and top:
                rest = [v for n, v in top if n != "MAC"] or [v for _, v in top]
                self.text.append(dict(top).get("default", rest[0]))

    def handle_data(self, data):
        if self.key is None or self.skip:
            return
        self.text.append(data)
        if "code" in self.stack:
            self.code_letters += len(data.strip())

    def close_block(self):
        if self.key is not None:
            text = " ".join("".join(self.text).split())
            if text and 2 * self.code_letters < len(text):
                self.blocks.append((self.key, text))
        self.key = None


def read_page(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    begin, end = text.find('<div id="DisplayArea"'), text.find('<div id="SearchFrame"')
    page = Page()
    page.feed(text[begin if begin >= 0 else 0 : end if end >= 0 else len(text)])
    page.close()
    page.close_block()
    blocks = {}
    for key, block in page.blocks:
        blocks.setdefault(key, block)
    return blocks


def read_help(root):
    """[(page, [(de, en), ...]), ...] in the order of the page names."""
    de_root = os.path.join(root, "libreoffice-help-de/usr/share/libreoffice/help/de/text")
    en_root = os.path.join(root, "libreoffice-help-en-us/usr/share/libreoffice/help/en-US/text")
    names = []
    for folder, _, files in os.walk(de_root):
        names += [os.path.relpath(os.path.join(folder, f), de_root) for f in files]
    names = sorted(n for n in names if os.path.exists(os.path.join(en_root, n)))
    tasks = [(os.path.join(de_root, n), os.path.join(en_root, n)) for n in names]
    with concurrent.futures.ProcessPoolExecutor() as pool:
        return list(zip(names, pool.map(align_pages, tasks, chunksize=32)))


def align_pages(paths):
    """Sentence pairs of one page: blocks with the same key belong together."""
    de, en = map(read_page, paths)
    pairs = []
    for key in de:
        if key in en:
            pairs += split_pair(de[key], en[key])
    return pairs


# A full stop after one of these ends no sentence.
SHORT = re.compile(
    r"(?:\b(?:z\. ?B|d\. ?h|u\. ?a|o\. ?ä|bzw|ca|evtl|ggf|inkl|max|min|Nr|Abb|vgl|bspw|usw|etc"
    r"|e\.g|i\.e|vs|No|Fig|approx|incl|z|d|u|o|a|e|i|\d{1,3}|[A-Z]))\.$"
)
STOP = re.compile(r"[.!?:][\"“”)»]?\s+(?=[\"„“(«]?[A-ZÄÖÜ0-9])")


def sentences(text):
    out, begin = [], 0
    for m in STOP.finditer(text):
        piece = text[begin : m.end()].strip()
        if SHORT.search(piece) or piece.count("(") != piece.count(")"):
            continue
        out.append(piece)
        begin = m.end()
    out.append(text[begin:].strip())
    return [s for s in out if s]


def split_pair(de, en):
    """Sentence by sentence where both sides have as many, of like lengths; else the whole block."""
    a, b = sentences(de), sentences(en)
    if len(a) != len(b) or len(a) == 1:
        return [(de, en)]
    scale = len(de) / len(en)
    for x, y in zip(a, b):
        if not 0.45 < (len(x) + 8) / (len(y) * scale + 8) < 2.2 or x[-1] != y[-1]:
            return [(de, en)]
    return list(zip(a, b))


# ---- message catalogues --------------------------------------------------------------------------
def read_catalogues(root):
    folder = os.path.join(root, "libreoffice-l10n-de/usr/lib/libreoffice/program/resource/de/LC_MESSAGES")
    pairs = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as f:
            catalogue = gettext.GNUTranslations(f)._catalog
        for key, de in catalogue.items():
            if isinstance(key, tuple):  # (message, plural form)
                if key[1] != 0:
                    continue
                key = key[0]
            en = key.split("\x04", 1)[-1]
            de, en = unmark(de), unmark(en)
            if de and en:
                pairs.append((de, en))
    return pairs


def unmark(text):
    """Without the marks of keys (~ _) and of markup; "" where places for values remain."""
    text = text.replace("%PRODUCTNAME", "LibreOffice")
    text = re.sub(r"<[^<>]*>", " ", text)
    text = re.sub(r"\(~[A-Z]\)", "", text).replace("~", "")
    text = re.sub(r"(?<![A-Za-z0-9])_(?=\w)|(?<=[a-zäöüß ])_(?=[a-zäöüß])", "", text)
    text = " ".join(text.split())
    return "" if re.search(r"[%$#{}\\|_^]|\w/\w+/", text) else text


# ---- dictionary ----------------------------------------------------------------------------------
def read_dictionary(root):
    """(example sentences, phrases) of the ding file: `de | de :: en | en`, variants after `;`."""
    path = os.path.join(root, "trans-de-en/usr/share/trans/de-en")
    examples, phrases = [], []
    with open(path, encoding="utf-8") as f:
        for line in f:
            sides = line.rstrip("\n").split(" :: ")
            if line.startswith("#") or len(sides) != 2:
                continue
            de, en = (side.split(" | ") for side in sides)
            if len(de) != len(en):
                continue
            for x, y in zip(de, en):
                x, y = variants(x), variants(y)
                if not x or not y:
                    continue
                if x[0][-1] in ".!?":
                    for i in range(min(2, max(len(x), len(y)))):
                        pair = x[min(i, len(x) - 1)], y[min(i, len(y) - 1)]
                        if pair[1][-1] == pair[0][-1] and all(" " in t for t in pair):
                            examples.append(pair)
                elif " " in x[0] and " " in y[0]:
                    phrases.append((x[0], re.sub("^to ", "", y[0])))
    return examples, phrases


VAGUE = re.compile(r"\b(etw|jdn?|jdm|jds|sb|sth|so|swh|sb’s|o’s|oneself)\b\.?|\b(etw|jdm?|sth|sb)\.")


def variants(text):
    text = re.sub(r"\{[^{}]*\}|\[[^][]*\]|<[^<>]*>", " ", text)
    text = re.sub(r"(?<=[ ;])/[^/;]*/(?=[ ;]|$)", " ", text)
    while "(" in text:
        less = re.sub(r"\([^()]*\)", " ", text)
        if less == text:
            return []
        text = less
    out = []
    for v in text.split(";"):
        # Of "one/another word" the first.
        v = re.sub(r"([^\s/]+)(?:/[^\s/]+)+", keep_first, " ".join(v.split()))
        v = re.sub(r" ([.,!?])", r"\1", v)
        if v and "/" not in v and not VAGUE.search(v):
            out.append(v)
    return out


def keep_first(match):
    """The first of the words; the stop after the last stays."""
    word, whole = match.group(1), match.group(0)
    return word + whole[-1] if whole[-1] in ".,!?:" and word[-1] not in ".,!?:" else word


# ---- cleaning ------------------------------------------------------------------------------------
SPACES = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"), None)
PLAIN = str.maketrans({"“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "‘": "'", "’": "'",
                       "‚": "'", "–": "-", "—": "-", "−": "-", "…": "...", "▸": "-"})
ENGLISH = re.compile(r"\b(the|and|of|is|with|are|this|that|for|you|from|to)\b", re.I)
GERMAN = re.compile(r"\b(der|die|das|und|ist|mit|sind|für|Sie|von|zu|ein|eine|nicht|den|dem|im|auf)\b", re.I)


def tidy(text, plain):
    text = " ".join(text.translate(SPACES).replace("▸", "–").split())
    text = re.sub(r" +([,;!?)]|\.(?!\w))", r"\1", text)
    text = re.sub(r"([(]) +", r"\1", text)
    # One spelling of quotes and dashes where text is to be produced, all of them where it is read.
    return text.translate(PLAIN) if plain else text


def usable(de, en):
    if de.casefold() == en.casefold() or max(len(de.split()), len(en.split())) > MAX_WORDS:
        return False
    for text in (de, en):
        letters = sum(c.isalpha() for c in text)
        if letters < 2 or letters < 0.6 * len(text.replace(" ", "")):
            return False
        if re.search(r"</?[A-Za-z]|&[a-z]+;|\{\{|https?:|[\x00-\x1f\ufffd]|[\u0370-\uffff]", text.translate(PLAIN)):
            return False
    if not 0.4 < (len(de) + 6) / (len(en) + 6) < 2.6:
        return False
    # Help that was left in English.
    return not (len(ENGLISH.findall(de)) >= 2 and not GERMAN.search(de))


def clean(pairs, seen):
    out = []
    for de, en in pairs:
        de, en = tidy(de, False), tidy(en, True)
        if (de, en) not in seen and usable(de, en):
            seen.add((de, en))
            out.append((de, en))
    return out


def fold(text):
    """What two texts share that differ in case, punctuation or spacing only."""
    return re.sub(r"\W+", " ", text).strip().casefold()


def proper(pair):
    """A sentence that tells something about a translation: 4 to 40 words, with a full stop."""
    return all(4 <= len(text.split()) <= 40 and text[-1] in ".!?:" for text in pair)


def hold_out(pages):
    """(training pairs, valid, test): pages in hash order until both are full."""
    order = sorted(pages, key=lambda p: hashlib.sha256(p[0].encode()).digest())
    # Some sentences stand on other pages too: nearly twice as many are set aside as are used.
    take, count = 0, 0
    while count < 1.9 * (VALID + TEST) and take < len(order):
        count += sum(map(proper, order[take][1]))
        take += 1
    held = {name for name, _ in order[:take]}
    train, seen = [], set()
    for name, pairs in pages:
        if name not in held:
            train += clean(pairs, seen)
    known = {fold(t) for pair in train for t in pair}
    sets, used = ([], []), set()
    for _, pairs in order[:take]:
        which = 0 if len(sets[0]) < VALID else 1
        for pair in clean(pairs, seen):
            sides = {fold(t) for t in pair}
            if proper(pair) and not sides & known and not sides & used:
                used |= sides
                sets[which].append(pair)
    return train, sets[0][:VALID], sets[1][:TEST]


def without(pairs, held):
    held = {fold(t) for pair in held for t in pair}
    return [even_ends(*p) for p in pairs if fold(p[0]) not in held and fold(p[1]) not in held]


def even_ends(de, en):
    """A full stop or colon at the end of one side only is put on the other one too."""
    if de[-1] in ".:" and en[-1].isalnum():
        return de, en + de[-1]
    if en[-1] in ".:" and de[-1].isalnum():
        return de + en[-1], en
    return de, en


# ---- output --------------------------------------------------------------------------------------
def write(out, name, pairs):
    for side, suffix in ((0, "de"), (1, "en")):
        path = os.path.join(out, "%s.%s" % (name, suffix))
        with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as f:
            f.writelines(pair[side] + "\n" for pair in pairs)
        os.replace(path + ".tmp", path)


def report(name, pairs, samples):
    words = [sum(len(p[side].split()) for p in pairs) for side in (0, 1)]
    size = sum(len(t.encode()) + 1 for p in pairs for t in p)
    print("  %-8s %7d pairs %9d German %9d English words %6.1f MB"
          % (name, len(pairs), words[0], words[1], size / 1e6))
    for i in range(samples):
        de, en = pairs[(2 * i + 1) * len(pairs) // (2 * samples)]
        print("      %s\n      = %s" % (de, en))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("packages")
    parser.add_argument("out")
    parser.add_argument("--sources", default="help,ui,examples")
    parser.add_argument("--samples", type=int, default=0)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)

    train, valid, test = hold_out(read_help(options.packages))
    if len(valid) < VALID or len(test) < TEST:
        sys.exit("demo_text.py: the help pages gave %d + %d sentences to hold out, not %d + %d"
                 % (len(valid), len(test), VALID, TEST))
    seen = set(train)
    examples, phrases = read_dictionary(options.packages)
    parts = {"help": train}
    for name, pairs in (("ui", read_catalogues(options.packages)), ("examples", examples),
                        ("phrases", phrases)):
        parts[name] = clean(pairs, seen)
    for name in parts:
        parts[name] = without(parts[name], valid + test)
        write(options.out, "part." + name, parts[name])
        report(name, parts[name], options.samples)
    chosen = [name for name in options.sources.split(",") if name]
    for name in chosen:
        if name not in parts:
            sys.exit("demo_text.py: no source %s; there are %s" % (name, ", ".join(parts)))
    train = [pair for name in chosen for pair in parts[name]]
    for name, pairs in (("valid", valid), ("test", test), ("train", train)):
        write(options.out, name, pairs)
        report(name, pairs, options.samples)


if __name__ == "__main__":
    main()
