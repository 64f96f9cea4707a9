#include "../common/simd_avx512.hpp"

#include "products_avx512_bf16.hpp"
#include "tile.hpp"

const qsa::attention::Code qsa::attention::code_avx512_bf16{compute_tile, finish_head};
