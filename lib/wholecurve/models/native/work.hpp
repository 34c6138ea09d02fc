// How the work of a phase is dealt out to threads, and where the time of a step is counted.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

#include "lanes.hpp"

namespace wholecurve {

// Work of one phase, dealt out: each thread takes from its own contiguous share, then from the others'.
struct Share {
  alignas(64) std::atomic<int64_t> next;
  int64_t end;
};

inline void deal(Share* shares, int64_t count, int threads) {
  for (int id = 0; id < threads; id++) {
    shares[id].next.store(count * id / threads, std::memory_order_relaxed);
    shares[id].end = count * (id + 1) / threads;
  }
}

template <class F>
INLINE void take_from(Share* shares, int id, int threads, F&& f) {
  for (int other = 0; other < threads; other++) {
    Share& share = shares[(id + other) % threads];
    for (;;) {
      const int64_t i = share.next.fetch_add(1, std::memory_order_relaxed);
      if (i >= share.end) break;
      f(i);
    }
  }
}

// What the time of a step goes to, as `times` of a batch counts it.
enum Part { EMBEDDING, NORM, QKV, ATTENTION, OUTPUT, GATE_UP, DOWN, HEAD, WAITING, PARTS };

// Adds the nanoseconds of its life to a part; without a place for them it does not look at the clock.
class Timer {
 public:
  Timer(int64_t* times, Part part) : to_(times ? times + part : nullptr), start_(to_ ? now() : 0) {}
  ~Timer() {
    if (to_) *to_ += now() - start_;
  }

 private:
  static int64_t now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }
  int64_t* to_;
  int64_t start_;
};

}  // namespace wholecurve
