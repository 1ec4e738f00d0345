// Attention over a cache of singles.
#include "ns/attention_kernels.hpp"
using namespace ns;

ATTENTION(kv32, f32)
