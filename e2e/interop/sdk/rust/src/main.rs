//! Drives a gRPC proxy with RocketMQ's Rust SDK, and judges what arrives: every message once at least, none changed.
//!
//!     sdk-flows ENDPOINTS SUFFIX FLOW:MESSAGES ...
//!
//! Topics are named `sdk-<kind><suffix>` and groups `sdk-<flow><suffix>`; they exist before. It prints one JSON line for
//! each flow. The exit code is 0 if every flow is ok.

mod flows;
mod run;

use run::Run;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut is_ok = arguments.len() > 2;
    for argument in arguments.iter().skip(2) {
        let (flow, count) = argument.split_once(':').expect("expected FLOW:MESSAGES");
        let count = count.parse().expect("expected a number of messages after the colon");
        let run = Run::new(&arguments[0], &arguments[1], flow, count);
        let outcome = flows::perform(&run).await;
        is_ok &= run.print_verdict(outcome);
    }
    std::process::exit(if is_ok { 0 } else { 1 });
}
