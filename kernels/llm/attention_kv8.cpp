// Attention over a cache of eight-bit values.
#include "ns/attention_kernels.hpp"
using namespace ns;

ATTENTION(kv8, i8)
