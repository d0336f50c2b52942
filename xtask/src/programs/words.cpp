// Threads count words in texts that they make, hand the maps on, and merge them: strings, maps,
// vectors that grow past 64 KiB, exceptions, and blocks that another thread frees.
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

using Counts = std::unordered_map<std::string, std::uint64_t>;

static std::mutex lock;
static std::condition_variable filled;
static std::queue<std::unique_ptr<Counts>> queue;

static std::uint64_t next(std::uint64_t &random) {
    random ^= random << 13;
    random ^= random >> 7;
    return random ^= random << 17;
}

static std::unique_ptr<Counts> count(std::uint64_t seed) {
    std::string text;
    for (int word = 0; word < 60000; word++) {
        std::uint64_t letters = next(seed) % 4000;
        for (; letters; letters /= 26) text += char('a' + letters % 26);
        text += ' ';
    }
    auto counts = std::make_unique<Counts>();
    std::size_t start = 0;
    while (start < text.size()) {
        std::size_t end = text.find(' ', start);
        try {
            if (end == start) throw std::invalid_argument("an empty word");
            ++(*counts)[text.substr(start, end - start)];
        } catch (const std::invalid_argument &) {
            ++(*counts)["-"];
        }
        start = end + 1;
    }
    return counts;
}

int main() {
    const int threads = 4, rounds = 6;
    std::vector<std::thread> counting;
    for (int thread = 0; thread < threads; thread++)
        counting.emplace_back([thread] {
            for (int round = 0; round < rounds; round++) {
                auto counts = count(0x9E3779B97F4A7C15u * (1 + thread * rounds + round));
                std::lock_guard<std::mutex> guard(lock);
                queue.push(std::move(counts));
                filled.notify_one();
            }
        });
    std::map<std::string, std::uint64_t> all;
    std::vector<std::string> words;
    for (int taken = 0; taken < threads * rounds; taken++) {
        std::unique_lock<std::mutex> guard(lock);
        filled.wait(guard, [] { return !queue.empty(); });
        auto counts = std::move(queue.front());
        queue.pop();
        guard.unlock();
        for (const auto &[word, count] : *counts) {
            all[word] += count;
            words.push_back(word);
        }
    }
    for (auto &thread : counting) thread.join();
    std::sort(words.begin(), words.end());
    std::printf("%zu words, the middle one is %s\n", words.size(), words[words.size() / 2].c_str());
    for (const auto &[word, count] : all) std::printf("%s %llu\n", word.c_str(), (unsigned long long)count);
}
