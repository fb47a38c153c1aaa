// tensor
