//! A program whose global allocator is a `Tcache` forbids itself system calls.
#![cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
#![expect(unsafe_code, reason = "a child process is made, with a filter of its calls")]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_core::BucketPool;
use pool_host::{HostAllocator, Tcache};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Tcache = Tcache::new();

/// Permits what glibc's `malloc` calls, the clock, and the end.
fn filter() -> libc::c_long {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let ends = libc::BPF_RET | libc::BPF_K;
    let permitted = [
        libc::SYS_brk,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_mprotect,
        libc::SYS_futex,
        libc::SYS_clock_gettime,
        libc::SYS_getrandom,
        libc::SYS_exit_group,
    ];
    let line = |code: u32, k, jf| {
        let code = u16::try_from(code).unwrap();
        libc::sock_filter { code, jt: 0, jf, k }
    };
    let mut program = vec![line(load, 0, 0)]; // the number of the call
    for call in permitted {
        program.push(line(is, u32::try_from(call).unwrap(), 1));
        program.push(line(ends, libc::SECCOMP_RET_ALLOW, 0));
    }
    program.push(line(ends, libc::SECCOMP_RET_KILL_PROCESS, 0));
    let len = u16::try_from(program.len()).unwrap();
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: the call takes numbers.
    let limited = unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the call reads the program, which lives through it.
    let filtered = unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_SECCOMP, 2, &raw const program, 0, 0)
    };
    limited | filtered
}

/// Takes and frees fresh blocks of a pool, below and above 8 MiB. Returns whether they were zero.
fn works(pool: &BucketPool<HostAllocator>) -> bool {
    let sizes = [10_000, 70_000, 1 << 20, 9 << 20];
    let blocks: Vec<_> = sizes.iter().flat_map(|bytes| pool.allocate(*bytes)).collect();
    let is_well = blocks.len() == 4 && blocks.iter().all(|block| block.iter().all(|b| *b == 0));
    drop(blocks);
    is_well && pool.clear().is_ok()
}

/// Allocates, grows and frees blocks of all sizes up to 16 MiB. Returns whether they kept what was
/// written.
fn work(step: usize) -> bool {
    let mut held: Vec<Vec<u8>> = Vec::new();
    for at in 0..40 {
        let mut block = vec![1_u8; 1 << ((step * 7 + at * 3) % 24)];
        block.push(2); // it grows
        held.push(block);
        if at % 3 > 0 {
            held.swap_remove(at * 13 % held.len());
        }
    }
    held.iter().all(|block| block.first() == Some(&1) && block.last() == Some(&2))
}

#[test]
fn a_program_in_a_sandbox_goes_on() {
    assert!(work(0) && ALLOCATOR.is_active());
    // SAFETY: the child has one thread, uses the allocator under test, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let pool = BucketPool::new(HostAllocator::new());
        let mut is_well = work(1) && works(&pool); // and so it has a background thread
        ALLOCATOR.enter_sandbox();
        is_well &= filter() == 0;
        // Long enough for all that depends on the time.
        let (start, mut step) = (Instant::now(), 2);
        while start.elapsed() < Duration::from_millis(2500) {
            is_well &= work(step) && works(&pool);
            step += 1;
        }
        // SAFETY: `_exit` has no requirements.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    let mut status = 1;
    // SAFETY: `child` is this process's child, and `status` is valid for the write.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "31 is SIGSYS: a call that the filter does not permit");
}
