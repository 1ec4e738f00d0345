//! Which browser pages may read the answers.

use crate::{Answer, StatusCode, full, header};
use header::{HeaderMap, HeaderValue};

/// Allowed browser origins.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    names: Vec<String>,
    any: bool,
}

impl Origins {
    /// A comma list of origins; `*` allows every one. Loopback pages are always allowed.
    pub fn new(list: &str) -> Self {
        let names: Vec<String> = list
            .split(',')
            .map(|n| n.trim().trim_end_matches('/').to_ascii_lowercase())
            .filter(|n| !n.is_empty())
            .collect();
        let any = names.iter().any(|n| n == "*");
        Self { names, any }
    }

    fn allows(&self, origin: &str) -> bool {
        let origin = origin.trim_end_matches('/').to_ascii_lowercase();
        self.any || is_loopback(&origin) || self.names.contains(&origin)
    }

    /// Adds the headers for the request's origin, when it is allowed.
    pub fn mark(&self, request: &HeaderMap, answer: &mut Answer) {
        let headers = answer.headers_mut();
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        if let Some(origin) = request.get(header::ORIGIN)
            && origin.to_str().is_ok_and(|o| self.allows(o))
        {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
    }

    /// The answer to a preflight request.
    pub fn preflight(&self, request: &HeaderMap) -> Answer {
        let mut answer = Answer::new(full(""));
        *answer.status_mut() = StatusCode::NO_CONTENT;
        self.mark(request, &mut answer);
        if answer.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
            let headers = answer.headers_mut();
            let fixed = [
                (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS"),
                (header::ACCESS_CONTROL_ALLOW_HEADERS, "Content-Type, Authorization"),
                (header::ACCESS_CONTROL_MAX_AGE, "600"),
            ];
            for (name, value) in fixed {
                headers.insert(name, HeaderValue::from_static(value));
            }
        }
        answer
    }
}

fn is_loopback(origin: &str) -> bool {
    let Some(rest) = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) else { return false };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|host| {
        rest.strip_prefix(host)
            .is_some_and(|port| port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_named_origins_only() {
        let origins = Origins::new("https://chat.example/, http://a");
        for good in ["http://localhost", "http://localhost:3000", "https://127.0.0.1:1", "http://[::1]:80"] {
            assert!(origins.allows(good), "{good}");
        }
        assert!(origins.allows("https://chat.example") && origins.allows("http://A/"));
        for bad in [
            "http://localhost.evil.example",
            "http://127.0.0.1.nip.io",
            "http://localhost:x",
            "null",
            "file://",
            "http://b",
        ] {
            assert!(!origins.allows(bad), "{bad}");
        }
        assert!(Origins::new("*").allows("http://b"));
    }
}
