#include "commands.hpp"
namespace nskc { int library(const LibraryOptions &) { fail("not yet"); } }
