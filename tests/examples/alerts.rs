//! The alerts of examples/monitoring, in Prometheus.

use std::path::Path;
use std::process::Command;

use crate::app::is_installed;

#[test]
fn each_alert_fires_when_the_page_says_and_not_before() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/examples/alerts.yml");
    let run = Command::new("promtool").args(["test", "rules"]).arg(cases).output();
    if is_installed(run.is_ok(), "promtool, of Prometheus,") {
        let output = run.expect("promtool runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat())
        );
    }
}
