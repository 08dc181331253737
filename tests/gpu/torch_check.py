#!/usr/bin/env python3
"""A second opinion on the CUDA kernels, from PyTorch on the same GPU.

    torch_check.py LIBDCPG

Dequantises, multiplies and selects in float64 with torch's own operators and
compares with what the library's C entry points gave for the same tensors.
"""
import ctypes
import sys

import torch

FP8 = torch.float8_e4m3fn
VP, U32, F32, BOOL = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_float,
                      ctypes.c_bool)
failed = 0


class Attend(ctypes.Structure):
    _fields_ = [("q", VP), ("pool", VP), ("list", VP), ("count", VP),
                ("out", VP), ("lse", VP), ("to", VP), ("parts", U32),
                ("self", U32), ("rows", U32), ("heads", U32), ("list_stride", U32),
                ("max_count", U32),
                ("kv", ctypes.c_int), ("out_f32", BOOL), ("scale", F32),
                ("shape", U32), ("splits", U32), ("team", U32)]


class Score(ctypes.Structure):
    _fields_ = [("q8", VP), ("w", VP), ("keys", VP), ("kscale", VP),
                ("table", VP), ("table_at", VP), ("len", VP), ("score", VP),
                ("hist", VP), ("rows", U32), ("heads", U32), ("stride", U32),
                ("max_len", U32), ("page_rows", U32),
                ("clear", VP)]


class Select(ctypes.Structure):
    _fields_ = [("score", VP), ("hist", VP), ("table", VP), ("table_at", VP),
                ("len", VP), ("list", VP), ("count", VP), ("rows", U32),
                ("stride", U32), ("max_len", U32), ("list_stride", U32),
                ("page_rows", U32), ("k", U32), ("rank", U32), ("ranks", U32),
                ("clear", VP),
                ("more_ranks", ctypes.c_char * 4096)]   # unused at D = 1


def verdict(ok, what):
    global failed
    failed += not ok
    print("ok  " if ok else "FAIL", what)


def call(f, args):
    rc = f(ctypes.byref(args), VP(torch.cuda.current_stream().cuda_stream))
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
    a = Attend(q.data_ptr(), pool.data_ptr(), lists.data_ptr(),
               count.data_ptr(), out.data_ptr(), lse.data_ptr(), None, 0, 0,
               rows, heads, keys, keys, 2, False, 0.07, 0, 0)
    call(lib.dcpg_attend, a)
    worst = lse_err = 0.0
    for r in range(rows):
        kv = value[lists[r, :count[r]].long()]
        s = q[r].double() @ kv.T * 0.07
        ref = torch.softmax(s, -1) @ kv[:, :512]
        worst = max(worst, float((out[r].double() - ref).norm() / ref.norm()))
        lse_err = max(lse_err, float(
            (lse[r].double() - torch.logsumexp(s, -1)).abs().max()))
    verdict(worst < 4e-3 and lse_err < 1e-3,
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
    hist = torch.zeros(rows, 2048, device="cuda", dtype=torch.int32)
    zero = torch.zeros(rows, device="cuda", dtype=torch.int32)
    lens = torch.full_like(zero, length)
    call(lib.dcpg_index_score, Score(
        q8.data_ptr(), w.data_ptr(), keys.data_ptr(), kscale.data_ptr(),
        table.data_ptr(), zero.data_ptr(), lens.data_ptr(), score.data_ptr(),
        hist.data_ptr(), rows, heads, length, length, 64))
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
        score.data_ptr(), hist.data_ptr(), table.data_ptr(), zero.data_ptr(),
        lens.data_ptr(), lists.data_ptr(), count.data_ptr(), rows, length,
        length, k, 64, k, 0, 1, None))
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
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
