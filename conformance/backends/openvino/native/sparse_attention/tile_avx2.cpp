#include "../common/simd_avx2.hpp"

#include "tile.hpp"

const qsa::attention::Code qsa::attention::code_avx2{compute_tile, finish_head};
