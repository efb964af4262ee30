// The border between the caller's arrays [N, T, P] and the recursions' rows of sequences, by frame and active pdf.
//
//   read_frames         scores -> probabilities of one kind of number; decides from the data which kind a sequence needs.
//   write_occupancies   gamma of the pairs -> occupancies, equations (7) and (12).
//
// Both read and write neighbours together on either side: read_frames turns tiles of 32 by 32 in shared memory.

#include "elements.cuh"
#include "storage.cuh"

#ifndef OUT
#define OUT float
#endif

namespace fsachain {

static const int kTile = 32;
static const int kTileFrames = kTile / kSequences;  // a tile's rows: so many frames of a group's sequences
static const int kReaders = THREADS / 32;           // warps of a block that reads frames
static const int kOwnRows = kTile / kReaders;       // of a warp

// What the scores of one frame of one sequence need; joined over the lanes of a warp.
struct Extent {
  double largest;
  float magnitude;  // of |score|, in powers of two
  bool legal;

  DEVICE void join(double other_largest, float other_magnitude, bool other_legal) {
    largest = max(largest, other_largest);
    magnitude = max(magnitude, other_magnitude);
    legal = legal && other_legal;
  }
};

template <typename Real>
DEVICE Extent extent_of(const Elements& scores, const ELEMENT* row, const int* pdfs, int columns) {
  const double nothing = -static_cast<double>(infinity());
  Extent extent = {nothing, 0.0f, true};
  for (int i = lane_of_warp(); i < columns; i += 32) {
    const Real y = number_of(scores.at(row, pdfs[i]));
    const bool finite = y - y == Real(0);
    extent.join(finite ? static_cast<double>(y) : nothing, finite ? static_cast<float>(fabs(y)) * 1.4426950f : 0.0f,
                finite || y < Real(0));
  }
  for (int lanes = 16; lanes > 0; lanes /= 2)
    extent.join(__shfl_xor_sync(0xffffffffu, extent.largest, lanes), __shfl_xor_sync(0xffffffffu, extent.magnitude, lanes),
                __shfl_xor_sync(0xffffffffu, static_cast<int>(extent.legal), lanes) != 0);
  return extent;
}

// exp(y) = m 2^e, m in [0.7, 1.5]: the rest of y beside e log 2 is exact to 2^-26 for any |e| < 2^23.
DEVICE Wide::Value wide_exp(float y) {
  if (y == -infinity()) return Wide::zero();
  const float e = rintf(y * 1.44269504f);
  const float rest = fmaf(-e, -1.90465421e-9f, fmaf(-e, 0.693147182f, y));
  return Wide::normalize(Wide::make(expf(rest), static_cast<int>(e)));
}

#if KIND == 0
// Plain probabilities are taken relative to a power of two near the frame's largest.
DEVICE double offset_of(double largest) { return largest == -infinity() ? 0 : wide_exp(static_cast<float>(largest)).e; }
DEVICE Value probability(double y, double offset) {
  const Wide::Value x = wide_exp(static_cast<float>(y));
  return x.m * power_of_two(max(x.e - static_cast<int>(offset), -127));
}
#elif KIND == 2
DEVICE double offset_of(double largest) { return largest == -infinity() ? 0.0 : largest; }
DEVICE Value probability(double y, double offset) { return y - offset; }
#endif

#if KIND == 1
// What a warp has seen of a row, beside its probabilities: they need no offset, so that scores are read once.
struct Seen {
  float limit;      // of |score|, in powers of two
  float magnitude;  // likewise; infinite where a score is illegal, which no finite one gets

  DEVICE Value probability(float y) {
    const bool is_finite = y - y == 0.0f;
    const float own = is_finite ? fminf(fabsf(y) * 1.4426950f, 3.4e38f) : y < 0.0f ? 0.0f : infinity();
    magnitude = fmaxf(magnitude, own);
    return own <= limit ? wide_exp(y) : Wide::zero();
  }
};
#endif

// Powers of two that a sequence of so many frames may gain or lose in one, so that no wide product comes near Wide::kZero.
DEVICE float max_growth(int frames, long long table_growth) {
  const float budget = static_cast<float>(1 << 27) / static_cast<float>(frames + 2);
  return min(budget - static_cast<float>(table_growth), 8388608.0f);
}

}  // namespace fsachain

// A block for a group and kTileFrames frames. `offsets` [T, lanes]: what was taken off the scores of a frame. `kinds` [N] is
// raised to 2 for scores that wide numbers do not hold and to 3 for illegal ones; a maximum does not depend on the order.
ENTRY read_frames(const long long* groups, const int* pdfs, const int* sequences, const int* lengths, int* kinds,
                  const ELEMENT* first, long long by_sequence, long long by_frame, long long by_pdf,
                  fsachain::Value* probs, double* offsets, int num_lanes, int begin, int end) {
  using namespace fsachain;
  const int tiles = (end - begin + kTileFrames - 1) / kTileFrames;
  const long long index = blockIdx.x / tiles;
  const int first_frame = begin + static_cast<int>(blockIdx.x % tiles) * kTileFrames;
  const long long* group = groups + index * kGroupFields;
  const int columns = static_cast<int>(group[kColumns]);
  const Elements scores = {first, by_sequence, by_frame, by_pdf};
  pdfs += group[kFirstColumn];

  unsigned char* free = shared_memory;
  [[maybe_unused]] double* row_offset = take<double>(free, kTile);
  int* row_number = take<int>(free, kTile);  // the sequence, or -1 where there is nothing to read
  Value* tile = take<Value>(free, kTile * (kTile + 1));
  bool any = false;
  if (threadIdx.x < kTile) {
    const int row = threadIdx.x, frame = first_frame + row / kSequences;
    const long long lane = index * kSequences + row % kSequences;
    const int n = sequences[lane];
    const bool runs = n >= 0 && atomicAdd(kinds + n, 0) == KIND;
    any = runs;
    row_number[row] = runs && frame < min(end, lengths[lane]) ? n : -1;
  }
  if (!__syncthreads_or(any)) return;

#if KIND == 1
  Seen seen[kOwnRows];
  for (int k = 0; k < kOwnRows; ++k) {
    const int row = warp_of_block() + k * kReaders;
    seen[k] = {max_growth(max(lengths[index * kSequences + row % kSequences], 0), group[kGrowth]), 0.0f};
  }
#else
  for (int row = warp_of_block(); row < kTile; row += kReaders) {
    const int n = row_number[row], frame = first_frame + row / kSequences;
    const long long lane = index * kSequences + row % kSequences;
    double offset = 0.0;
    if (n >= 0) {
      const Extent extent = extent_of<decltype(number_of(ELEMENT()))>(scores, scores.row(n, frame), pdfs, columns);
      offset = offset_of(extent.legal ? extent.largest : 0.0);
      if (lane_of_warp() == 0) {
        offsets[static_cast<long long>(frame) * num_lanes + lane] = offset;
        const bool too_wide = KIND < 2 && !(extent.magnitude <= max_growth(lengths[lane], group[kGrowth]));
        if (!extent.legal || too_wide) {
          atomicMax(kinds + n, extent.legal ? 2 : 3);
          row_number[row] = -1;
        }
      }
    }
    if (lane_of_warp() == 0) row_offset[row] = offset;
  }
#endif

  Value* to = probs + group[kProbs] + static_cast<long long>(first_frame - begin) * columns * kSequences;
  const long long frames = min(kTileFrames, end - first_frame);
  for (int c = 0; c < columns; c += kTile) {
    __syncthreads();
    const int width = min(kTile, columns - c);
#pragma unroll
    for (int k = 0; k < kOwnRows; ++k) {
      const int row = warp_of_block() + k * kReaders, n = row_number[row], i = lane_of_warp();
      if (i >= width) continue;
      Value value = Number::zero();
      if (n >= 0) {
        const auto y = number_of(scores.at(scores.row(n, first_frame + row / kSequences), pdfs[c + i]));
#if KIND == 1
        value = seen[k].probability(y);
#else
        value = probability(y, row_offset[row]);
#endif
      }
      tile[row * (kTile + 1) + i] = value;
    }
    __syncthreads();
    const int block = width * kSequences;
    for (int i = threadIdx.x; i < frames * block; i += blockDim.x) {
      const int frame = i / block, rest = i % block, column = rest / kSequences, lane = rest % kSequences;
      to[static_cast<long long>(frame) * columns * kSequences + static_cast<long long>(c) * kSequences + rest] =
          tile[(frame * kSequences + lane) * (kTile + 1) + column];
    }
  }
#if KIND == 1
  for (int k = 0; k < kOwnRows; ++k) {
    const int row = warp_of_block() + k * kReaders, n = row_number[row], frame = first_frame + row / kSequences;
    float magnitude = seen[k].magnitude;
    for (int lanes = 16; lanes > 0; lanes /= 2) magnitude = fmaxf(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, lanes));
    if (n < 0 || lane_of_warp() > 0) continue;
    offsets[static_cast<long long>(frame) * num_lanes + index * kSequences + row % kSequences] = 0.0;
    if (magnitude > seen[k].limit) atomicMax(kinds + n, magnitude == infinity() ? 3 : 2);
  }
#endif
}

// Adds weights[n] (null: ones) x occupancy to out [N, T, P]. 32 threads for each sequence of a group; block b of the
// group's `blocks` has the frames begin + b, begin + b + blocks, .... Thread i of a sequence has its pairs i, i + 32, ... for
// the sum (11) and its columns i, i + 32, ... . new_pdfs: 0, or P where rows hold anything and are written whole. lists [N][2 + P]: not null where
// values stand packed, column by column, for `spread_rows`; of each sequence how many columns, how many frames, and the columns'
// pdfs; without occupancies no column.
extern "C" __global__ void __launch_bounds__(1024, 1)
write_occupancies(const long long* groups, const int* pdfs, const int* pairs_by_column, const int* column_ends,
                  const int* sequences, const int* lengths, const int* kinds, const unsigned char* ok,
                  const double* weights, const fsachain::Value* history, OUT* out, long long by_sequence,
                  long long by_frame, long long by_pdf, int begin, int end, int blocks, long long new_pdfs,
                  int* lists) {
  using namespace fsachain;
  const long long index = blockIdx.x / blocks;
  const long long* group = groups + index * kGroupFields;
  const int at = threadIdx.x % kSequences, worker = threadIdx.x / kSequences;
  const long long lane = index * kSequences + at;
  const int n = sequences[lane];
  const double weight = n >= 0 && weights ? weights[n] : 1.0;
  const bool is_concerned = n >= 0 && kinds[n] == KIND && ok[n] && weight != 0.0;
  const bool is_last_kind = n >= 0 && (kinds[n] == KIND || kinds[n] > 2);
  const int length = is_concerned ? min(end, lengths[lane]) : begin;

  pdfs += group[kFirstColumn];
  column_ends += group[kFirstColumn];
  pairs_by_column += group[kFirstPairRow];
  const int columns = static_cast<int>(group[kColumns]);
  const int count = columns == 0 ? 0 : column_ends[columns - 1];
  const bool is_packed = lists != nullptr;
  if (is_packed && is_last_kind && blockIdx.x % blocks == 0) {
    int* list = lists + n * (2 + new_pdfs);
    if (worker == 0) list[0] = is_concerned ? columns : 0;
    if (worker == 0) list[1] = lengths[lane];
    for (int c = worker; is_concerned && c < columns; c += kTile) list[2 + c] = pdfs[c];
  }
  unsigned char* free = shared_memory;
  Value* sums = take<Value>(free, kTile * kSequences);

  for (int frame = begin + static_cast<int>(blockIdx.x % blocks); frame < end; frame += blocks) {
    const bool runs = frame < length;
    if (!__syncthreads_or(runs)) return;  // as in every later frame
    const Value* gamma = history + group[kHistory] + (frame - begin) * group[kPairs] * kSequences + at;
    OUT* row = out + n * by_sequence + frame * by_frame;
    if (runs && !is_packed)
      for (long long p = worker; p < new_pdfs; p += kTile) row[p * by_pdf] = OUT(0);
    Value sum = Number::zero();
    if (runs)
      for (int i = worker; i < count; i += kTile)
        sum = Number::normalize(Number::sum(sum, gamma[static_cast<long long>(pairs_by_column[i]) * kSequences]));
    sums[threadIdx.x] = sum;
    for (int half = kTile / 2; half > 0; half /= 2) {
      __syncthreads();
      if (worker < half)
        sums[threadIdx.x] = Number::normalize(Number::sum(sums[threadIdx.x], sums[threadIdx.x + half * kSequences]));
    }
    __syncthreads();
    const Value total = sums[at];
    const bool is_empty = Number::is_zero(total);
    if (!runs || (is_empty && !is_packed)) continue;
    for (int c = worker; c < columns; c += kTile) {
      Value occupied = Number::zero();
      for (int i = c == 0 ? 0 : column_ends[c - 1]; i < column_ends[c]; ++i)
        occupied = Number::normalize(
            Number::sum(occupied, gamma[static_cast<long long>(pairs_by_column[i]) * kSequences]));
      OUT* element = row + (is_packed ? c : pdfs[c]) * by_pdf;
      const double there = new_pdfs ? 0.0 : static_cast<double>(*element);
      *element = static_cast<OUT>(fma(weight, is_empty ? 0.0 : Number::ratio(occupied, total), there));
    }
  }
}
