#include "../common/simd_avx512.hpp"

#include "block_kernel.hpp"

void qsa::blocks_avx512(const Blocks& blocks, ElementType type) { compute(blocks, type); }
