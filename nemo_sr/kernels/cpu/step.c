// SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
// SPDX-License-Identifier: Apache-2.0
//
// One AdamW-SR step of many shards: the entry point of the native CPU backend. It shares the elements out among threads,
// finds where they lie in their whole parameters, and hands them to the kernel in runs.
// Everything is passed as 64-bit words, which nemo_sr/kernels/cpu_backend.py lays out.

#include "step.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define CHUNK ((int64_t)1 << 15)  // elements that a thread takes at a time
#define MAX_UNIT 64
#define MAX_THREADS 256
#define THREAD_WORTH 8  // chunks for which a thread is worth starting, where none is waiting

// One shard: addresses, sizes, and its pieces. A piece is a nemo_sr.layout.ShardLayout as the words
//   start, elements, offset, number of levels, then (size, stride) of each level, outermost first;
// levels are the block's dimensions, merged where the block spans the parameter; the innermost has stride 1.
struct shard {
  int64_t first;  // elements of all shards before
  int64_t numel;
  char *weight;
  const char *grad;
  char *exp_avg, *exp_avg_sq;
  uint64_t key;
  const int64_t *pieces;
  int64_t float32, float32_grad;
  float *trace[NUM_STREAMS];
};

struct call {
  const struct shard *shards;
  int64_t num_shards, numel;
  const struct options *options;
  const struct kernel *kernel;
  _Atomic int64_t next;
};

// GOMP_parallel, or NULL: runs a function in several threads at once.
typedef void parallel(void (*function)(void *), void *data, unsigned num_threads, unsigned flags);

#if defined(__x86_64__)
// Gradual underflow, rounding to nearest, exceptions masked.
static uint32_t enter_exact_mode(void) {
  uint32_t saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(0x1F80);
  return saved;
}
static void leave_exact_mode(uint32_t saved) { __builtin_ia32_ldmxcsr(saved); }
#elif defined(__aarch64__)
static uint64_t enter_exact_mode(void) {
  uint64_t saved;
  __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
  __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
  return saved;
}
static void leave_exact_mode(uint64_t saved) { __asm__ volatile("msr fpcr, %0" : : "r"(saved)); }
#else
static int enter_exact_mode(void) { return 0; }
static void leave_exact_mode(int saved) { (void)saved; }
#endif

static void expand_key(uint64_t key, uint32_t (*keys)[2]) {
  uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
  for (int i = 0; i < 10; i++, low += 0x9E3779B9u, high += 0xBB67AE85u) {
    keys[i][0] = low;
    keys[i][1] = high;
  }
}

static void advance(struct run *run, int64_t n) {
  run->weight += n;
  run->exp_avg += n;
  run->exp_avg_sq += n;
  run->grad = (const char *)run->grad + n * (run->float32_grad ? 4 : 2);
  for (int i = 0; i < NUM_STREAMS; i++)
    if (run->trace[i]) run->trace[i] += n;
}

// Step n elements, fewer than a unit, that lie `skip` elements after a multiple of eight: in a copy of one whole unit.
static void step_part(const struct call *call, struct run run, int64_t skip, int64_t n) {
  uint16_t weight[MAX_UNIT] = {0}, exp_avg[MAX_UNIT] = {0}, exp_avg_sq[MAX_UNIT] = {0};
  float grad[MAX_UNIT] = {0}, trace[NUM_STREAMS][MAX_UNIT];
  const size_t size = (size_t)n * sizeof *weight, grad_size = (size_t)n * (run.float32_grad ? 4 : 2);
  struct run whole = run;
  whole.weight = weight;
  whole.exp_avg = exp_avg;
  whole.exp_avg_sq = exp_avg_sq;
  whole.grad = grad;
  whole.units = 1;
  memcpy(weight + skip, run.weight, size);
  memcpy(exp_avg + skip, run.exp_avg, size);
  memcpy(exp_avg_sq + skip, run.exp_avg_sq, size);
  memcpy((char *)grad + skip * (run.float32_grad ? 4 : 2), run.grad, grad_size);
  for (int i = 0; i < NUM_STREAMS; i++)
    if (run.trace[i]) whole.trace[i] = trace[i];
  call->kernel->step_bf16(&whole, call->options);
  memcpy(run.weight, weight + skip, size);
  memcpy(run.exp_avg, exp_avg + skip, size);
  memcpy(run.exp_avg_sq, exp_avg_sq + skip, size);
  for (int i = 0; i < NUM_STREAMS; i++)
    if (run.trace[i]) memcpy(run.trace[i], trace[i] + skip, (size_t)n * sizeof **trace);
}

// Step n neighbours, the first of which is element e of the whole parameter.
static void step_neighbours(const struct call *call, struct run run, uint64_t e, int64_t n) {
  const int64_t unit = call->kernel->unit;
  while (n > 0) {
    const int64_t skip = (int64_t)(e & 7);
    // The kernel counts blocks in 32 bits.
    const uint64_t wrap = ((e >> 35) + 1) << 35;
    int64_t now = wrap - e < (uint64_t)n ? (int64_t)(wrap - e) : n;
    run.block = e >> 3;
    if (skip || now < unit) {
      now = now < unit - skip ? now : unit - skip;
      step_part(call, run, skip, now);
    } else {
      run.units = now / unit;
      now = run.units * unit;
      call->kernel->step_bf16(&run, call->options);
    }
    advance(&run, now);
    e += (uint64_t)now;
    n -= now;
  }
}

// Step elements [begin, end) of a piece; `run` points to its first element.
static void step_piece(const struct call *call, struct run run, const int64_t *piece, int64_t begin, int64_t end) {
  const int64_t *levels = piece + 4;
  const int64_t innermost = piece[3] - 1, length = levels[2 * innermost];
  advance(&run, begin);
  for (int64_t p = piece[0] + begin, stop = piece[0] + end; p < stop;) {
    int64_t rest = p / length, within = p - rest * length, e = piece[2] + within;
    if (!innermost) {  // all in one row
      step_neighbours(call, run, (uint64_t)(piece[2] + p), stop - p);
      return;
    }
    for (int64_t level = innermost - 1; level > 0; level--) {
      const int64_t quotient = rest / levels[2 * level];
      e += (rest - quotient * levels[2 * level]) * levels[2 * level + 1];
      rest = quotient;
    }
    e += rest * levels[1];
    const int64_t n = length - within < stop - p ? length - within : stop - p;
    step_neighbours(call, run, (uint64_t)e, n);
    advance(&run, n);
    p += n;
  }
}

static void step_shard(const struct call *call, const struct shard *shard, int64_t begin, int64_t end) {
  if (shard->float32) {
    call->kernel->step_float32((float *)shard->weight + begin, shard->grad + begin * (shard->float32_grad ? 4 : 2),
                               shard->float32_grad != 0, (float *)shard->exp_avg + begin,
                               (float *)shard->exp_avg_sq + begin, end - begin, call->options);
    return;
  }
  uint32_t keys[10][2];
  expand_key(shard->key, keys);
  struct run run = {.weight = (uint16_t *)shard->weight,
                    .exp_avg = (uint16_t *)shard->exp_avg,
                    .exp_avg_sq = (uint16_t *)shard->exp_avg_sq,
                    .grad = shard->grad,
                    .float32_grad = shard->float32_grad != 0,
                    .keys = (const uint32_t(*)[2])keys,
                    .trace = {shard->trace[0], shard->trace[1], shard->trace[2]}};
  const int64_t *piece = shard->pieces;
  for (int64_t first = 0; first < end; first += piece[1], piece += 4 + 2 * piece[3]) {
    const int64_t from = begin > first ? begin - first : 0, to = end - first < piece[1] ? end - first : piece[1];
    if (from < to) step_piece(call, run, piece, from, to);
    advance(&run, piece[1]);
  }
}

// Each thread takes chunks of the shards' concatenation until none is left.
static void work(void *data) {
  struct call *call = data;
  const __typeof__(enter_exact_mode()) mode = enter_exact_mode();
  for (;;) {
    int64_t begin = atomic_fetch_add_explicit(&call->next, CHUNK, memory_order_relaxed);
    if (begin >= call->numel) break;
    const int64_t end = begin + CHUNK < call->numel ? begin + CHUNK : call->numel;
    int64_t low = 0, high = call->num_shards;  // the last shard that starts at or before `begin`
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (call->shards[middle].first <= begin)
        low = middle;
      else
        high = middle;
    }
    for (; begin < end; low++) {
      const struct shard *shard = &call->shards[low];
      const int64_t stop = shard->first + shard->numel < end ? shard->first + shard->numel : end;
      if (begin < stop) step_shard(call, shard, begin - shard->first, stop - shard->first);
      begin = begin < stop ? stop : begin;
    }
  }
  leave_exact_mode(mode);
}

static void *work_in_thread(void *data) {
  work(data);
  return NULL;
}

static void work_in_threads(struct call *call, int64_t num_threads) {
  pthread_t threads[MAX_THREADS];
  int64_t started = 0;
  if (num_threads > MAX_THREADS) num_threads = MAX_THREADS;
  // Fewer threads than wanted do all of the work too.
  while (started < num_threads - 1 && !pthread_create(&threads[started], NULL, work_in_thread, call)) started++;
  work(call);
  while (started > 0) pthread_join(threads[--started], NULL);
}

// Digest of the sources that this library was built from.
EXPORT const char *nemo_sr_sources(void) { return NEMO_SR_SOURCES; }

// Name of the kernel `path` (0 portable, 1 AVX2, 2 AVX-512), or NULL where this processor cannot run it.
EXPORT const char *nemo_sr_path(int path) {
  if (path == 0) return "portable";
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (path == 1 && __builtin_cpu_supports("avx2")) return "avx2";
  if (path == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return "avx512";
#endif
  return NULL;
}

// Take one step. `path` must be one that nemo_sr_path names; `pool` is GOMP_parallel, or NULL to start threads.
EXPORT void nemo_sr_step(const struct shard *shards, int64_t num_shards, const struct options *options, int path,
                         int64_t num_threads, parallel *pool) {
  if (num_shards == 0) return;
  const struct shard *last = &shards[num_shards - 1];
  struct call call = {.shards = shards, .num_shards = num_shards, .numel = last->first + last->numel, .options = options};
  call.kernel = &kernel_portable;
#if defined(__x86_64__)
  if (path == 1) call.kernel = &kernel_avx2;
  if (path == 2) call.kernel = &kernel_avx512;
#endif
  atomic_init(&call.next, 0);
  const int64_t chunks = (call.numel + CHUNK - 1) / CHUNK, useful = pool ? chunks : chunks / THREAD_WORTH;
  if (num_threads > useful) num_threads = useful;
  if (num_threads <= 1)
    work(&call);
  else if (pool)
    pool(work, &call, (unsigned)num_threads, 0);
  else
    work_in_threads(&call, num_threads);
}
