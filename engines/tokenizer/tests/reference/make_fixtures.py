"""Makes ../fixtures: texts and what other tokenizers make of them.

  python3 make_fixtures.py --server http://127.0.0.1:PORT --splitter PROGRAM

Needs Python 3.11 and tokenizers 0.23 (PyPI). The server is llama.cpp's (Debian llama.cpp-tools 1:0.7.0) on the bundled
SmolLM2-135M-Instruct.Q4_1.gguf. The splitter is splitter.cpp compiled with llama.cpp's src/unicode.cpp and
src/unicode-data.cpp (b11434). Characters that are newer than llama.cpp's Unicode tables are left out of the texts
(those Python 3.11, Unicode 14, does not know, except for private use).
"""

import argparse
import json
import pathlib
import random
import struct
import subprocess
import unicodedata
import urllib.request

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"

BLOCKS = [
"# Title of the *document*\n\nSome **bold** text, `inline code`, a [link](https://example.org/a?b=c&d=%20e) and a footnote[^1].\n\n",
"- item one\n- item two\n  - nested item\n    1. numbered\n    2. numbered (again)\n\n> quoted\n> lines\n\n",
"| a | b |\n|---|:-:|\n| 1 | 2.50 |\n| -3 | 4e-10 |\n\n",
"```rust\nfn main() -> Result<(), Box<dyn Error>> {\n    let x: Vec<u32> = (0..10_000).map(|i| i * i).collect();\n\tprintln!(\"{x:?}\");\n    Ok(())\n}\n```\n\n",
"```python\ndef f(x):\n    '''doc'''\n    return {k: v**2 for k, v in x.items() if v != 0x1F}  # it's 100%\n\n\nclass A(object):\n    def __init__(self, *args, **kwargs):\n        self.x = args[0] or kwargs.get('y')\n```\r\n",
"#include <stdio.h>\n\nint main(int argc, char **argv)\n{\n\tfor (int i = 0; i < argc; ++i)\n\t\tprintf(\"%d: %s\\n\", i, argv[i]);\n\treturn 0;\n}\n",
"SELECT a.id, COUNT(*) AS n FROM t1 a LEFT JOIN t2 b ON a.id=b.id WHERE b.x IS NULL GROUP BY 1 HAVING n>=10;\n",
"{\"key\": [1, 2.5, -3e+8, null, true], \"nested\": {\"a\\nb\": \"\\u00e9\"}}\n",
"I'm sure they'll say it's what we've DONE; you'd better NOT'VE, I'D, WE'LL. 'Tis o'clock\u2019s.\n",
"Größe, naïve café, Łódź, İstanbul, ǅ, Ελληνικά, русский язык, עברית שלום, العربية مرحبا, हिन्दी नमस्ते, ไทย สวัสดี, 日本語のテキスト、中文文本。한국어 텍스트\n",
"Emoji: 🙂👍🏽👨‍👩‍👧‍👦🇩🇪 ✈️ ☃ ½ ² Ⅷ ① ٣٤٥ १२३ 𝔘𝔫𝔦 𝟘𝟙\n","e\u0301 n\u0303 a\u0308\u0323 z\u0361l \u200b\u200d\ufeff\u00a0nbsp\u2003em\u3000wide\u2028sep\u0085nel\x0bvt\x0cff\x1c\x00\x01\x7f end\n",
"   leading spaces\n\ttab\n \t mixed \t \n\n\n   \n\ntrailing   \nline with   several    spaces     between      words\r\n\r\nCRLF\r\rCR\n",
"1234567890 12 345 6.78 9,000,000 $5.99 3/4 50% v1.2.3-rc4+build.56 192.168.0.1 2024-01-31T23:59:59Z +1 (555) 010-9999\n",
"!!!???...,,,;;;:::---___===+++***///\\\\\\|||<<<>>>[[[]]]{{{}}}((()))~~~```^^^&&&@@@###%%%$$$\n",
"x->y; (x):\n\ta != b && c || !d; a<=b>=c; i++; --j; p**q; f(g(h())); arr[0][1]; <div class=\"a\">&nbsp;</div> <!-- c --> $HOME/.bashrc ~/x C:\\Users\\me\n",
]


POOL=[" "]*12+["  ","\n","\n","\r\n","\t","\r","'","'s","'T","'ll","'VE","'re"]+list("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789")*2+list(".,;:!?-_+*/=<>()[]{}|\\\"`~^$&@#%")+list("éßÄøñçŁİſK")+["e\u0301","\u0301","\u0903","\u20dd","\u00a0","\u2003","\u3000","\u0085","\u2028","\u200b","½","²","Ⅷ","٣","१","𝟘","你","好","の","한","ע","ش","न","ไ","🙂","👍🏽","€","´","µ","\x00","\x1c","\u0378","\ue000","\U0010fffd","\ufffd"]


def known(text):
    """Without characters newer than both sides know."""
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs") or c == "\u0378")


def corpus(rng):
    """10 KB of code, Markdown and many scripts."""
    text = ""
    while len(text.encode()) < 10240:
        text += "".join(rng.sample(BLOCKS, len(BLOCKS)))
    return text.encode()[:10240].decode("utf-8", "ignore")


def random_texts(rng, n):
    """Short texts: half from a pool of awkward pieces, half of any characters."""
    texts = []
    for _ in range(n):
        length = rng.randint(1, 60)
        if rng.random() < 0.6:
            text = "".join(rng.choice(POOL) for _ in range(length))
        else:
            tops = [0x80, 0x800, 0x10000, 0x30000]
            text = "".join(chr(c) for c in (rng.randrange(rng.choice(tops)) for _ in range(length)) if not 0xD800 <= c < 0xE000)
        text = known(text)
        if text and "\0" not in text:
            texts.append(text)
    return texts


# The patterns of llama.cpp's src/llama-vocab.cpp.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|"
WORDS = lambda d:r"[^\r\n\p{L}\p{N}]?\p{L}+|"+d+r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
"default":[r"[\p{P}\$\+<=>\^~\|]+", GPT2,r"\p{N}+","[0-9][0-9][0-9]"],
"smollm":[r"\p{N}", GPT2],"gpt-2":[GPT2],"qwen2":[CONTRACTIONS + WORDS(r"\p{N}")],
"qwen35":[CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
"ufakzeka":[WORDS(r"\p{N}")],"llama-bpe":[CONTRACTIONS + WORDS(r"\p{N}{1,3}")],
"minicpm5":[r"\p{N}{1,3}",CONTRACTIONS + WORDS(r"\p{N}+")],
"falcon":[r"[\p{P}\$\+<=>\^~\|`]+", GPT2,"[0-9][0-9][0-9]"]}


def split(program, patterns, texts):
    data = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
    done = subprocess.run([program, *patterns], input=data, capture_output=True, check=True)
    lines = done.stdout.decode().split("\n")[:-1]
    for text, line in zip(texts, lines, strict=True):
        words = [bytes.fromhex(word) for word in line.split()]
        assert b"".join(words) == text.encode()
        yield [len(word) for word in words]


def ids_of_server(server, text):
    body = json.dumps({"content": text, "add_special": False, "parse_special": False}).encode()
    request = urllib.request.Request(server + "/tokenize", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=60))["tokens"]


def small_vocabularies(texts):
    """Vocabularies trained on the corpus, and what Hugging Face's tokenizers make of the texts."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    sequence = pre_tokenizers.Sequence
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = lambda pattern: sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_only])
    kinds = {
        "smollm": (sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]), False),
        "gpt-2": (gpt2, False),
        "qwen35": (cut(PATTERNS["qwen35"][0]), False),
        "glm4": (cut(PATTERNS["llama-bpe"][0]), True),
    }
    out = {}
    for name, (pre, ignore_merges) in kinds.items():
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre
        trainer = trainers.BpeTrainer(
            vocab_size=600, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
        tokenizer.train_from_iterator(texts, trainer)
        model = json.loads(tokenizer.to_str())["model"]
        vocabulary = sorted(model["vocab"], key=model["vocab"].get)
        if ignore_merges:
            # A word that no merges give: with merges ignored it must come out whole.
            vocabulary.append("zyzzyva")
            merges = [tuple(merge) for merge in model["merges"]]
            model_ids = {token: i for i, token in enumerate(vocabulary)}
            tokenizer = Tokenizer(models.BPE(model_ids, merges, ignore_merges=True))
            tokenizer.pre_tokenizer = pre
        out[name] = {
            "tokens": vocabulary,
            "merges": [" ".join(merge) for merge in model["merges"]],
            "ids": [tokenizer.encode(text, add_special_tokens=False).ids for text in texts],
        }
    return {"texts": texts, "vocabularies": out}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--splitter", required=True)
    options = parser.parse_args()
    rng = random.Random(7)
    FIXTURES.mkdir(exist_ok=True)
    text = corpus(rng)
    (FIXTURES / "corpus.txt").write_bytes(text.encode())
    texts = random_texts(rng, 150)
    save = lambda name, value: (FIXTURES / name).write_text(json.dumps(value, separators=(",", ":")))
    save("bundled.json", [{"text": t, "ids": ids_of_server(options.server, t)} for t in [text, *texts]])
    rows = [{"text": t, "words": {}} for t in [text, *texts]]
    for name, patterns in PATTERNS.items():
        for row, words in zip(rows, split(options.splitter, patterns, [r["text"] for r in rows]), strict=True):
            row["words"][name] = words
    save("splits.json", rows)
    save("small.json", small_vocabularies([text, *texts[:40], "a zyzzyva zyzzyva's\nzyzzyva"]))


if __name__ == "__main__":
    main()
