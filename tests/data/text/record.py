#!/usr/bin/env python3
"""Makes the tokenizers of this folder and what Hugging Face's tokenizers (pip) says of texts: record.py, in the folder.

texts.json     texts in several scripts, with emoji, control characters, odd spaces
*.json, vocab.txt   tokenizers that are trained on them: small, and of every kind
expected.json  ids of each text by each tokenizer, without and with the tokens around them; and of pairs cut to 16 ids
"""
import json

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.implementations import BertWordPieceTokenizer

TEXTS = [
    "In the beginning God created the heaven and the earth.",
    "And the earth was without form, and void; and darkness was upon the face of the deep.",
    "Don't  stop:   it's what they'd've said — isn't it? We'll see, I'm sure.",
    "x=3.14159; y = 2**10\t# a comment\r\n\tif (x<y) { return 100000; }\n\n\n  indented",
    "Der Fluß fließt über die Brücke; Äpfel, Öl und Übermut kosten 3,50 €.",
    "L’élève naïf a déjà mangé où ça ? Crème brûlée, cœur, Noël.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΟΔΥΣΣΕΥΣ",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。",
    "いろはにほへと ちりぬるを カタカナ 漢字かな交じり文",
    "키스의 고유조건은 입술끼리 만나야 하고",
    "مرحبا بالعالم، كيف حالك اليوم؟ שלום עולם",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "emoji 😀😃 👩‍👩‍👧‍👦 🇩🇪 👍🏽 and a ☃ with ﬁ ligature and ① ² ½",
    "a\u0000b\u0001c\u007f\u0085d\u000be\u000cf\u00a0g\u2003h\u3000i\u200bj\ufeffk\ufffdl",
    "", " ", "\n", "  two leading, two trailing  ", "\n\n\n", "\t \n \r\n ",
    "ＦＵＬＬ ｗｉｄｔｈ e\u0301 combining a\u030a\u0323 İstanbul ıI ẞ",
    "word" * 40, "supercalifragilisticexpialidocious " * 3,
    "a special <|endoftext|> in the middle and [MASK] [CLS]too[SEP] <unk></s>",
    "1 22 333 4444 55555 １２３ ٣٤٥ Ⅷ",
    "line one\nline two\n\nline four\n  five\nsix \nseven",
    "http://example.org/a?b=c&d=%20#e user@example.com C:\\temp\\new",
]
PAIRS = [[0, 1], [1, 0], [16, 0], [0, 15], [8, 6], [23, 1], [16, 16], [19, 17], [24, 25]]


def byte_level(prefix):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return t


def llama():
    """BPE over spaces as ▁, with bytes for what it does not know, as SentencePiece's; nothing cuts its texts."""
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.train_from_iterator(TEXTS[:8], trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)], show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return t


def unigram():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.NFKC()
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(TEXTS, trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<pad>", "<unk>", "</s>"], unk_token="<unk>", show_progress=False))
    t.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", t.token_to_id("</s>"))])
    return t


def words():
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.normalizer = normalizers.Lowercase()
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train_from_iterator(TEXTS, trainers.WordLevelTrainer(vocab_size=150, special_tokens=["[UNK]"], show_progress=False))
    return t


json.dump(TEXTS, open("texts.json", "w"), ensure_ascii=True, indent=0)
made = {"byte_level": byte_level(False), "byte_level_prefix": byte_level(True), "llama": llama(), "unigram": unigram(), "words": words()}
for name, t in made.items():
    t.save(f"{name}.json", pretty=False)
bert = BertWordPieceTokenizer()
bert.train_from_iterator(TEXTS, vocab_size=500, show_progress=False)
vocabulary = sorted(bert.get_vocab().items(), key=lambda item: item[1])
open("vocab.txt", "w", encoding="utf-8").write("".join(token + "\n" for token, _ in vocabulary))
made["vocab"] = BertWordPieceTokenizer("vocab.txt", lowercase=True)
made["vocab"].save("bert.json", pretty=False)
made["bert"] = Tokenizer.from_file("bert.json")
made["vocab_cased"] = BertWordPieceTokenizer("vocab.txt", lowercase=False)

expected = {"versions": {"tokenizers": tokenizers.__version__}, "pairs": PAIRS, "tokenizers": {}}
for name, t in made.items():
    entry = {
        "bare": [t.encode(text, add_special_tokens=False).ids for text in TEXTS],
        "whole": [t.encode(text).ids for text in TEXTS],
    }
    t.enable_truncation(16)
    cut = [t.encode(TEXTS[a], TEXTS[b]) for a, b in PAIRS]
    t.no_truncation()
    entry["pairs"] = [e.ids for e in cut]
    entry["segments"] = [e.type_ids for e in cut]
    expected["tokenizers"][name] = entry
json.dump(expected, open("expected.json", "w"))
