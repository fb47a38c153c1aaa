// matrix_cuda
