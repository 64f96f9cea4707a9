#include "../common/simd_avx512.hpp"

#include "tile.hpp"

void qsa::indexer::tile_avx512(const Tile& tile, ElementType type) { compute(tile, type); }
