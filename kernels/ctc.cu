// CTC through the recursion for acceptors: what is different about each target is written into the scores.
//
// All targets of about one length share one acceptor (`fsachain/backends/cuda/ctc.py`): after a start state, blank 0, label 0,
// blank 1, label 1, ... and the last blank. Four columns of scores belong to position u,
//
//     4 u          the blank before label u: into it from itself and from label u - 1
//     4 u + 1      a further frame of label u
//     4 u + 2      label u from the blank before it
//     4 u + 3      label u from label u - 1, without a blank between
//
// and every state is final. The columns of sequence n hold the scores of its target, and -inf where it has no such arc: past
// its last label, where the topology (`fsachain/graph/ctc.py`) has none, and in its last frame everywhere but in its last
// label and last blank, so that exactly the paths of CTC have a score. No table is built, uploaded or waited for. Occupancies
// of the columns, equation (7) of fsachain/recursion.py, are subtracted from the softmax that `log_softmax.cu` has left in
// the gradient, or from 0 where the scores are log-probabilities already.
//
// Equal labels of a target are linked, and the first adds up for all: every element has one writer and every sum one order.
// Entries whose name ends in _rows take a warp for a frame, the others a block for a sequence.

#include "block_sum.cuh"
#include "elements.cuh"

#ifndef OUT
#define OUT float
#endif
#ifndef INTEGER
#define INTEGER long long
#endif

extern __shared__ __align__(16) unsigned char shared_memory[];

namespace fsachain {

enum Kind { kBlank, kFurther, kFromBlank, kFromLabel, kColumns };  // columns of a position

// The frame that this warp works on, counted over all sequences; -1 past the last. A whole warp has the same.
__device__ __forceinline__ long long row_of_warp(long long num_rows) {
  const long long row = static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  return row < num_rows ? row : -1;
}

}  // namespace fsachain

// labels [N][most] from targets, of which sequence n has target_lengths[n]; all in a row where by_sequence is -1.
// links [N][most]: 2 (v + 1) where v is the next position of the same label (-1: none), plus 1 at a label's first position.
// counts [N]: the labels of each target, -1 where one is the blank or no class.
extern "C" __global__ void __launch_bounds__(128)
    ctc_links(const INTEGER* targets, long long by_sequence, long long by_label, const long long* target_lengths,
              long long most, long long num_classes, long long blank, int* labels, int* links, long long* counts) {
  const long long n = blockIdx.x, count = target_lengths[n];
  const INTEGER* target = targets;
  if (by_sequence >= 0) {
    target += n * by_sequence;
  } else {
    for (long long m = 0; m < n; ++m) target += target_lengths[m] * by_label;
  }
  int* own_labels = labels + n * most;
  bool legal = true;
  for (long long u = threadIdx.x; u < count; u += blockDim.x) {
    const long long label = target[u * by_label];
    legal = legal && label >= 0 && label < num_classes && label != blank;
    own_labels[u] = static_cast<int>(label);
  }
  legal = __syncthreads_and(legal);
  if (threadIdx.x == 0) counts[n] = legal ? count : -1;
  for (long long u = threadIdx.x; u < count; u += blockDim.x) {
    const int label = own_labels[u];
    long long next = u + 1, before = 0;
    while (next < count && own_labels[next] != label) ++next;
    while (own_labels[before] != label) ++before;
    links[n * most + u] = static_cast<int>(next < count ? 2 * (next + 1) : 0) + (before == u);
  }
}

// columns [N][num_frames][width] of all real frames; `occupancy`, of the same shape or null, becomes 0 there. further and
// doubles: labels may last several frames; equal labels may follow one another without a blank. log_priors [C] (or null) are
// taken off; a label's first frame t gains delay_penalty ((T_n - 1) / 2 - t).
extern "C" __global__ void __launch_bounds__(256)
    ctc_column_rows(const ELEMENT* scores, long long by_sequence, long long by_frame, long long by_class,
                    long long num_sequences, long long num_frames, const long long* lengths, const int* labels,
                    const long long* counts, long long most, long long blank, long long width, int further, int doubles,
                    const double* log_priors, double delay_penalty, OUT* columns, OUT* occupancy) {
  using namespace fsachain;
  const long long index = row_of_warp(num_sequences * num_frames);
  if (index < 0) return;
  const long long n = index / num_frames, t = index % num_frames, count = counts[n];
  if (t >= lengths[n]) return;
  const bool is_last = t == lengths[n] - 1;
  const double early = delay_penalty * (0.5 * (lengths[n] - 1) - t);
  const ELEMENT* row = scores + n * by_sequence + t * by_frame;
  const int* own_labels = labels + n * most;
  for (long long k = threadIdx.x % 32; k < width; k += 32) {
    const long long u = k / kColumns;
    const int kind = static_cast<int>(k % kColumns);
    bool exists = kind == kBlank ? u <= count : u < count;
    if (is_last) exists = exists && (kind == kBlank ? u == count : u == count - 1);
    long long pdf = blank;
    if (exists && kind != kBlank) pdf = own_labels[u];
    if (kind == kFurther) exists = exists && further;
    if (exists && kind == kFromLabel) exists = u > 0 && (doubles || own_labels[u - 1] != pdf);
    OUT value = static_cast<OUT>(-infinity());
    if (exists) {
      value = static_cast<OUT>(number_of(row[pdf * by_class]));
      const double added = (kind >= kFromBlank ? early : 0.0) - (log_priors ? log_priors[pdf] : 0.0);
      if (added != 0.0) value = static_cast<OUT>(value + added);
    }
    columns[index * width + k] = value;
    if (occupancy) occupancy[index * width + k] = 0;
  }
}

// loss[n] = sum of log_sums (null: zeros) over the frames - log_prob[n], which the recursion made of the columns; NaN for an
// illegal target. Losses below 0 by no more than `rounding` for each frame and the end are 0: 0 for scores that are no
// probabilities. Without frames only the empty target has a path. Shared memory: double parts[blockDim.x / 32].
extern "C" __global__ void __launch_bounds__(256)
    ctc_loss(const double* log_sums, const double* log_prob, const long long* lengths, const long long* counts,
             long long num_frames, double rounding, double* loss) {
  using namespace fsachain;
  const long long n = blockIdx.x;
  double sum = 0.0;
  if (log_sums)
    for (long long t = threadIdx.x; t < lengths[n]; t += blockDim.x) sum += log_sums[n * num_frames + t];
  sum = block_sum(sum, reinterpret_cast<double*>(shared_memory));
  if (threadIdx.x) return;
  double cost = sum - log_prob[n];
  if (lengths[n] == 0) cost = counts[n] == 0 ? 0.0 : static_cast<double>(infinity());
  if (counts[n] < 0) cost = not_a_number();
  loss[n] = cost < 0.0 && cost >= -rounding * (lengths[n] + 1) ? 0.0 : cost;
}

// gradient[n, t, v] -= the occupancies of all columns of class v. What is there before is the softmax, or, where has_softmax is
// 0, anything: then it becomes 0 first, past a sequence's end too. Rows of a sequence whose loss is not finite become 0.
extern "C" __global__ void __launch_bounds__(256)
    ctc_gradient_rows(const double* loss, const long long* lengths, const int* labels, const int* links,
                      const long long* counts, long long most, long long blank, long long width, int has_softmax,
                      const OUT* occupancy, long long num_sequences, long long num_frames, long long num_classes,
                      OUT* gradient, long long by_sequence, long long by_frame, long long by_class) {
  using namespace fsachain;
  const long long index = row_of_warp(num_sequences * num_frames);
  if (index < 0) return;
  const long long n = index / num_frames, t = index % num_frames, count = counts[n];
  const int lane = threadIdx.x % 32;
  const bool is_real = t < lengths[n], is_finite = loss[n] > -infinity() && loss[n] < infinity();
  OUT* into = gradient + n * by_sequence + t * by_frame;
  if (!has_softmax || (is_real && !is_finite)) {
    for (long long v = lane; v < num_classes; v += 32) into[v * by_class] = 0;
    __syncwarp();
  }
  if (!is_real || !is_finite) return;
  const OUT* columns = occupancy + index * width;
  double blanks = 0.0;
  for (long long u = lane; u <= count; u += 32) {
    blanks += columns[kColumns * u + kBlank];
    if (u == count || !(links[n * most + u] & 1)) continue;
    double sum = 0.0;
    for (long long v = u; v >= 0; v = links[n * most + v] / 2 - 1)
      for (int kind = kFurther; kind < kColumns; ++kind) sum += columns[kColumns * v + kind];
    OUT& place = into[labels[n * most + u] * by_class];
    place = static_cast<OUT>(place - sum);
  }
  blanks = warp_sum(blanks);
  if (lane == 0) into[blank * by_class] = static_cast<OUT>(into[blank * by_class] - blanks);
}
