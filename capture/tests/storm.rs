//! A place that compiles again and again is warned of. Alone in its process: it reads the log.
mod common;
use common::*;
use rsx_capture::Tier;

#[test]
fn a_storm_is_warned_of_once() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).without_time().finish();
    tracing::subscriber::with_default(subscriber, || {
        let w = World::new(Tier::Compiled);
        for n in 1..=12usize {
            let x = w.tensor(&vec![1.0; n]);
            let y = w.at(40, "add", &[&x, &x], None).unwrap();
            w.values(&y);
        }
    });
    let text = log.text();
    let storms: Vec<&str> = text.lines().filter(|l| l.contains("WARN")).collect();
    assert_eq!(
        storms,
        [
            " WARN rsx::compiles: the code at test.py:40 (f) has been compiled 9 times; the last time because of: input 1 \
          (`self` of aten::add.Tensor at test.py:40 (f)): 8 became 9. To compile less: pad inputs to a few sizes \
          (powers of two, say), and drop the last incomplete batch. rsx.explain() lists all compiles"
        ]
    );
    // RSX_LOG=compiles.
    let compiles =
        text.lines().filter(|l| l.contains("INFO rsx::compiles: compiled 1 ops from aten::add.Tensor")).count();
    assert_eq!(compiles, 12);
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl tracing_subscriber::fmt::MakeWriter<'_> for Log {
    type Writer = Log;
    fn make_writer(&self) -> Log {
        self.clone()
    }
}
