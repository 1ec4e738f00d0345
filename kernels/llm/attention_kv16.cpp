// Attention over a cache of halves.
#include "ns/attention_kernels.hpp"
using namespace ns;

ATTENTION(kv16, f16)
