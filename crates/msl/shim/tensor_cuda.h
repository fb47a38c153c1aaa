// tensor_cuda
