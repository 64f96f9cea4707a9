#include "../common/simd_avx512.hpp"

#include "tile.hpp"

void qsa::attention::tile_avx512(const Tile& tile, ElementType type) { compute(tile, type); }
