#include "../common/simd_portable.hpp"

#include "tile.hpp"

void qsa::indexer::tile_portable(const Tile& tile, ElementType type) { compute(tile, type); }
