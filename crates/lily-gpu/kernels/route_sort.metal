// Prefill: stable counting sort of the (row, slot) pairs by expert, and the tiles of the grouped products. One threadgroup
// an expert looks through all pairs, twice: it counts its own in one dispatch and places them in the next, when the counts
// of the experts before it are known. No atomics, so the order is the same every time.

#define SORT_SIMDS 8

// The part of the pairs that a simdgroup looks through: consecutive, so that the order is kept.
inline uint sort_part(uint pairs) { return (pairs + SORT_SIMDS * 32 - 1) / (SORT_SIMDS * 32) * 32; }

// Pairs of `expert` in this simdgroup's part.
inline int sort_count(device const uint *experts, uint expert, uint pairs, uint simd, uint lane) {
    uint part = sort_part(pairs);
    int count = 0;
    for (uint i = simd * part + lane; i < min((simd + 1) * part, pairs); i += 32) {
        count += experts[i] == expert ? 1 : 0;
    }
    return simd_sum(count);
}

kernel void route_count(
    device const uint *experts [[buffer(0)]],
    constant Step &step [[buffer(1)]],
    device uint *counts [[buffer(2)]],
    POSITIONS) {
    threadgroup int parts[SORT_SIMDS];
    int count = sort_count(experts, group.x, step.rows * TOP_K, simd, lane);
    if (lane == 0) {
        parts[simd] = count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index == 0) {
        int total = 0;
        for (int s = 0; s < SORT_SIMDS; s++) {
            total += parts[s];
        }
        counts[group.x] = uint(total);
    }
}

// tiles[0].x is the number of tiles; tiles[1 ..] = (expert, first place in `order`, rows, 0).
template <int TILE_ROWS>
kernel void route_place(
    device const uint *experts [[buffer(0)]],
    device const uint *counts [[buffer(1)]],
    constant Step &step [[buffer(2)]],
    device uint *offsets [[buffer(3)]],
    device uint *order [[buffer(4)]],
    device uint4 *tiles [[buffer(5)]],
    POSITIONS) {
    threadgroup int parts[SORT_SIMDS];
    uint expert = group.x;
    uint pairs = step.rows * TOP_K;
    int before = 0;
    int tiles_before = 0;
    for (uint e = lane; e < expert; e += 32) {
        int count = int(counts[e]);
        before += count;
        tiles_before += (count + TILE_ROWS - 1) / TILE_ROWS;
    }
    before = simd_sum(before);
    tiles_before = simd_sum(tiles_before);
    int mine = int(counts[expert]);
    int my_tiles = (mine + TILE_ROWS - 1) / TILE_ROWS;
    for (uint t = thread_index; t < uint(my_tiles); t += 32 * SORT_SIMDS) {
        uint done = t * TILE_ROWS;
        tiles[1 + uint(tiles_before) + t] =
            uint4(expert, uint(before) + done, min(uint(TILE_ROWS), uint(mine) - done), 0u);
    }
    if (thread_index == 0) {
        offsets[expert] = uint(before);
        if (expert == EXPERTS - 1) {
            offsets[EXPERTS] = uint(before + mine);
            tiles[0] = uint4(uint(tiles_before + my_tiles), 0u, 0u, 0u);
        }
    }
    int count = sort_count(experts, expert, pairs, simd, lane);
    if (lane == 0) {
        parts[simd] = count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    int place = before;
    for (uint s = 0; s < simd; s++) {
        place += parts[s];
    }
    uint part = sort_part(pairs);
    for (uint base = simd * part; base < min((simd + 1) * part, pairs); base += 32) {
        int match = 0;
        if (base + lane < pairs) {
            match = experts[base + lane] == expert ? 1 : 0;
        }
        int rank = simd_prefix_exclusive_sum(match);
        if (match != 0) {
            order[place + rank] = base + lane;
        }
        place += simd_sum(match);
    }
}

INSTANTIATE("route_place_32", route_place<32>)
INSTANTIATE("route_place_64", route_place<64>)
