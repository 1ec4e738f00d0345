//! How long nobody has asked for anything.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Requests that are being answered, and when the last one ended.
#[derive(Debug)]
pub struct Activity {
    state: Mutex<(usize, Instant)>,
    changed: Notify,
}

/// A request or an open answer; it counts until it is dropped.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

impl Activity {
    /// Idle from now on.
    pub fn new() -> Self {
        Self { state: Mutex::new((0, Instant::now())), changed: Notify::new() }
    }

    /// Counts a request.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.change(|n| n + 1);
        Busy(self.clone())
    }

    /// Starts the idle time anew.
    pub fn touch(&self) {
        self.change(|n| n);
    }

    /// How many requests there are.
    pub fn count(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn change(&self, to: impl FnOnce(usize) -> usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = (to(state.0), Instant::now());
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until nothing was asked for so long.
    pub async fn idle_for(&self, time: Duration) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on a change wakes it, also one before it is waited for.
            changed.as_mut().enable();
            let (count, last) = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if count > 0 {
                changed.await;
                continue;
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until((last + time).into()) => return,
            }
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.change(|n| n.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_waits_for_open_requests_and_then_for_quiet() {
        let activity = Arc::new(Activity::new());
        let begun = Instant::now();
        let first = activity.busy();
        let second = activity.busy();
        let waiting = tokio::spawn({
            let activity = activity.clone();
            async move { activity.idle_for(Duration::from_millis(100)).await }
        });
        drop(first);
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(!waiting.is_finished() && activity.count() == 1);
        drop(second);
        tokio::time::sleep(Duration::from_millis(50)).await;
        activity.touch();
        waiting.await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    }
}
