"""A small unigram tokenizer in both of its file formats, and the ids that Hugging Face's tokenizers gives.

The vocabulary has what that of UMT5 has: control tokens, tags, pieces for bytes, words with a mark of white
space, pieces of several marks, and 300 extra ids that only tokenizer.json contains. Texts are cleaned by ftfy
and html as diffusers' Wan pipelines do."""
import html
import html.entities
import json
import random
import re
import struct

import ftfy
import tokenizers

from golden_io import describe

SEED = 47
RANDOM_TEXTS = 150
MARK = "\u2581"
CONTROLS = ["<pad>", "</s>", "<s>", "<unk>"]
UNKNOWN = 3
TAGS = ["[eod]", "[web]", "[eot]"]
TYPES = {"normal": 1, "unknown": 2, "control": 3, "user": 4, "byte": 6}
WORDS = """a the cat dog runs on over red hill sea walks slowly camera shot of an old light wooden boat in
    morning rain caf\u00e9 d\u00e9j\u00e0 \u00fcber \u6d77 \u732b \u8d70 "quoted" it's fine
    & <b> 1 2 10""".split()
PARTS = """s ing ed er ly aa aaa abab ba !! !!! .. ... -- ee \u54c8\u54c8 \u6d77\u732b 00 \u00e9e
    e\u0301 \u200b\u200b""".split()
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGH0123456789.,!?'\"-&;:<>()" \
    "\u00e9\u00fc\u00c5\u6d77\u732b\u8d70\u54c8\u30ab\u200b"

RANGES = [(1, 0x24f), (0x300, 0x36f), (0x1100, 0x1200), (0x2000, 0x206f), (0xff01, 0xffef),
          (0x1f300, 0x1f6ff)]

TEXTS = [
    "", " ", "A cat walks slowly over the old hill, camera shot of the sea.", "  two   spaces\tand\nlines ",
    "\u201cCurly\u201d quotes, it\u2019s fine", "\uff21\u3000\uff22\uff01 \uff76\uff9e\uffe3\uffa1",
    "&lt;b&gt; &amp;amp; x",
    "\ufb01ne \ufb02ow \ufb03 \u0149 \u01c4", "cafe\u0301 nai\u0308ve A\u030a", "x\u200by",
    "\U0001f999 on a hill \U0001f642\U0001f642",
    "a</s>b", "</s>", "<extra_id_0> x", "a <extra_id_299><pad> b", "[web] [eod]", "nul\u0001ctl \u007f\ufeff",
    "<0x41>", f"{MARK}a {MARK}{MARK} a{MARK}b", "\x1b[31mred\x1b[0m", "one\r\ntwo\rthree\u2028four",
    "a &amp; \u2028 <", "\u0085 \u0091x\u0092", "&EACUTE;&SZLIG;&NAPOS; &notit; &#x41;&#65&#0;&#59;",
    "&#128;&#x1F600;&#xD800;",
    "aaaa aaaaa aaaaaa", "ababababab", "!!!!!!!", "e\u0301e\u0301",
    "a\u0327\u0301b \u1112\u1161\u11ab \u0958",
    "\u00e2\u20ac\u0153caf\u00c3\u00a9\u00e2\u20ac\u009d", "\u6d77\u00c7\u00a6", "word " * 600,
]

# Texts whose ids depend on the last bits of scores, which differ between a vocabulary and its file.
ROUNDING_TEXTS = [
    "aaaaaaaaaaaaaaaa!!!!!!!!!!!!...........cccccabababababababab",
    "ababababab.....ddddddabababababababababdddddddddddd",
    "a!!!!!!ababababababababab..........!",
]


def clean(text):
    for _ in range(2):
        text = ftfy.fix_text(text)
    text = html.unescape(html.unescape(text)).strip()
    return re.sub(r"\s+", " ", text).strip()


def random_text(generator):
    names = sorted(html.entities.html5)
    makers = [
        lambda: generator.choice(WORDS),
        lambda: generator.choice(WORDS),
        lambda: generator.choice(PARTS) * generator.randint(1, 9),
        lambda: generator.choice(LETTERS) * generator.randint(1, 12),
        lambda: "&" + generator.choice(names),
        lambda: generator.choice(CONTROLS + TAGS + ["<extra_id_7>", "<0x0A>", MARK, "<"]),
        lambda: chr(generator.randint(*generator.choice(RANGES))),
    ]
    between = generator.choice(["", " "])
    return between.join(generator.choice(makers)() for _ in range(generator.randint(1, 12)))


def inexact_score(score):
    """A float near `score` that tokenizers reads from JSON as another number, where one is found: the digits
    become a double before they are divided by a power of ten."""
    for _ in range(200):
        score = struct.unpack("<f", struct.pack("<f", score))[0]
        whole, fraction = repr(-score).split(".")
        if -score != float(int(whole + fraction)) / 10.0 ** len(fraction):
            return score
        score -= 1e-6
    return struct.unpack("<f", struct.pack("<f", score))[0]


def make_pieces():
    """(text, score, type) of each piece. Scores are floats as sentencepiece stores them."""
    yield from ((text, 0.0, "unknown" if text == "<unk>" else "control") for text in CONTROLS)
    yield from ((text, 0.0, "user") for text in TAGS)
    yield from ((f"<0x{byte:02X}>", 0.0, "byte") for byte in range(256))
    normal = [MARK, *(MARK + word for word in WORDS), *PARTS, *LETTERS, 2 * MARK, 4 * MARK]
    for i, text in enumerate(dict.fromkeys(normal)):
        score = -7 - 2.3 * len(text) ** 0.5 - 0.0137 * i
        yield text, inexact_score(score), "normal"


def varint(number):
    data = b""
    while number > 127:
        data += bytes([number & 127 | 128])
        number >>= 7
    return data + bytes([number])


def field(number, value):
    """A protobuf field: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def write_spiece(path, pieces):
    data = b""
    for text, score, kind in pieces:
        data += field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + field(3, TYPES[kind]))
    data += field(2, field(3, 1) + field(4, len(pieces)) + field(40, UNKNOWN))
    data += field(3, field(1, b"identity") + field(3, 1) + field(4, 1) + field(5, 1))
    path.write_bytes(data)


def make_tokenizer(pieces, split_words):
    """split_words: words are divided first, a mark precedes only the first one, and added tokens take white
    space."""
    extra = [f"<extra_id_{i}>" for i in reversed(range(300))]
    vocabulary = [(text, score) for text, score, _ in pieces] + [(text, 0.0) for text in extra]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, UNKNOWN, False))
    spaces = tokenizers.Regex(" {2,}")
    tokenizer.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Replace(spaces, " ")])
    pre = tokenizers.pre_tokenizers
    metaspace = pre.Metaspace(MARK, prepend_scheme="first" if split_words else "always")
    tokenizer.pre_tokenizer = pre.Sequence([pre.WhitespaceSplit(), metaspace]) if split_words else metaspace
    tokenizer.add_special_tokens([
        tokenizers.AddedToken(text, normalized=False, lstrip=split_words, rstrip=split_words)
        for text in CONTROLS + extra])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
    return tokenizer


def write(folder):
    pieces = list(make_pieces())
    write_spiece(folder / "spiece.model", pieces)
    whole, words = make_tokenizer(pieces, False), make_tokenizer(pieces, True)
    for name, tokenizer in (("tokenizer.json", whole), ("split_words.json", words)):
        tokenizer.save(str(folder / name), pretty=False)
        with (folder / name).open("a") as file:
            file.write("\n")
    # The scores that count are those of a file that was read.
    exact = whole
    whole, words = (tokenizers.Tokenizer.from_file(str(folder / name))
                    for name in ("tokenizer.json", "split_words.json"))
    generator = random.Random(SEED)
    texts = TEXTS + [random_text(generator) for _ in range(RANDOM_TEXTS)]
    texts += ROUNDING_TEXTS
    if any(exact.encode(text).ids == whole.encode(text).ids for text in ROUNDING_TEXTS):
        raise SystemExit("a text of ROUNDING_TEXTS does not depend on the last bits of scores")
    with (folder / "golden.jsonl").open("w") as file:
        for text in texts:
            cleaned = clean(text)
            line = {"text": text, "cleaned": cleaned}
            for key, tokenizer in (("ids", whole), ("ids_split_words", words)):
                ids = tokenizer.encode(cleaned).ids
                line[key] = ids if len(ids) <= 512 else ids[:511] + [1]
            file.write(json.dumps(line, ensure_ascii=True) + "\n")
    made_with = f"tokenizers {tokenizers.__version__}, ftfy {ftfy.__version__}"
    describe(folder, SEED, f"{made_with}. Lines of golden.jsonl: text, cleaned text, ids by tokenizer.json "
             "and, as ids_split_words, by split_words.json, cut to 512 with the end token kept.")
