// tensor_host
