#include "../common/simd_portable.hpp"

#include "tile.hpp"

const qsa::attention::Code qsa::attention::code_portable{compute_tile, finish_head};
