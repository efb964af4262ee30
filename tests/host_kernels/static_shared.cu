extern "C" __global__ void static_shared(int* out) {
  __shared__ int values[32];
  values[threadIdx.x] = 1;
  out[threadIdx.x] = values[threadIdx.x];
}
