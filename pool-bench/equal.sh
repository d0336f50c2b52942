#!/bin/sh
# Compares what pools do at an earlier commit and here: reserved bytes, hits, misses and calls to the
# device, for all policies and presets, on all bundled traces, alone, under a cached limit, in lanes
# of several threads, of one shard and of four, and on streams. Times are left out. For changes of form
# that may change nothing.
#
#   pool-bench/equal.sh COMMIT
set -eu
commit=${1:?"expected the commit to compare with"}
root=$(git rev-parse --show-toplevel)
work=$root/target/equal
before=$work/before
mkdir -p "$work"

policies=exact,pow2,tiered:4K+64K+1M+16M,fit:1.25,fit:2,arena,arena:torch,arena:pages=64K
policies=$policies,arena:pages=2M:slack=0%,arena:round=64,preset:tile_pipeline,preset:embedding
policies=$policies,preset:ndarray,preset:small_tensors,preset:caching

run() {
    name=$1
    program=$2
    shift 2
    for trace in "$root"/traces/*.ptrace.csv.zst; do
        echo "# $* $(basename "$trace")"
        "$program" replay "$trace" --policy "$policies" --json "$@"
    done | sed -E 's/"(ns|[a-z_]*_ns|ns_[a-z_]*|[a-z_]*seconds[a-z_]*)":[^,}]*,?//g' >>"$work/$name.jsonl"
}

replays() {
    name=$1
    folder=$2
    cargo build --release --locked --package pool-bench --manifest-path "$folder/Cargo.toml" \
        --target-dir "$work/build"
    : >"$work/$name.jsonl"
    program=$work/build/release/pool-bench
    run "$name" "$program"
    run "$name" "$program" --cached-limit 25%
    run "$name" "$program" --streams
    for seed in 1 2 3; do
        run "$name" "$program" --lanes 8 --seed "$seed"
    done
    # A pool over memory without streams has several shards.
    run "$name" "$program" --backend host --lanes 8 --shards 4 --cached-limit 25%
    all=$policies
    policies=${policies#exact,} # which needs more memory than a machine may have
    run "$name" "$program" --backend host --lanes 8 --shards 4
    policies=$all
}

# What the earlier commit does is kept for the next run.
earlier=$(git -C "$root" rev-parse "$commit")
if [ ! -s "$work/$earlier.done" ]; then
    git -C "$root" worktree add --force --detach "$before" "$commit"
    trap 'git -C "$root" worktree remove --force "$before"' EXIT
    replays "$earlier" "$before"
    echo done >"$work/$earlier.done"
fi
replays here "$root"
if diff "$work/$earlier.jsonl" "$work/here.jsonl" >"$work/diff"; then
    echo "equal: $(grep -c '^{' "$work/here.jsonl") replays do the same as at $commit"
else
    head -20 "$work/diff"
    echo "different: $(grep -c '^>' "$work/diff") lines; all of them are in target/equal/diff" >&2
    exit 1
fi
