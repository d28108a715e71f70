"""A small GPT and the text it is trained on: plain PyTorch, nothing of rsx in it."""

import pathlib
import pydoc_data.topics

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    """Pre-norm transformer block: causal attention and a GELU MLP."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, dim = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, dim // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(dim, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.proj(y.transpose(1, 2).reshape(batch, time, dim))
        x = x + F.dropout(y, self.dropout, self.training)
        y = self.down(F.gelu(self.up(self.norm2(x))))
        return x + F.dropout(y, self.dropout, self.training)


class GPT(nn.Module):
    """Decoder-only transformer over characters."""

    def __init__(
        self, vocab: int, time: int = 256, dim: int = 256, layers: int = 4, heads: int = 8, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, dim), nn.Embedding(time, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [batch, time, vocab], or the mean cross entropy (0-d) if `targets` are given."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Text:
    """Characters of a real text that every Python installation carries: the language reference in `pydoc_data`."""

    def __init__(self, path: str | None = None) -> None:
        self.path = pathlib.Path(path or pydoc_data.topics.__file__)
        text = self.path.read_text() if path else "\n".join(pydoc_data.topics.topics.values())
        alphabet = sorted(set(text))
        code = {c: i for i, c in enumerate(alphabet)}
        self.vocab = len(alphabet)
        self.data = torch.tensor([code[c] for c in text], dtype=torch.long)

    def __str__(self) -> str:
        return f"{len(self.data):,} characters of {self.path} ({self.vocab} different ones)"

    def batches(self, batch: int, time: int, seed: int = 0):
        """Endless (tokens, targets) pairs of [batch, time] int64 on the CPU, the same for equal seeds."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            starts = torch.randint(len(self.data) - time - 1, (batch,), generator=generator)
            window = torch.stack([self.data[s : s + time + 1] for s in starts])
            yield window[:, :-1].contiguous(), window[:, 1:].contiguous()
