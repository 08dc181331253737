#!/usr/bin/env python3
"""A second opinion on the CUDA kernels, from PyTorch on the same GPU.

    torch_check.py LIBDCPG

Dequantises, multiplies and selects in float64 with torch's own operators and
compares with what the library's C entry points gave for the same tensors. The
library must be of this tree: structs are read from its header.
"""
import ctypes
import os
import sys

import torch

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SRC, "tests/lib"))
from structs import Headers  # noqa: E402

C = Headers(os.path.join(SRC, "kernels/kernels.h"),
            os.path.join(SRC, "kernels/cuda/dcpg.h"))
Attend, Score, Select = (C["dcpg_" + x] for x in
                         ("attend", "index_score", "select"))
KV_FP8, BINS = C.number("DCPK_KV_FP8"), C.number("DCPG_BINS")
FP8 = torch.float8_e4m3fn
failed = 0


def verdict(ok, what):
    global failed
    failed += not ok
    print("ok  " if ok else "FAIL", what)


def call(f, args):
    torch.cuda.synchronize()    # some arguments are read early
    rc = f(ctypes.byref(args),
           ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    torch.cuda.synchronize()
    if rc != 0:
        sys.exit(f"{f.__name__}: {rc}")


def packed_rows(n, gen):
    """[n][656] bytes and the float64 [n][576] they stand for."""
    x = torch.randn(n, 576, generator=gen, device="cuda")
    x[:, :512] *= torch.exp2(
        torch.randn(n, 4, generator=gen, device="cuda")).repeat_interleave(
            128, 1)
    tiles = x[:, :512].view(n, 4, 128)
    scale = tiles.abs().amax(-1) / 448
    q = (tiles / scale[..., None]).to(FP8)
    rope = x[:, 512:].bfloat16()
    rows = torch.cat([q.view(n, 512).view(torch.uint8),
                      scale.view(torch.uint8).view(n, 16),
                      rope.contiguous().view(torch.uint8).view(n, 128)], 1)
    value = torch.cat([(q.double() * scale.double()[..., None]).view(n, 512),
                       rope.double()], 1)
    return rows.contiguous(), value


def check_attend(lib, gen, heads, rows, keys):
    pool, value = packed_rows(20000, gen)
    lists = torch.randint(20000, (rows, keys), generator=gen, device="cuda",
                          dtype=torch.int32)
    count = torch.randint(1, keys + 1, (rows,), generator=gen, device="cuda",
                          dtype=torch.int32)
    q = torch.randn(rows, heads, 576, generator=gen, device="cuda").bfloat16()
    out = torch.full((rows, heads, 512), float("nan"), device="cuda",
                     dtype=torch.bfloat16)
    lse = torch.full((rows, heads), float("nan"), device="cuda")
    work = torch.full((C.number("DCPG_ATTEND_WORK"),), 255, device="cuda",
                      dtype=torch.uint8)
    call(lib.dcpg_attend, Attend(
        q=q.data_ptr(), pool=pool.data_ptr(), list=lists.data_ptr(),
        count=count.data_ptr(), out=out.data_ptr(), lse=lse.data_ptr(),
        work=work.data_ptr(), rows=rows, heads=heads, list_stride=keys,
        max_count=keys, kv=KV_FP8, scale=0.07))
    worst = lse_err = 0.0
    for r in range(rows):
        kv = value[lists[r, :count[r]].long()]
        s = q[r].double() @ kv.T * 0.07
        ref = torch.softmax(s, -1) @ kv[:, :512]
        worst = max(worst, float((out[r].double() - ref).norm() / ref.norm()))
        lse_err = max(lse_err, float(
            (lse[r].double() - torch.logsumexp(s, -1)).abs().max()))
    verdict(worst < 4e-3 and lse_err < 1e-3 and bool((work == 255).all()),
            f"attend H={heads} rows={rows} keys<={keys}: rel {worst:.1e} "
            f"lse {lse_err:.1e}")


def check_index(lib, gen, heads, rows, length, k):
    pages = length // 64
    keys = (torch.randn(pages * 64, 128, generator=gen, device="cuda") *
            100).clamp(-448, 448).to(FP8)
    kscale = torch.rand(pages * 64, generator=gen, device="cuda") / 448
    table = torch.randperm(pages, generator=gen, device="cuda").int()
    q8 = (torch.randn(rows, heads, 128, generator=gen, device="cuda") *
          100).clamp(-448, 448).to(FP8)
    w = torch.randn(rows, heads, generator=gen, device="cuda") / 448
    score = torch.full((rows, length), float("nan"), device="cuda")
    hist = torch.zeros(rows, BINS, device="cuda", dtype=torch.int32)
    zero = torch.zeros(rows, device="cuda", dtype=torch.int32)
    lens = torch.full_like(zero, length)
    call(lib.dcpg_index_score, Score(
        q8=q8.data_ptr(), w=w.data_ptr(), keys=keys.data_ptr(),
        kscale=kscale.data_ptr(), table=table.data_ptr(),
        table_at=zero.data_ptr(), len=lens.data_ptr(), score=score.data_ptr(),
        hist=hist.data_ptr(), rows=rows, heads=heads, stride=length,
        max_len=length, page_rows=64))
    row = (table.long()[:, None] * 64 +
           torch.arange(64, device="cuda")).flatten()
    kd = keys.double()[row]
    ref = torch.stack([
        (w[r].double()[:, None] * torch.relu(q8[r].double() @ kd.T)).sum(0)
        for r in range(rows)]) * kscale.double()[row]
    rel = float((score.double() - ref).norm() / ref.norm())
    lists = torch.full((rows, k), -1, device="cuda", dtype=torch.int32)
    count = torch.zeros_like(zero)
    call(lib.dcpg_select, Select(
        score=score.data_ptr(), hist=hist.data_ptr(), table=table.data_ptr(),
        table_at=zero.data_ptr(), len=lens.data_ptr(), list=lists.data_ptr(),
        count=count.data_ptr(), rows=rows, stride=length, max_len=length,
        list_stride=k, page_rows=64, k=k, rank=0, ranks=1))
    same = True
    for r in range(rows):
        best = torch.sort(score[r], descending=True, stable=True).indices[:k]
        want = row[best.sort().values].int()
        same &= int(count[r]) == k and bool((lists[r] == want).all())
    verdict(rel < 2e-3 and same,
            f"index H={heads} rows={rows} L={length}: rel {rel:.1e}, "
            f"top-{k} {'equal' if same else 'DIFFERS'}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    lib = ctypes.CDLL(sys.argv[1])
    torch.zeros(1, device="cuda")
    if lib.dcpg_init() != 0:
        sys.exit("dcpg_init failed")
    gen = torch.Generator("cuda").manual_seed(torch.seed() % 2**31)
    for heads in (8, 16, 32, 64, 128):
        for rows, keys in ((1, 2048), (9, 512)):
            check_attend(lib, gen, heads, rows, keys)
    for heads in (32, 64):
        for rows, length in ((1, 131072), (6, 8192)):
            check_index(lib, gen, heads, rows, length, 2048)
    print(f"torch_check: {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
