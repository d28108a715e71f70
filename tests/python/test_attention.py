"""scaled_dot_product_attention: values, types, layouts and refusals are those of the CPU, whichever form it takes there."""

import pytest
import rsx
import torch
import torch.nn.functional as F
from helper import D

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def mask(*sizes, low=-1.0):
    return torch.linspace(low, 1, torch.Size(sizes).numel()).reshape(sizes)


# Sizes of queries, of keys, of values; what else is given.
CASES = {
    "plain": ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4), {}),
    "causal": ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4), {"is_causal": True}),
    "more keys": ((1, 2, 4, 8), (1, 2, 9, 8), (1, 2, 9, 8), {"scale": 0.3}),
    "causal, more keys": ((1, 2, 4, 8), (1, 2, 9, 8), (1, 2, 9, 8), {"is_causal": True}),
    "mask": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), {"attn_mask": mask(5, 7)}),
    "mask of heads": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), {"attn_mask": mask(1, 3, 5, 7)}),
    "mask of keys": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), {"attn_mask": mask(2, 1, 1, 7)}),
    "mask of one key": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), {"attn_mask": mask(5, 1)}),
    "mask of three axes": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), {"attn_mask": mask(3, 5, 7)}),
    "mask of truths": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), {"attn_mask": mask(5, 7) > -0.7}),
    "rows that see nothing": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), {"attn_mask": mask(5, 7) > 0.2}),
    "mask and causal": ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4), {"attn_mask": mask(5, 5), "is_causal": True}),
    "grouped": ((2, 6, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), {"enable_gqa": True}),
    "grouped, causal": ((2, 6, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), {"enable_gqa": True, "is_causal": True}),
    "grouped, mask and causal": ((2, 6, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), {"enable_gqa": True, "is_causal": True, "attn_mask": mask(5, 5)}),
    "grouped, not even": ((2, 6, 5, 4), (2, 4, 5, 4), (2, 4, 5, 4), {"enable_gqa": True}),
    "grouped without saying so": ((2, 6, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), {}),
    "wider values": ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 6), {}),
    "wider values, mask and causal": ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 6), {"is_causal": True, "attn_mask": mask(5, 5)}),
    "three axes": ((3, 5, 4), (3, 5, 4), (3, 5, 4), {"is_causal": True}),
    "three axes, mask and causal": ((3, 5, 4), (3, 5, 4), (3, 5, 4), {"is_causal": True, "attn_mask": mask(5, 5)}),
    "two axes": ((5, 4), (7, 4), (7, 4), {}),
    "no queries": ((2, 3, 0, 4), (2, 3, 5, 4), (2, 3, 5, 4), {}),
    "no keys": ((2, 3, 5, 4), (2, 3, 0, 4), (2, 3, 0, 4), {}),
    "no batch": ((0, 3, 5, 4), (0, 3, 5, 4), (0, 3, 5, 4), {}),
    "one batch of keys": ((2, 3, 5, 4), (1, 3, 5, 4), (1, 3, 5, 4), {}),
    "keys of other depth": ((2, 3, 5, 4), (2, 3, 5, 6), (2, 3, 5, 6), {}),
    "mask of other sizes": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), {"attn_mask": mask(7, 5)}),
}


def attend(name, dtype, device):
    """Result and gradients, or the error."""
    *sizes, more = CASES[name]
    torch.manual_seed(1)
    operands = [torch.randn(s, dtype=torch.float64).to(dtype).to(device).requires_grad_() for s in sizes]
    more = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in more.items()}
    if "attn_mask" in more and more["attn_mask"].is_floating_point():
        more["attn_mask"] = more["attn_mask"].to(dtype)
    try:
        out = F.scaled_dot_product_attention(*operands, **more)
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(dtype).to(device)
        return [out.detach(), *torch.autograd.grad(out, operands, weights)]
    except (RuntimeError, ValueError, IndexError) as e:
        return type(e), str(e).split("\n")[0].replace("rsx:0", "cpu")


@pytest.mark.parametrize("tier", ["eager", "compiled"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_the_cpu(name, dtype, tier):
    want = attend(name, dtype, "cpu")
    with rsx.tier(tier):
        got = attend(name, dtype, D)
        if isinstance(want, tuple):
            assert got == want
            return
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype and g.shape == w.shape
            assert [s for s, n in zip(g.stride(), g.shape) if n > 1] == [s for s, n in zip(w.stride(), w.shape) if n > 1]
            torch.testing.assert_close(g.cpu(), w, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_the_choice_of_form_is_the_users():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 2, 4, 8)
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            want, got = (torch._fused_sdp_choice(x, x, x) for x in (q, q.to(D)))
            assert want == got == backend.value
            torch.testing.assert_close(F.scaled_dot_product_attention(*[q.to(D)] * 3).cpu(), F.scaled_dot_product_attention(q, q, q))
