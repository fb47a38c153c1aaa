// The type check by clang's OpenCL C++ mode: address spaces are its own qualifiers, nothing is ever run.

#define MSL_STRICT 1
#define MSL_SITE
#define MSL_HERE
#define half msl_half
// Words OpenCL reserves and Metal does not.
#define local msl_local
#define global msl_global
#define generic msl_generic
#define pipe msl_pipe
#define read_only msl_read_only
#define write_only msl_write_only
#define read_write msl_read_write
