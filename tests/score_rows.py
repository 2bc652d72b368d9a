#!/usr/bin/env python3
"""Prints tests/score_rows.inc: scores of sacreBLEU for texts that meet every rule of its
tokenisations, of chrF and of lower case. Not needed to run the tests.

Run: pip install sacrebleu==2.6.0; python3 tests/score_rows.py > tests/score_rows.inc
"""
import random
import unicodedata

import regex
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF

KINDS = ["13a", "none", "intl", "char", "zh"]

# (hypothesis, reference); a newline separates the lines of a text.
PAIRS = [
    ("Hello, world! It's 3.5 km; really?", "Hello , world ! It's 3.5 km ; really ?"),
    ("a.b,c .d. 1.5, 1,000. x9. 9.x ,5 5, .", "a.b,c .d. 1.5, 1,000. x9. 9.x ,5 5, . ."),
    ("... ,,, .,., 1..2 1,.2 a..b", "... ,,, .,., 1..2 1,.2 a..b c"),
    ("5-6 a-b 7- -8 9--10 1-2-3", "5 - 6 a-b 7 - -8 9 -- 10 1 - 2 - 3"),
    ("&quot;x&quot; &amp;lt; &lt;b&gt; &amp;quot; & &amp;amp; a&b", "\"x\" < <b> \" & &amp; a & b q"),
    ("<skipped> a <skipp<skipped>ed> b c d", "a <skipped> b c d"),
    ("x{y}z|q~ [a]\\^_` $5 100% #1 (c) *d* +e /f/ :g; <h>=i@j 'k'",
     "x{y}z|q~ [a]\\^_` $5 100% #1 (c) *d* +e /f/ :g; <h>=i@j 'k' l"),
    ("\u00e4.\u00f6,\u00fc \u20ac. \U0001f600, 5\u20ac.", "\u00e4 . \u00f6 , \u00fc \u20ac . \U0001f600 , 5\u20ac ."),
    ("a\u00a0b\u2003c\u3000d\u1680e\u2028f\u205fg\u202fh\u0085i\u001cj\u001fk\tl\u000bm", "a b c d e f g h i j k l m n"),
    ("a\u200bb c\ufeffd e\u180ef g h", "a b c d e f g h"),
    ("\u0661.\u0662 \u00b2.5 1.\u0663", "\u0661 . \u0662 \u00b2 . 5 1 . \u0663"),
    ("the the the the the the the", "the cat is on the mat"),
    ("a b x c d y e f z", "a b c d e f g h i"),
    ("a x b y c z d", "a b c d e f g"),
    ("x", "x"),
    ("x y", "x z"),
    ("a b c", "a b c d"),
    ("a b c d", "a b c d e f g h i j k"),
    ("a b c d e f g h i j k", "a b c d"),
    ("", "a b c d"),
    ("a b c d", ""),
    ("", ""),
    ("   ", " a "),
    ("p q r s", "a b c d"),
    # empty lines among others, lines shorter than the n-grams, in one corpus
    ("\na b c d e\n\nxy\nthe end .", "x\na b c d\n\n\nthe end."),
    ("ab\nabc\nabcdefgh", "abc\nab\nabcdefg"),
    # quotes and dashes of many kinds; numbers with stops of many kinds
    ("\u201cYes\u201d, \u2018no\u2019 \u2014 \u00abperhaps\u00bb \u2026 \u201esure\u201c", "\"Yes\", 'no' - \u00abperhaps\u00bb ... \u201esure\u201c"),
    ("1,000.50 1.000,50 1\u2009000 1\u066b5 \u00bd, \u2460. 3\u00d74=12 \u20ac5,- 50% \u22125\u00b0", "1,000.50 1.000,50 1000 1,5 \u00bd \u2460 3 x 4 = 12 5\u20ac 50 % -5\u00b0C"),
    (".5 5. ,5 5, .x x. -5 5- \u00b75 5\u00b7", ".5 5. ,5 5, .x x. -5 5- \u00b75 5\u00b7 ."),
    (".", "."),
    ("5.", "5."),
    # words that begin or end in marks, for chrF++
    ("(a) (bc) de. fgh), .i j. ,, '' ' k\u00e9! !\u00e9k \u00e9. \u201cx\u201d a.b", "(a) bc de fgh) .i j , '' ' k\u00e9 !\u00e9 k \u00e9 . x a . b"),
    # scripts
    ("\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u042d\u0442\u043e \u2014 \u0422\u0415\u0421\u0422 \u21165.", "\u043f\u0440\u0438\u0432\u0435\u0442 , \u043c\u0438\u0440 ! \u044d\u0442\u043e \u2013 \u0442\u0435\u0441\u0442 \u2116 5 ."),
    ("\u039f\u0394\u039f\u03a3 \u03a3\u03a3 \u03a3 \u0391\u03a3. \u0391\u03a3'\u0391 \u0391.\u03a3. 1\u03a3 \u0391\u0301\u03a3\u0301 \u0391\u03a3\u0308\u0392 \u00aa\u03a3", "\u03bf\u03b4\u03bf\u03c2 \u03c3\u03c2 \u03c3 \u03b1\u03c2. \u03b1\u03c3'\u03b1 \u03b1.\u03c2. 1\u03c3 \u03b1\u0301\u03c2\u0301 \u03b1\u03c3\u0308\u03b2 \u00aa\u03c2"),
    ("\u0130STANBUL \u0131 I \u1e9e STRASSE \u00c4\u00d6\u00dc \u01c5 \u01f2 \u1f88 \u24b6 \u2160 \uff21 \U00010400 \u023a \u2c62", "i\u0307stanbul \u0131 i \u00df strasse \u00e4\u00f6\u00fc \u01c6 \u01f3 \u1f80 \u24d0 \u2170 \uff41 \U00010428 \u2c65 \u026b"),
    ("\u0645\u0631\u062d\u0628\u0627\u060c \u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f \u0661\u0662\u066b\u0663 \u066a\u06d4", "\u0645\u0631\u062d\u0628\u0627 \u060c \u0643\u064a\u0641 \u062d\u0627\u0644\u0643 \u061f \u0661\u0662\u066b\u0664 \u066a"),
    ("\u05e9\u05dc\u05d5\u05dd, \u05e2\u05d5\u05dc\u05dd! \u05e6\u05d4\"\u05dc \u05d5\u05d2\u05f3", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd ! \u05e6\u05d4\u05f4\u05dc \u05d5\u05d2\u05f3"),
    ("\u0928\u092e\u0938\u094d\u0924\u0947\u0964 \u0926\u0941\u0928\u093f\u092f\u093e\u0965 \u0967\u0968.\u0969", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0964 \u0926\u0941\u0928\u093f\u092f\u093e \u0965 \u0967\u0968.\u0969\u096a"),
    ("\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0e5a", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e42\u0e25\u0e01 \u0e5a"),
    ("\u4f60\u597d\uff0c\u4e16\u754c\uff01Hello 3.5\u516c\u91cc\u3002\u201c\u662f\u201d\u2026\u2026 x\u2014y", "\u4f60\u597d,\u4e16\u754c! Hello 3.5 \u516c\u91cc\u3002\u201c\u662f\u201d \u2026 x \u2014 y"),
    (" .5\u5143,\u4e00.\u4e8c 1.\u4e09 4-\u4e94 6. ", ".5 \u5143,\u4e00.\u4e8c 1.\u4e09 4- \u4e94 6."),
    ("\u9fbb\u9fbc \u4db5\u4db6 \u3400\u33ff \uf900\ufa2d\ufa2e\ufa2f\ufa30\ufa6a\ufa6b\ufa70\ufad9\ufada \U00020000\U0002a6d6 \U0002f800", "\u9fbb \u9fbc \u4db5 \u4db6 \u3400 \u33ff \uf900 \ufa2d \ufa2e \ufa2f \ufa30 \U00020000 \U0002a6d6"),
    ("a\u2000b\u2001c\u2010d\u2a6de\u2a6ef \u2f80\u2f81 \u2fdf\u2fe0\u2ff0 \u303f\u3040 \u3130\u3131 \u319f\u31a0 \u31bf\u31c0\u31e3\u31f0\u3200", "a b c \u2010 d \u2a6d e \u2a6e f \u2f80 \u2f81"),
    ("\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8\u3002\uff76\uff85 \ud55c\uad6d\uc5b4 \uc2dc\ud5d8!", "\u65e5\u672c\u306e\u30c6\u30b9\u30c8 \u3002\u30ab\u30ca \ud55c\uad6d \uc2dc\ud5d8 !"),
    # emoji with joiners, modifiers, flags; combining marks beside what they combine to
    ("\U0001f468\u200d\U0001f469\u200d\U0001f467 ok\U0001f44d\U0001f3fd \u2764\ufe0f! \U0001f1e9\U0001f1ea :-)", "\U0001f468\u200d\U0001f469 ok \U0001f44d \u2764 ! \U0001f1e9\U0001f1ea ;-)"),
    ("e\u0301te\u0301 caf\u00e9 a\u030a\u0327. .\u0301a \u0301.", "\u00e9t\u00e9 cafe\u0301 a\u0327\u030a . .\u0301 a \u0301"),
    ("&lt;b&gt;5 &amp; 6&#39; &apos;x&apos; &quot", "<b>5 & 6' 'x' \""),
]


def noise(rng, alphabet):
    """Sentences of an alphabet, mutated for the hypothesis."""
    words = ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 5))) for _ in range(12)]
    other = list(words)
    for _ in range(3):
        other[rng.randrange(12)] = rng.choice(words)
    return " ".join(other), " ".join(words)


def alphabet_of_all(rng):
    """Characters of every category that Unicode versions agree about, many of them marks."""
    by_kind = {}
    for code in range(0x21, 0x20000):
        kind = unicodedata.category(chr(code))
        if kind[0] in "LMNPS" and regex.match(r"\p{%s}" % kind, chr(code)):
            by_kind.setdefault(kind, []).append(chr(code))
    out = "1a"
    for kind, chars in sorted(by_kind.items()):
        out += "".join(rng.choice(chars) for _ in range(2))
    return out


def literal(text):
    out = ""
    for byte in text.encode():
        plain = 32 <= byte < 127 and chr(byte) not in "\"\\?"
        out += chr(byte) if plain else "\\%03o" % byte
    return '"%s"' % out


def row(hypothesis, reference):
    hyp, ref = hypothesis.split("\n"), [reference.split("\n")]
    bleu, chrf = [], []
    for lowercase in False, True:
        for kind in KINDS:
            s = BLEU(tokenize=kind, lowercase=lowercase).corpus_score(hyp, ref)
            bleu.append("{%.13g, %d, %d}" % (s.score, s.sys_len, s.ref_len))
        for words in 0, 2:
            s = CHRF(word_order=words, lowercase=lowercase).corpus_score(hyp, ref)
            chrf.append("%.13g" % s.score)
    return "{%s,\n %s,\n {%s},\n {%s}}," % (literal(hypothesis), literal(reference),
                                           ", ".join(bleu), ", ".join(chrf))


def main():
    rng = random.Random(1)
    pairs = PAIRS + [noise(rng, "ab19.,-&;'!<> \u00e9\u2013\u00a0") for _ in range(24)]
    pairs += [noise(rng, alphabet_of_all(rng)) for _ in range(24)]
    print("/* Made by tests/score_rows.py with sacreBLEU %s. */" % sacrebleu.__version__)
    for hypothesis, reference in pairs:
        print(row(hypothesis, reference))


main()
