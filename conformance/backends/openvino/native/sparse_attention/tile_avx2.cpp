#include "../common/simd_avx2.hpp"

#include "tile.hpp"

void qsa::attention::tile_avx2(const Tile& tile, ElementType type) { compute(tile, type); }
