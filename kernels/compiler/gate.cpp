#include "commands.hpp"
namespace nskc { int gate(const GateOptions &) { fail("not yet"); } }
