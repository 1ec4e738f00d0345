// Products of a packed Q8_0 matrix with 1 to 8 activation rows.
#include "matvec.hpp"
using namespace ns;

// y[m][row] (+)= W x_m for m < the number in the name; work-groups of 64, see matvec.hpp.
// arc: load16, dp4a
NS_SILO_MATVEC(matvec_q8_0, FormatQ8_0, 1)
NS_SILO_MATVEC(matvec_q8_0, FormatQ8_0, 3)
NS_SILO_MATVEC(matvec_q8_0, FormatQ8_0, 8)
#ifdef NS_GPU // the cpu variant, which is for tests, does with three of them
// The same for the other numbers of rows.
// arc: load16, dp4a
NS_SILO_MATVEC(matvec_q8_0, FormatQ8_0, 2)
NS_SILO_MATVEC(matvec_q8_0, FormatQ8_0, 4)
NS_SILO_MATVEC(matvec_q8_0, FormatQ8_0, 5)
NS_SILO_MATVEC(matvec_q8_0, FormatQ8_0, 6)
NS_SILO_MATVEC(matvec_q8_0, FormatQ8_0, 7)
#endif
