#include "../common/simd_avx2.hpp"

#include "block_kernel.hpp"

void qsa::blocks_avx2(const Blocks& blocks, ElementType type) { compute(blocks, type); }
