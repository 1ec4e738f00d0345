// Products of a packed Q4_K matrix with 1 to 8 activation rows.
#include "matvec.hpp"
using namespace ns;

// y[m][row] (+)= W x_m for m < the number in the name; work-groups of 64, see matvec.hpp.
// arc: load16, dp4a
NS_SILO_MATVEC(matvec_q4_k, FormatQ4_K, 1)
NS_SILO_MATVEC(matvec_q4_k, FormatQ4_K, 3)
NS_SILO_MATVEC(matvec_q4_k, FormatQ4_K, 8)
#ifdef NS_GPU // the cpu variant, which is for tests, does with three of them
// The same for the other numbers of rows.
// arc: load16, dp4a
NS_SILO_MATVEC(matvec_q4_k, FormatQ4_K, 2)
NS_SILO_MATVEC(matvec_q4_k, FormatQ4_K, 4)
NS_SILO_MATVEC(matvec_q4_k, FormatQ4_K, 5)
NS_SILO_MATVEC(matvec_q4_k, FormatQ4_K, 6)
NS_SILO_MATVEC(matvec_q4_k, FormatQ4_K, 7)
#endif
