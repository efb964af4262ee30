// Passes over whole arrays [N, T, P], of which each element is read or written once.
//
// Block (c, n) works on frames ROWS c .. ROWS c + ROWS - 1 of sequence n, a warp on a frame, its lanes along the pdfs. No
// shared memory, no barrier.

#include "elements.cuh"

#ifndef OUT
#define OUT float
#endif
#ifndef ROWS
#define ROWS 32
#endif

// values times factors [N], in the type of another array: what is 0 stays 0 whatever its factor, so that a sequence that left
// its loss keeps a gradient of 0 where its factor is infinite or NaN.
extern "C" __global__ void __launch_bounds__(256)
    scale_rows(const ELEMENT* values, long long by_sequence, long long by_frame, long long by_pdf, long long num_frames,
               long long num_pdfs, const double* factors, OUT* out, long long out_by_sequence, long long out_by_frame,
               long long out_by_pdf) {
  using namespace fsachain;
  const int kTogether = 4;  // loads of a lane that are under way at the same time
  const long long n = blockIdx.y, first = static_cast<long long>(blockIdx.x) * ROWS;
  const long long last = num_frames < first + ROWS ? num_frames : first + ROWS;
  const ELEMENT factor = static_cast<ELEMENT>(factors[n]);
  for (long long t = first + threadIdx.x / 32; t < last; t += blockDim.x / 32) {
    const ELEMENT* row = values + n * by_sequence + t * by_frame;
    OUT* into = out + n * out_by_sequence + t * out_by_frame;
    for (long long begin = threadIdx.x % 32; begin < num_pdfs; begin += 32 * kTogether) {
      ELEMENT held[kTogether];
#pragma unroll
      for (int r = 0; r < kTogether; ++r)
        if (begin + 32 * r < num_pdfs) held[r] = row[(begin + 32 * r) * by_pdf];
#pragma unroll
      for (int r = 0; r < kTogether; ++r) {
        const long long p = begin + 32 * r;
        if (p < num_pdfs) put(into + p * out_by_pdf, held[r] == ELEMENT(0) ? ELEMENT(0) : held[r] * factor);
      }
    }
  }
}

// Zeros where `write_occupancies` writes nothing: behind a sequence's length, and in all of a sequence that is not ok or has no
// weight.
extern "C" __global__ void __launch_bounds__(256)
    clear_rows(OUT* out, long long by_sequence, long long by_frame, long long by_pdf, long long num_frames,
               long long num_pdfs, const long long* lengths, const unsigned char* ok, const double* weights) {
  using namespace fsachain;
  const long long n = blockIdx.y, first = static_cast<long long>(blockIdx.x) * ROWS;
  const long long last = num_frames < first + ROWS ? num_frames : first + ROWS;
  const long long written = ok[n] && weights[n] != 0.0 ? lengths[n] : 0;
  for (long long t = first + threadIdx.x / 32; t < last; t += blockDim.x / 32) {
    if (t < written) continue;
    OUT* row = out + n * by_sequence + t * by_frame;
    for (long long p = threadIdx.x % 32; p < num_pdfs; p += 32) put(row + p * by_pdf, 0.0f);
  }
}
