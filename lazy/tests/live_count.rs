//! The number of live storages, which users watch for leaks. One test, for the count is the process's.
use rsx_lazy::Storage;

/// A trace that waited to be compiled was in the count: it went up and down with the compiler's speed.
#[test]
fn shadows_are_not_counted() {
    let real: Vec<_> = (0..3).map(|_| Storage::new(4)).collect();
    let shadows: Vec<_> = (0..5).map(|_| Storage::shadow(4)).collect();
    assert_eq!(Storage::live_count(), 3);
    drop(shadows);
    assert_eq!(Storage::live_count(), 3);
    drop(real);
    assert_eq!(Storage::live_count(), 0);
}
