"""Blocks of the cache, copied to where a dense kernel reads them."""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor

from kernels.cpu.number import EXACT, array, prange, use_threads

GRAIN_ELEMENTS = 65_536


def read_blocks(
    k_cache: Tensor, v_cache: Tensor, blocks: Tensor, ends: Tensor, skipped: int, num_keys: int
) -> tuple[Tensor, Tensor]:
    """Keys and values, each [num_seqs, num_keys, kv_heads, head_dim].

    Shapes: caches: [num_blocks, block_size, kv_heads, head_dim]; blocks: [num_seqs, num_read], int64; ends:
    [num_seqs], int64: rows from there on, counted from the first that is returned, are not the sequence's and come
    back as 0. The first `skipped` positions of the first block are left out. Bytes moved: both results in and out once.
    """
    block_size, kv_heads, width = k_cache.shape[1:]
    shape = (blocks.shape[0], num_keys, kv_heads, width)
    k, v = torch.empty(shape, dtype=k_cache.dtype), torch.empty(shape, dtype=v_cache.dtype)
    run = _parallel if use_threads(2 * k.numel(), GRAIN_ELEMENTS) else _serial
    flat = [array(x).reshape(x.shape[0], -1) for x in (k_cache, v_cache, k, v)]
    run(flat[0], flat[1], blocks.numpy(), ends.numpy(), skipped, block_size, kv_heads * width, flat[2], flat[3])
    return k, v


@njit(**EXACT)
def _serial(k_cache, v_cache, blocks, ends, skipped, block_size, width, k, v):
    for i in range(2 * k.shape[0]):
        if i % 2 == 0:
            _sequence(k_cache, blocks[i // 2], ends[i // 2], skipped, block_size, width, k[i // 2])
        else:
            _sequence(v_cache, blocks[i // 2], ends[i // 2], skipped, block_size, width, v[i // 2])


@njit(parallel=True, **EXACT)
def _parallel(k_cache, v_cache, blocks, ends, skipped, block_size, width, k, v):
    for i in prange(2 * k.shape[0]):
        if i % 2 == 0:
            _sequence(k_cache, blocks[i // 2], ends[i // 2], skipped, block_size, width, k[i // 2])
        else:
            _sequence(v_cache, blocks[i // 2], ends[i // 2], skipped, block_size, width, v[i // 2])


@njit(**EXACT)
def _sequence(cache, blocks, end, skipped, block_size, width, out):
    """`width` elements a position: whole blocks are copied as one run of memory."""
    end = min(end * width, out.shape[0])
    done, place = 0, skipped * width
    size = block_size * width
    while done < end:
        source = cache[blocks[place // size]]
        first = place % size
        count = min(size - first, end - done)
        source, target = source[first : first + count], out[done : done + count]
        for j in range(count):  # over views: an index that may be negative is not made vector code
            target[j] = source[j]
        done += count
        place += count
    foreign = out[end:]
    for j in range(foreign.shape[0]):
        foreign[j] = 0
