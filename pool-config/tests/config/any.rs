//! Pools whose memory is chosen when the program runs.

use pool_config::{AnyBuffer, AnyPool};
use pool_core::port::Limit;
use pool_core::{BucketPool, KIB, MIB, Why};
use pool_sim::{MappedSim, SimDevice};

fn pools() -> [AnyPool; 2] {
    let builder = BucketPool::builder(SimDevice::new()).reserved_limit(MIB);
    [builder.build().into(), BucketPool::new(MappedSim::new(SimDevice::new())).into()]
}

#[test]
fn one_program_uses_pools_of_two_memories() {
    for pool in pools() {
        let mut buffer = pool.allocate_zeroed(KIB).unwrap();
        buffer.write_at(1, &[7; 3]).unwrap();
        let mut five = [1; 5];
        buffer.read_at(0, &mut five).unwrap();
        assert_eq!((five, buffer.size(), buffer.allocated_size()), ([0, 7, 7, 7, 0], KIB, KIB));
        drop(buffer);
        drop(pool.allocate(KIB).unwrap());
        assert_eq!((pool.stats().hits, pool.stats().allocations), (1, 2));
        assert_eq!(pool.clear().unwrap(), KIB);
    }
    let [limited, _] = pools();
    assert_eq!(limited.allocate(2 * MIB).unwrap_err().why(), Why::Limit(Limit::Reserved));
}

#[test]
fn a_buffer_gets_its_type_back_or_stays_as_it_is() {
    let [pool, mapped] = pools();
    assert!(pool.downcast_ref::<SimDevice>().is_some() && pool.memory().ends_with("SimDevice"));
    assert!(mapped.downcast_ref::<SimDevice>().is_none());
    let mut buffer = pool.allocate(KIB).unwrap();
    assert!(buffer.downcast_ref::<MappedSim>().is_none());
    assert_eq!(buffer.downcast_mut::<SimDevice>().unwrap().size(), KIB);
    let buffer = buffer.downcast::<MappedSim>().unwrap_err();
    let typed = buffer.downcast::<SimDevice>().unwrap();
    let again = AnyBuffer::from(typed);
    drop(pool);
    assert!(format!("{again:?}").contains("SimDevice"));
    std::thread::spawn(move || drop(again)).join().unwrap();
}
