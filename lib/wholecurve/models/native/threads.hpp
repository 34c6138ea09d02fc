// Threads that run one function together and meet at barriers: a step has hundreds of barriers, each under a microsecond.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <sched.h>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace wholecurve {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Waiting costs a core, so it gives way to other processes after some microseconds.
template <class Done>
inline void spin_until(Done&& done) {
  for (int turns = 0; !done(); turns++) {
    if (turns < 4096) relax();
    else sched_yield();
  }
}

class Threads {
 public:
  explicit Threads(int count) : count_(count < 1 ? 1 : count) {
    for (int id = 1; id < count_; id++) workers_.emplace_back([this, id] { work(id); });
  }

  ~Threads() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
      round_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int count() const { return count_; }

  // Runs job(thread id) on all threads, this one among them, and returns when all are done.
  template <class Job>
  void run(Job& job) {
    job_ = [](void* context, int id) { (*static_cast<Job*>(context))(id); };
    context_ = &job;
    running_.store(count_ - 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      round_.fetch_add(1);
    }
    wake_.notify_all();
    job(0);
    spin_until([&] { return running_.load(std::memory_order_acquire) == 0; });
  }

  // Waits until all threads are here. `sense` is each thread's own, false at the start of a job.
  void barrier(bool& sense) {
    if (count_ == 1) return;
    sense = !sense;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      arrived_.store(0, std::memory_order_relaxed);
      sense_.store(sense, std::memory_order_release);
    } else {
      spin_until([&] { return sense_.load(std::memory_order_acquire) == sense; });
    }
  }

  // To be called before a job by the thread that starts it.
  void reset() { sense_.store(false), arrived_.store(0); }

 private:
  void work(int id) {
    for (uint64_t seen = 0;;) {
      for (int turns = 0; turns < 2000 && round_.load(std::memory_order_acquire) == seen; turns++) relax();
      if (round_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return round_.load() != seen; });
      }
      seen = round_.load();
      if (ending_) return;
      job_(context_, id);
      running_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  const int count_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> round_{0};
  std::atomic<int> running_{0}, arrived_{0};
  std::atomic<bool> sense_{false};
  bool ending_ = false;
  void (*job_)(void*, int) = nullptr;
  void* context_ = nullptr;
};

}  // namespace wholecurve
