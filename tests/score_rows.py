#!/usr/bin/env python3
"""Prints tests/score_rows.inc: scores of sacreBLEU 2.6.0 for texts that meet every rule of 13a.

Run: pip install sacrebleu==2.6.0; python3 tests/score_rows.py > tests/score_rows.inc
"""
import random

import sacrebleu

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
]


def noise(rng):
    """Sentences of the characters that the rules look at, mutated for the hypothesis."""
    alphabet = "ab19.,-&;'!<> \u00e9\u2013\u00a0"
    words = ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 5))) for _ in range(12)]
    other = list(words)
    for _ in range(3):
        other[rng.randrange(12)] = rng.choice(words)
    return " ".join(other), " ".join(words)


def literal(text):
    out = ""
    for byte in text.encode():
        plain = 32 <= byte < 127 and chr(byte) not in "\"\\?"
        out += chr(byte) if plain else "\\%03o" % byte
    return '"%s"' % out


def main():
    rng = random.Random(1)
    print("/* Made by tests/score_rows.py with sacreBLEU %s. */" % sacrebleu.__version__)
    for hypothesis, reference in PAIRS + [noise(rng) for _ in range(40)]:
        score = sacrebleu.corpus_bleu([hypothesis], [[reference]])
        print("{%s,\n %s,\n %r, %d, %d}," % (literal(hypothesis), literal(reference), score.score,
                                         score.sys_len, score.ref_len))


main()
