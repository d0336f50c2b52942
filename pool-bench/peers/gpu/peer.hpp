// What each peer of `pool-bench bench --backend cuda --peers` answers: one question a line on
// stdin, one JSON object a line on stdout.
//
//   pair BYTES THREADS PAIRS    a buffer taken and given back; ns of a pair, on each thread
//   many COUNT BYTES ROUNDS     COUNT buffers taken, then all given back; ns of an operation
//   record BYTES PAIRS 0|1      the same as pair, beside work on a second stream, whose use of the
//                               block is recorded (1) or is none (0)
//   synced BYTES PAIRS          the same as pair, and each time the stream is waited for
//   trace FILE                  `a ID BYTES` and `f ID` lines; each block is written; ns of an
//                               operation, and the most bytes that were taken from the device
//   reset                       everything idle goes back to the device
//
// An `Allocator` has take(bytes, stream), give(block, bytes, stream), record(block, stream),
// reserved_peak() and reset(), and throws when it has no memory.
#pragma once
#include <cuda_runtime_api.h>

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstddef>
#include <exception>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

using Clock = std::chrono::steady_clock;

inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

inline double ns_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

struct Answer {
  double ns = 0;
  size_t reserved_peak = 0;
};

template <class Allocator>
class Peer {
 public:
  Peer(Allocator &allocator, std::vector<cudaStream_t> streams)
      : allocator_(allocator), streams_(std::move(streams)) {}

  void serve() {
    for (std::string line; std::getline(std::cin, line);) {
      try {
        Answer answer = ask(line);
        std::printf("{\"ns\":%.3f,\"reserved_peak_bytes\":%zu}\n", answer.ns, answer.reserved_peak);
      } catch (const std::exception &error) {
        std::string why = error.what();
        why = why.substr(0, why.find('\n'));
        for (char &c : why) if (c == '"' || c == '\\') c = '\'';
        std::printf("{\"error\":\"%s\"}\n", why.c_str());
      }
      std::fflush(stdout);
    }
  }

 private:
  Answer ask(const std::string &line) {
    std::istringstream words(line);
    std::string what, file;
    size_t a = 0, b = 0, c = 0;
    words >> what;
    if (what == "trace") words >> file; else words >> a >> b >> c;
    if (what == "pair") return {pair(a, b, c), 0};
    if (what == "many") return {many(a, b, c), 0};
    if (what == "record") return {record(a, b, c != 0), 0};
    if (what == "synced") return {synced(a, b), 0};
    if (what == "trace") return trace(file);
    if (what == "reset") { allocator_.reset(); return {}; }
    throw std::invalid_argument("`" + what + "` is no question");
  }

  double pair(size_t bytes, size_t threads, size_t count) {
    std::vector<double> took(threads);
    std::vector<std::exception_ptr> thrown(threads);
    std::barrier all_are_there(static_cast<std::ptrdiff_t>(threads));
    auto work = [&](size_t t) {
      try {
        check(cudaSetDevice(0));
        cudaStream_t stream = streams_.at(t);
        std::exception_ptr cold;
        try {
          allocator_.give(allocator_.take(bytes, stream), bytes, stream);
        } catch (...) {
          cold = std::current_exception();
        }
        all_are_there.arrive_and_wait();
        if (cold) std::rethrow_exception(cold);
        auto start = Clock::now();
        for (size_t i = 0; i < count; i++) {
          auto block = allocator_.take(bytes, stream);
          allocator_.give(std::move(block), bytes, stream);
        }
        took[t] = ns_since(start) / count;
      } catch (...) {
        thrown[t] = std::current_exception();
      }
    };
    std::vector<std::thread> workers;
    for (size_t t = 1; t < threads; t++) workers.emplace_back(work, t);
    work(0);
    for (auto &worker : workers) worker.join();
    check(cudaDeviceSynchronize());
    double sum = 0;
    for (size_t t = 0; t < threads; t++) {
      if (thrown[t]) std::rethrow_exception(thrown[t]);
      sum += took[t];
    }
    return sum / threads;
  }

  double synced(size_t bytes, size_t count) {
    auto start = Clock::now();
    for (size_t i = 0; i < count; i++) {
      auto block = allocator_.take(bytes, streams_[0]);
      allocator_.give(std::move(block), bytes, streams_[0]);
      check(cudaStreamSynchronize(streams_[0]));
    }
    return ns_since(start) / count;
  }

  double many(size_t count, size_t bytes, size_t rounds) {
    std::vector<decltype(allocator_.take(bytes, streams_[0]))> blocks;
    blocks.reserve(count);
    auto start = Clock::now();
    for (size_t round = 0; round < rounds; round++) {
      for (size_t i = 0; i < count; i++) blocks.push_back(allocator_.take(bytes, streams_[0]));
      for (auto &block : blocks) allocator_.give(std::move(block), bytes, streams_[0]);
      blocks.clear();
    }
    return ns_since(start) / (2.0 * count * rounds);
  }

  double record(size_t bytes, size_t count, bool recorded) {
    auto others = allocator_.take(bytes, streams_[1]);
    {
      auto cold = allocator_.take(bytes, streams_[0]);
      allocator_.give(std::move(cold), bytes, streams_[0]);
    }
    auto start = Clock::now();
    for (size_t i = 0; i < count; i++) {
      auto block = allocator_.take(bytes, streams_[0]);
      check(cudaMemsetAsync(allocator_.address(others), 1, 4, streams_[1]));
      if (recorded) allocator_.record(block, streams_[1]);
      allocator_.give(std::move(block), bytes, streams_[0]);
    }
    double took = ns_since(start) / count;
    check(cudaDeviceSynchronize());
    allocator_.give(std::move(others), bytes, streams_[1]);
    return took;
  }

  Answer trace(const std::string &name) {
    std::ifstream file(name);
    if (!file) throw std::runtime_error("no trace " + name);
    struct Step { bool take; size_t id, bytes; };
    std::vector<Step> steps;
    char what;
    for (Step step; file >> what >> step.id;) {
      step.take = what == 'a';
      step.bytes = 0;
      if (step.take) file >> step.bytes;
      steps.push_back(step);
    }
    allocator_.reset();
    cudaStream_t stream = streams_[0];
    std::unordered_map<size_t, std::pair<decltype(allocator_.take(1, stream)), size_t>> live;
    double took = 0;
    for (const Step &step : steps) {
      auto start = Clock::now();
      if (step.take) {
        auto block = allocator_.take(step.bytes, stream);
        took += ns_since(start);
        check(cudaMemsetAsync(allocator_.address(block), 1, step.bytes, stream));
        live.emplace(step.id, std::make_pair(std::move(block), step.bytes));
      } else {
        auto found = live.find(step.id);
        if (found == live.end()) continue;
        start = Clock::now();
        allocator_.give(std::move(found->second.first), found->second.second, stream);
        took += ns_since(start);
        live.erase(found);
      }
    }
    for (auto &[id, block] : live) allocator_.give(std::move(block.first), block.second, stream);
    check(cudaDeviceSynchronize());
    return {took / steps.size(), allocator_.reserved_peak()};
  }

  Allocator &allocator_;
  std::vector<cudaStream_t> streams_;
};
