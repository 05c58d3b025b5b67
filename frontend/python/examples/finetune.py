"""A transformer of Hugging Face on sentences with padding, its lower half frozen, trained within a memory budget."""

import argparse

import memc
import torch
import transformers

SENTENCES = ["the step fits the budget", "it does not fit at all", "a good plan", "memory ran out again", "bits are equal",
             "the loss is not a number", "everything was proved before it ran", "the kernel was killed"]


def encoded(sentences, length=16):
    """Bytes of each sentence with padding, their mask, and a label."""
    codes = [list(s.encode())[:length] for s in sentences]
    tokens = torch.tensor([c + [0] * (length - len(c)) for c in codes])
    return {"input_ids": tokens, "attention_mask": (tokens != 0).long(), "labels": torch.tensor([i % 2 for i in range(len(codes))])}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder that save_pretrained wrote; a small new BERT without it")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--budget", default="2G" if torch.cuda.is_available() else "peak*60%", help="device memory, as 8G")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    if args.model:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(args.model)
    else:
        model = transformers.BertForSequenceClassification(transformers.BertConfig(
            vocab_size=256, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    model.train()
    for layer in model.base_model.encoder.layer[:2]:
        layer.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    batch, losses = encoded(SENTENCES), []
    step = memc.train_step(model, None, optimizer, batch, budget=args.budget)
    for i in range(args.steps):
        loss = step(**batch)
        losses.append(loss.item())
        print(f"step {i + 1}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
