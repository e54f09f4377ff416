"""Small networks of Hugging Face's transformers with random weights: state dicts, and what they compute.

transformers 4.30.2, torch 1.13.1, Python 3.11, on a CPU: python make_hf.py
"""
import copy

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)


def shaken(model):
    """Weights that no two layers share, norms and biases too."""
    for _, parameter in model.named_parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def in_bf16(model, **inputs):
    return copy.deepcopy(model).to(torch.bfloat16)(**inputs).logits.float().numpy()


def gpt2():
    model = shaken(GPT2LMHeadModel(GPT2Config(vocab_size=41, n_positions=20, n_embd=16, n_layer=2, n_head=4, n_inner=40)))
    tokens = torch.randint(0, 41, (4, 16))
    greedy = model.generate(tokens[:1, :5], max_new_tokens=11, do_sample=False, pad_token_id=0)
    torch.save(model.state_dict(), "gpt2.pt")
    np.savez_compressed(
        "gpt2.npz",
        tokens=tokens.numpy().astype(np.int32),
        logits=model(input_ids=tokens).logits.numpy(),
        logits_bf16=in_bf16(model, input_ids=tokens),
        greedy=greedy.numpy().astype(np.int32),
    )


def bert():
    config = BertConfig(
        vocab_size=41, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=20, type_vocab_size=2, num_labels=3,
    )
    model = shaken(BertForSequenceClassification(config))
    words, segments = torch.randint(0, 41, (8, 16)), torch.randint(0, 2, (8, 16))
    inputs = {"input_ids": words, "token_type_ids": segments}
    torch.save(model.state_dict(), "bert.pt")
    np.savez_compressed(
        "bert.npz",
        words=words.numpy().astype(np.int32),
        segments=segments.numpy().astype(np.int32),
        logits=model(**inputs).logits.numpy(),
        logits_bf16=in_bf16(model, **inputs),
    )


with torch.no_grad():
    gpt2()
    bert()
