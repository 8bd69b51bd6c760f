"""Triton kernels, each as an operator of torch. Import only where Triton is there."""
