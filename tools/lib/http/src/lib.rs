//! HTTP server and client plumbing on hyper.
