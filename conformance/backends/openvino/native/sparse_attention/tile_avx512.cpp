#include "../common/simd_avx512.hpp"

#include "tile.hpp"

const qsa::attention::Code qsa::attention::code_avx512{compute_tile, finish_head};
