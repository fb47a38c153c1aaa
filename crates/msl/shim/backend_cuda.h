// backend_cuda
