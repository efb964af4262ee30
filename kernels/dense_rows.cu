// Passes over whole arrays [N, T, P], of which each element is read or written once.
//
// Block (n, c) works on frames ROWS c .. ROWS c + ROWS - 1 of sequence n, a warp on a frame, its lanes along the pdfs. No
// barrier but those of a warp.
//
// Shared memory, of `spread_rows` alone: ELEMENT tile[blockDim.x / 32][TILE].

#include "elements.cuh"

#ifndef OUT
#define OUT float
#endif
#ifndef ROWS
#define ROWS 32
#endif
#ifndef TILE
#define TILE 512  // pdfs of a warp's part of a row
#endif

extern __shared__ __align__(16) unsigned char shared_memory[];

namespace fsachain {

// What is 0 stays 0 whatever its factor, so that a sequence that left its loss keeps a gradient of 0 where its factor is
// infinite or NaN.
__device__ __forceinline__ ELEMENT scaled(ELEMENT value, ELEMENT factor) {
  return value == ELEMENT(0) ? ELEMENT(0) : value * factor;
}

}  // namespace fsachain

// values times factors [N], factor_step apart, in the type of `out`, which may be the same array; of that a factor of 1, as most
// losses have, changes nothing.
extern "C" __global__ void __launch_bounds__(256)
    scale_rows(const ELEMENT* values, long long by_sequence, long long by_frame, long long by_pdf, long long num_frames,
               long long num_pdfs, const double* factors, long long factor_step, OUT* out, long long out_by_sequence,
               long long out_by_frame, long long out_by_pdf) {
  using namespace fsachain;
  const int kTogether = 4;  // loads of a lane that are under way at the same time
  const long long n = blockIdx.x, first = static_cast<long long>(blockIdx.y) * ROWS;
  const long long last = num_frames < first + ROWS ? num_frames : first + ROWS;
  const ELEMENT factor = static_cast<ELEMENT>(factors[n * factor_step]);
  if (factor == ELEMENT(1) && static_cast<const void*>(values) == static_cast<const void*>(out)) return;
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
        if (p < num_pdfs) put(into + p * out_by_pdf, scaled(held[r], factor));
      }
    }
  }
}

// The same of rows as `write_occupancies` packs them, of which `lists` tells the pdfs, ascending: each row of `out` is written
// once, zeros included. Where `out` is the same array, a row's tiles from the last to the first do not overwrite what is to
// come: the value for pdf p stands at p or before it.
extern "C" __global__ void __launch_bounds__(256)
    spread_rows(const ELEMENT* values, long long by_sequence, long long by_frame, long long by_pdf, long long num_frames,
                long long num_pdfs, const int* lists, const double* factors, long long factor_step, OUT* out,
                long long out_by_sequence, long long out_by_frame, long long out_by_pdf) {
  using namespace fsachain;
  const int lane = threadIdx.x % 32, first = static_cast<int>(blockIdx.y) * ROWS;  // below 2^21
  const int last = num_frames < first + ROWS ? static_cast<int>(num_frames) : first + ROWS;
  const long long n = blockIdx.x;
  const int* pdfs = lists + n * (2 + num_pdfs) + 2;
  const int columns = pdfs[-2], length = pdfs[-1];
  const ELEMENT factor = static_cast<ELEMENT>(factors[n * factor_step]);
  ELEMENT* tile = reinterpret_cast<ELEMENT*>(shared_memory) + threadIdx.x / 32 * TILE;
  for (int t = first + threadIdx.x / 32; t < last; t += blockDim.x / 32) {
    const ELEMENT* row = values + n * by_sequence + t * by_frame;
    OUT* into = out + n * out_by_sequence + t * out_by_frame;
    int left = t < length ? columns : 0;
    for (long long begin = (num_pdfs - 1) / TILE * TILE; begin >= 0; begin -= TILE) {
      for (int i = lane; i < TILE; i += 32) tile[i] = 0;
      __syncwarp();
      for (int found = 32; found == 32; left -= found) {
        const int c = left - 1 - lane;
        const bool is_here = c >= 0 && pdfs[c] >= begin;
        if (is_here) tile[pdfs[c] - begin] = scaled(row[c * by_pdf], factor);
        found = __popc(__ballot_sync(0xffffffffu, is_here));
      }
      __syncwarp();
      for (int i = lane; i < TILE && begin + i < num_pdfs; i += 32) put(into + (begin + i) * out_by_pdf, tile[i]);
      __syncwarp();
    }
  }
}

// Zeros where `write_occupancies` writes nothing: behind a sequence's length, and in all of a sequence that is not ok or has no
// weight. `lengths` and `weights` may be null: all of the sequences that are not ok.
extern "C" __global__ void __launch_bounds__(256)
    clear_rows(OUT* out, long long by_sequence, long long by_frame, long long by_pdf, long long num_frames,
               long long num_pdfs, const long long* lengths, const unsigned char* ok, const double* weights) {
  using namespace fsachain;
  const long long n = blockIdx.x, first = static_cast<long long>(blockIdx.y) * ROWS;
  const long long last = num_frames < first + ROWS ? num_frames : first + ROWS;
  const bool has_values = ok[n] && (weights == nullptr || weights[n] != 0.0);
  const long long written = !has_values ? 0 : lengths == nullptr ? num_frames : lengths[n];
  for (long long t = first + threadIdx.x / 32; t < last; t += blockDim.x / 32) {
    if (t < written) continue;
    OUT* row = out + n * by_sequence + t * by_frame;
    for (long long p = threadIdx.x % 32; p < num_pdfs; p += 32) put(row + p * by_pdf, 0.0f);
  }
}
