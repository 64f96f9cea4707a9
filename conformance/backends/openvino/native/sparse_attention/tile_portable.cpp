#include "../common/simd_portable.hpp"

#include "tile.hpp"

void qsa::attention::tile_portable(const Tile& tile, ElementType type) { compute(tile, type); }
