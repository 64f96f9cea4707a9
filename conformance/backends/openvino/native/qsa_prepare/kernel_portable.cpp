#include "../common/simd_portable.hpp"

#include "block_kernel.hpp"

void qsa::blocks_portable(const Blocks& blocks, ElementType type) { compute(blocks, type); }
