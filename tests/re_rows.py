"""Writes re_rows.inc: what Python's re gives for patterns whose meaning differs in PCRE2.

X(pattern, text, spans): the spans of finditer, in bytes of UTF-8, and behind a "|" that of match.
"""
import re

ROWS = [
    (r"\w+", "aä_9 ²Ⅷ٣ ब्ं x́ 中-あ 😀"),
    (r"\W", "aä ­₂!"),
    (r"\d+", "12 ٣४ ² Ⅷ"),
    (r"\D+", "1a²2"),
    (r"\s", "a b\tc\u00a0d\u2009e\u200bf\u3000g\x1ch\x85i"),
    (r"\S+", "a\u00a0b \ufeffc"),
    (r"[^\s]+", "ab\u00a0c\u2028d"),
    (r"[\S]+", "ab\u00a0c\u200bd"),
    (r"[\d\s]+", "1 ٣\u00a0x"),
    (r"[\D]", "1a٣"),
    (r"\bä|e\b", "äe eä é"),
    (r"\Bb", "ab b äb .b"),
    (r"a\Z", "a\na"),
    (r"a$", "aa\n"),
    (r"(?m)^a$", "a\nb\na"),
    (r"a.b", "a\rb a\u2028b a\nb"),
    (r"(?s)a.b", "a\nb"),
    (r"x{,2}y", "xxxy"),
    (r"x{1}", "xx{1}"),
    (r"x{,}y", "xxxxy"),
    (r"x{2,}", "x xx xxx"),
    (r"a{b}|a{1,x}|a{ 2}", "a{b} a{1,x} a{ 2} aa"),
    (r"{}a", "{}a"),
    ("[[:alpha:]]+", "a:]l] [:]"),
    (r"[]a]+", "]a["),
    (r"[^]a]+", "b]a["),
    (r"[a\]-]+", "a-]b"),
    (r"[a-c-e]+", "abc-e d"),
    (r"[\u00e4-\u00fc\U0001F600]+", "äöü😀a"),
    (r"[\ud7ff-\ue000]", "\ud7ff\ue000a"),
    (r"\x41\u0042\U00000043\101", "ABCA"),
    (r"[\b\v\f\a\n\t\101]", "\b\v\f\a\n\tA"),
    (r"\v", "\v\n\u2028"),
    (r"\!\-\#\ä", "!-#ä"),
    (r"(a|b)\1", "abba aa"),
    (r"(?P<q>['\"]).*?(?P=q)", "'a\"b' \"c\""),
    (r"(a)?(?(1)b|c)", "ab c b"),
    (r"(?u)ä", "Ää"),
    (r"(?iu)ÄÖ", "äö Äö"),
    (r"(?i)i", "iIıİ"),
    (r"(?i)[h-j]+", "hIıİJ"),
    (r"(?i)[^i]", "iIıİa"),
    (r"(?i)ß|ſ|k|σ", "ẞ S K Σς"),
    (r"(?i:a)b", "Ab AB"),
    (r"(?-i:a)b", "Ab ab"),
    (r"a(?#c(o|m)b", "ab"),
    (r"(?<=ä)b|(?<!a)c", "äb ac äc"),
    (r"(?>a+)b|a++c|a*+d", "aab aac aad"),
    (r"a*?", "aa"),
    (r"a*", "baac"),
    (r"|ab|a", "ab"),
    (r"(?=-)|,", "a-b,,c"),
    (r"x*|y", "xyx"),
    (r"ab|a|b$|\.\.+$|c", "abcab...."),
    (r"b$|ab$|(?:a|bc?)$", "abcab"),
    (r"aa$|a$|\n$", "aa\n"),
    (r"(?:ab){1,2}$|a+$|c$", "ababab"),
    (r"(?:a|b{2}){,2}$|x", "aabbbb"),
    (r"ä{2}$|😀$", "äää"),
    (r"(?<=ab)c$|b(?=c)$", "abc"),
    (r"#a", "#a"),
    (r"a b", "a b"),
]


def c(text):
    out = ""
    for b in text.encode():
        out += chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}"
    return f'"{out}"'


def span(text, m):
    return f"{len(text[:m.start()].encode())}-{len(text[:m.end()].encode())}"


print("/* Made by re_rows.py. */")
for pattern, text in ROWS:
    spans = [span(text, m) for m in re.finditer(pattern, text)]
    m = re.match(pattern, text)
    print(f'X({c(pattern)},\n  {c(text)}, "{" ".join(spans)}|{span(text, m) if m else ""}")')
